"""npz, CSV and Parquet logs."""

import csv
import pickle
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import ActionRange, audit, load

COLUMNS = {
    "observations": np.arange(10, dtype=np.float32).reshape(5, 2),
    "next_observations": np.arange(2, 12, dtype=np.float32).reshape(5, 2),
    "actions": np.array([0, 1, 2, 1, 0]),
    "rewards": np.array([1.0, 2, 3, 4, 5]),
    "terminals": np.array([0, 0, 1, 0, 0]),
}


def test_npz(tmp_path):
    np.savez(tmp_path / "a.npz", **COLUMNS, env_id="Toy-v0", success=np.ones(5, bool))
    data = load(tmp_path / "a.npz")
    data.timeline.check_episodes()
    assert (data.format, data.env_id, data.steps, data.episodes) == ("npz", "Toy-v0", 5, 2)
    assert data.timeline.executed_action.tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert list(data.timeline.extras) == ["success"]


def test_a_converted_folder_in_other_units_says_so_and_still_loads(tmp_path):
    units = np.array([[0.5], [50], [1 + 1e-7], [2], [0]], np.float64)
    np.savez(tmp_path / "a.npz", **(COLUMNS | {"actions": units}))
    folder = load(tmp_path / "a.npz").save(tmp_path / "kept")
    assert audit(load(folder))["actions_out_of_range_steps"] is None
    unit = ActionRange(low=np.zeros(1, np.float32), high=np.ones(1, np.float32))
    data = load(folder, actions=unit)
    assert data.timeline.executed_action.max() == 50
    assert audit(data)["actions_out_of_range_steps"] == 2  # 1 + 1e-7 is 1, rounded
    (finding,) = (said for said in data.findings if "range" in said)
    assert "'executed_action', row 1: outside the environment's range (2 steps in all)" in finding
    again = load(data.save(tmp_path / "again"), actions=unit)
    assert sum("range" in said for said in again.findings) == 1


@pytest.mark.usefixtures("nothing_cached")
def test_pickled_arrays_are_refused_with_a_way_out(tmp_path):
    np.savez(tmp_path / "objects.npz", **{**COLUMNS, "rewards": np.array([None] * 5)})
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(COLUMNS))
    for name in ("objects.npz", "buffer.pkl"):
        with pytest.raises(GxError, match=rf"{name}.*pickle.*numpy\.savez"):
            load(tmp_path / name)


@pytest.mark.usefixtures("nothing_cached")
def test_damaged_and_unknown_files(tmp_path):
    np.savez(tmp_path / "a.npz", **COLUMNS)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-300])
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(GxError, match=r"cut\.npz: cannot be read.*again"):
        load(tmp_path / "cut.npz")
    with pytest.raises(GxError, match=r"letter\.txt.*known are.*minari"):
        load(tmp_path / "letter.txt")
    with pytest.raises(GxError, match="no such file"):
        load(tmp_path / "nowhere.npz")
    with pytest.raises(GxError, match="no format is called 'word'"):
        load(tmp_path / "a.npz", format="word")


def test_a_bare_done_flag_is_not_guessed_at(tmp_path):
    columns = {**COLUMNS, "dones": COLUMNS["terminals"]}
    del columns["terminals"]
    np.savez(tmp_path / "a.npz", **columns)
    with pytest.raises(GxError, match="time limits"):
        load(tmp_path / "a.npz")
    assert load(tmp_path / "a.npz", options={"mapping": {"terminals": "dones"}}).steps == 5


@pytest.mark.parametrize(
    ("module", "head", "extra"),
    [
        ("h5py", b"\x89HDF\r\n\x1a\n", "data"),
        ("pyarrow", b"PAR1", "data"),
        ("google_crc32c", b"what" * 9, "data"),
    ],
)
def test_a_part_that_is_not_installed(tmp_path, monkeypatch, module, head, extra):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "file").write_bytes(head)
    with pytest.raises(GxError, match=rf"is not installed.*rlpd-gx\[{extra}\]"):
        load(tmp_path / "file")


MAPPING = {
    "observations": ["x", "v"],
    "actions": ["force"],
    "rewards": "r",
    "terminals": "fell",
    "episode": "run",
}
ROWS = [
    # run, x, v, force, r, fell, comment
    ("a", 0.0, 0.5, -1.0, 1.0, 0, "start"),
    ("a", 0.5, 0.5, 0.0, 1.0, 0, ""),
    ("a", 1.0, 0.5, 1.0, -9.0, 1, "fell"),
    ("b", 0.0, 0.1, 0.5, 1.0, 0, ""),
    ("b", 0.1, 0.1, 0.25, 1.0, 0, ""),
]
NAMES = ["run", "x", "v", "force", "r", "fell", "comment"]


def write_csv(path, rows=ROWS):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([NAMES, *rows])
    return path


def test_csv(tmp_path):
    data = load(write_csv(tmp_path / "log.csv"), options={"mapping": MAPPING})
    line = data.timeline
    line.check_episodes()
    assert np.allclose(line.observation, [[0, 0.5], [0.5, 0.5], [1, 0.5], [1, 0.5], [0, 0.1], [0.1, 0.1]])
    assert line.executed_action[:, 0].tolist() == [-1, 0, 1, 0, 0.5, 0]
    assert np.flatnonzero(line.terminated).tolist() == [2]
    assert np.flatnonzero(line.truncated).tolist() == [4]
    assert any("comment" in finding for finding in data.findings)


def test_whole_numbers_are_forces_where_the_environment_takes_one(tmp_path):
    rows = [(*row[:3], int(2 * row[3]), *row[4:]) for row in ROWS]
    path, options = (
        write_csv(tmp_path / "log.csv", rows),
        {"mapping": {**MAPPING, "proposed_actions": ["force"]}},
    )
    force = ActionRange(low=np.array([-2.0], np.float32), high=np.array([1.0], np.float32))
    line = load(path, options=options, actions=force).timeline
    assert line.executed_action.dtype == line.proposed_action.dtype == np.float32
    assert line.executed_action[line.is_step].tolist() == line.proposed_action[line.is_step].tolist()
    assert line.executed_action[line.is_step].tolist() == [[-2], [0], [2], [1]]
    clipped = load(path, options=options, actions=force, clip_actions=True).timeline
    assert clipped.executed_action[clipped.is_step].tolist() == [[-2], [0], [1], [1]]
    with pytest.raises(GxError, match=r"ids begin at 0; .*name the environment if these are not ids"):
        load(path, options=options)


def test_parquet_with_lists(tmp_path):
    table = pyarrow.table(
        {
            "obs": [[row[1], row[2]] for row in ROWS],
            "act": [row[3] for row in ROWS],
            "rewards": [row[4] for row in ROWS],
            "terminals": [bool(row[5]) for row in ROWS],
            "timeouts": [False] * 4 + [True],
            "speed": [row[2] for row in ROWS],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    mapping = {"observations": "obs", "actions": "act"}
    unit = ActionRange(low=np.array([-1.0]), high=np.array([1.0]))
    data = load(tmp_path / "log.parquet", options={"mapping": mapping}, actions=unit)
    assert data.format == "table"
    assert data.timeline.observation.shape == (6, 2)
    assert data.timeline.executed_action.shape == (6, 1)
    assert np.allclose(data.timeline.extras["speed"], [0.5, 0.5, 0.5, 0, 0.1, 0])


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize(
    ("rows", "mapping", "sentence"),
    [
        (ROWS, {**MAPPING, "rewards": "gain"}, "'gain': is not a column"),
        ([ROWS[0], ("a", 1.0, 0.5, 1.0, None, 0, ""), *ROWS[2:]], MAPPING, "'rewards/r', row 1: is empty"),
        (
            [ROWS[0], ("a", 1.0, None, 1.0, 1.0, 0, ""), *ROWS[2:]],
            MAPPING,
            "'observations/v', row 1: is empty",
        ),
        (ROWS, {**MAPPING, "rewards": "comment"}, "'comment', row 0: is 'start', not a number"),
        ([ROWS[0], ("a", 1.0, 0.5, 1.0, "oops", 0, ""), *ROWS[2:]], MAPPING, "'r', row 1: is 'oops', not a"),
        (
            [ROWS[0], ("a", None, 0.5, 1, 1, 0, ""), ("a", "1,5", 0.5, 1.0, 1.0, 0, ""), *ROWS[2:]],
            MAPPING,
            "'x', row 2: is '1,5', not a number; store numbers, with a decimal point",
        ),
        ([*ROWS[:2], ROWS[2][:4], *ROWS[3:]], MAPPING, r"log\.csv: row 2: has 4 values .* names 7 columns"),
        ([*ROWS[:4], (*ROWS[4], 1, 2)], MAPPING, r"log\.csv: row 4: has 9 values .* names 7 columns"),
        ([], MAPPING, r"log\.csv: has no rows below its header"),
        (ROWS, {}, "'observations': is missing"),
    ],
)
def test_bad_tables_name_column_and_row(tmp_path, rows, mapping, sentence):
    with pytest.raises(GxError, match=sentence):
        load(write_csv(tmp_path / "log.csv", rows), options={"mapping": mapping})


@pytest.mark.usefixtures("nothing_cached")
def test_bytes_that_are_no_text_are_one_sentence(tmp_path, capfd):
    (tmp_path / "log.csv").write_bytes(np.random.default_rng(0).bytes(3000))
    with pytest.raises(GxError, match=r"log\.csv: "):
        load(tmp_path / "log.csv", options={"mapping": MAPPING})
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize(("separator", "called"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_named(tmp_path, separator, called):
    path = tmp_path / "log.csv"
    path.write_text(f"run{separator}x\na{separator}0,5\n")
    with pytest.raises(GxError, match=rf"log\.csv: is separated by {called}; export it with commas"):
        load(path, options={"mapping": MAPPING})


def test_a_column_may_become_fractional_late_in_a_long_table(tmp_path):
    rows = [("a", t, 0.5, 0.5, 0, 0, "x" * 50) for t in range(20000)]  # more than a megabyte
    rows[-2] = ("a", 19998, 0.5, 0.5, 0.25, 0, "")
    data = load(write_csv(tmp_path / "log.csv", rows), options={"mapping": MAPPING})
    assert data.timeline.reward[data.timeline.is_step][-1] == 0.25
    rows[-2] = ("a", 19998, 0.5, 0.5, "oops", 0, "")
    with pytest.raises(GxError, match="'r', row 19998: is 'oops', not a number"):
        load(write_csv(tmp_path / "log.csv", rows), options={"mapping": MAPPING})


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("timeout", "timeouts"),
        ("obsevations", "observations"),
        ("episod", "episode"),
        ("terminal", "terminals"),
    ],
)
def test_a_misspelled_field_of_a_mapping_is_refused(tmp_path, wrong, right):
    np.savez(tmp_path / "a.npz", **COLUMNS, end=np.zeros(5))
    for path, mapping in (
        (write_csv(tmp_path / "log.csv"), {**MAPPING, wrong: "x"}),
        (tmp_path / "a.npz", {wrong: "end"}),
    ):
        said = rf"no field '{wrong}' \(it has observations, .*time\); did you mean {right}\?"
        with pytest.raises(GxError, match=said):
            load(path, options={"mapping": mapping})


def log(rows):
    """(run, t, x, fell) of each row as a table with one action and one reward."""
    return {
        "run": [row[0] for row in rows],
        "time": [row[1] for row in rows],
        "observations": np.array([[row[2]] for row in rows], float),
        "actions": np.zeros((len(rows), 1)),
        "rewards": np.ones(len(rows)),
        "terminals": np.array([row[3] for row in rows]),
    }


ORDERED = [(run, t, 10 * run + t, t == 4) for run in range(3) for t in range(5)]


@pytest.mark.parametrize("number", range(20))
def test_shuffled_rows_are_said_to_be_shuffled(tmp_path, number):
    rng = np.random.default_rng(number)
    path, options = tmp_path / "log.csv", {"mapping": {**MAPPING, "time": "t"}}
    rows = [(run, x, 0.5, 0.0, 1.0, int(fell), t) for run, t, x, fell in ORDERED]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*NAMES[:-1], "t"], *(rows[i] for i in rng.permutation(15))])
    with pytest.raises(
        GxError, match=r"log\.csv: '(t|run)', row \d+: .*the rows look shuffled; sort the rows"
    ):
        load(path, options=options)
    findings = load(path, options=options, strict=False).findings  # what an audit does
    assert any("shuffled" in finding for finding in findings)


def test_a_row_that_is_there_twice_is_refused(tmp_path):
    path, options = tmp_path / "log.csv", {"mapping": {**MAPPING, "step": "t"}}
    rows = [(run, x, 0.5, 0.0, 1.0, int(fell), t) for run, t, x, fell in ORDERED]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*NAMES[:-1], "t"], *rows[:8], rows[7], *rows[8:]])
    with pytest.raises(GxError, match=r"log\.csv: 't', row 8: stays at 2 within an episode.*\(1 such rows\)"):
        load(path, options=options)
    assert any("stays at 2" in finding for finding in load(path, options=options, strict=False).findings)
    columns = log(ORDERED)
    columns["episode"] = np.array(columns.pop("run"))
    columns |= {"step": np.array(columns["time"]), "time": np.array(columns["time"]) // 2}
    np.savez(tmp_path / "a.npz", **columns)
    assert load(tmp_path / "a.npz").episodes == 3  # the time is coarse, but the step grows


def test_rows_in_order_are_not(tmp_path):
    columns = log(ORDERED)
    columns["episode"] = np.array(columns.pop("run"))
    np.savez(tmp_path / "a.npz", **columns)
    assert load(tmp_path / "a.npz").episodes == 3
    columns["episode"] = columns["episode"][::-1]  # any order of episodes will do
    np.savez(tmp_path / "a.npz", **columns)
    assert load(tmp_path / "a.npz").episodes == 3
    columns["episode"][-1] = columns["episode"][0]
    np.savez(tmp_path / "a.npz", **columns)
    with pytest.raises(GxError, match="'episode', row 14: comes back to an episode"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize(("first", "tick", "kind"), [(0, 1, np.uint8), (7, 4, int), (0, 0.02, float)])
def test_missing_rows_cut_the_episode(tmp_path, first, tick, kind):
    rows = [row for i, row in enumerate(ORDERED) if i not in (6, 7)]  # run 1 has 0, 3, 4
    columns = log(rows)
    columns["episode"] = np.array(columns.pop("run"))
    columns["time"] = (first + tick * np.array(columns["time"])).astype(kind)
    np.savez(tmp_path / "a.npz", **columns)
    data = load(tmp_path / "a.npz")
    line = data.timeline
    line.check_episodes()
    # nothing leads from 10 to 13, and the lone step from 10 has no next observation
    assert line.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 4, 13, 14, 14, 20, 21, 22, 23, 24, 24]
    assert any(
        "'time', row 6: jumps from" in finding and "(1 such gaps)" in finding for finding in data.findings
    )
    del columns["time"]
    np.savez(tmp_path / "a.npz", **columns)
    assert 10 in load(tmp_path / "a.npz").timeline.observation  # nothing in the file shows the gap


def test_a_clock_that_shows_no_gaps(tmp_path):
    columns = log([(0, 0, t, t == 19) for t in range(20)])
    columns["time"] = np.cumsum(np.random.default_rng(0).exponential(1, 20))
    np.savez(tmp_path / "a.npz", **columns)
    data = load(tmp_path / "a.npz")
    assert (data.steps, data.episodes) == (20, 1)
    assert any("'time' does not grow evenly" in finding for finding in data.findings)
    columns["time"] = 0.1 * np.arange(20) + np.random.default_rng(0).uniform(-0.002, 0.002, 20)
    np.savez(tmp_path / "a.npz", **columns)
    data = load(tmp_path / "a.npz")
    assert (data.steps, data.episodes) == (20, 1)
    assert not any("'time'" in finding for finding in data.findings)
    columns["time"][3] = np.nan  # could hide a gap
    np.savez(tmp_path / "a.npz", **columns)
    with pytest.raises(GxError, match="'time', row 3: is empty or not finite"):
        load(tmp_path / "a.npz")


def test_a_table_without_a_clock_says_that_gaps_cannot_be_seen(tmp_path):
    said = "no column is named or mapped as step or time"
    path = write_csv(tmp_path / "log.csv")
    assert any(said in finding for finding in load(path, options={"mapping": MAPPING}).findings)
    clocked = load(path, options={"mapping": {**MAPPING, "time": "x"}}).findings
    assert not any(said in finding for finding in clocked)


def test_a_time_limit_without_next_observations_takes_its_last_step_with_it(tmp_path):
    columns = log(ORDERED)
    del columns["run"]
    columns["terminals"][-1] = True
    np.savez(tmp_path / "a.npz", **columns)
    line = load(tmp_path / "a.npz", time_limit_steps=5).timeline
    line.check_episodes()
    assert not line.terminated.any()
    assert line.observation[:, 0].tolist() == ORDERED_X  # no observation is there twice
    assert np.flatnonzero(line.truncated).tolist() == [3, 8, 13]
    assert any(
        "last step is left out" in said for said in load(tmp_path / "a.npz", time_limit_steps=5).findings
    )
    real = load(tmp_path / "a.npz").timeline
    assert np.count_nonzero(real.terminated) == 3  # a terminal needs no next observation
    assert len(real) == 18
    columns["next_observations"] = columns["observations"] + 1
    np.savez(tmp_path / "a.npz", **columns)
    known = load(tmp_path / "a.npz", time_limit_steps=5).timeline
    assert len(known) == 18
    assert np.flatnonzero(known.truncated).tolist() == [4, 10, 16]


ORDERED_X = [row[2] for row in ORDERED]


def test_a_time_limit_that_no_column_shows_is_reported(tmp_path):
    columns = log([(run, t, t, False) for run in range(2) for t in range(4)])
    episode = columns.pop("run")
    del columns["time"]
    np.savez(tmp_path / "a.npz", **columns)
    said = "only terminals say where episodes end"
    data = load(tmp_path / "a.npz")
    assert data.episodes == 1  # with a step from 3 to 0
    assert any(said in finding for finding in data.findings)
    findings = load(tmp_path / "a.npz", time_limit_steps=4).findings
    assert any("row 4: an episode goes on for 7 steps, beyond the time limit of 4" in f for f in findings)
    assert not any(
        "beyond the time limit" in f for f in load(tmp_path / "a.npz", time_limit_steps=7).findings
    )
    for name, column in (
        ("timeouts", np.arange(8) % 4 == 3),
        ("episode", np.array(episode)),
        ("next_observations", columns["observations"] + 1),
    ):
        np.savez(tmp_path / "b.npz", **columns, **{name: column})
        data = load(tmp_path / "b.npz")
        assert data.episodes == 2
        assert not any(said in finding for finding in data.findings)


def test_an_episode_of_one_step_that_was_a_time_limit_is_gone(tmp_path):
    columns = log([(0, 0, 1, True), (1, 0, 2, False), (1, 1, 3, False), (1, 2, 4, True)])
    del columns["run"], columns["time"]
    np.savez(tmp_path / "a.npz", **columns)
    assert load(tmp_path / "a.npz").episodes == 2
    data = load(tmp_path / "a.npz", time_limit_steps=1)
    assert (data.episodes, data.steps) == (1, 3)
