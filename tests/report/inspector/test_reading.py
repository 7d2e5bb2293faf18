"""Run folders are read in steps and in bounded memory, and whatever is in them."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_runs import correction, write_run

from rlpd_gx.errors import GxError
from rlpd_gx.report.inspector.corrections import Corrections
from rlpd_gx.report.inspector.folder import Folder
from rlpd_gx.report.inspector.run import held_locks, is_locked
from rlpd_gx.report.inspector.series import BUCKETS, Histogram, Series
from rlpd_gx.report.inspector.static import content as page_content
from rlpd_gx.report.inspector.static import write_page
from rlpd_gx.report.inspector.tail import Tail
from rlpd_gx.report.records import read_run

numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, max_size=60), st.integers(1, 60))
def test_a_series_keeps_mean_least_and_largest(values, times):
    series, all_values = Series(), values * times
    for step, value in enumerate(all_values):
        series.add(step, value)
    assert len(series.steps) <= BUCKETS
    assert sum(series.counts) == len(all_values)
    if all_values:
        assert (min(series.low), max(series.high)) == (min(all_values), max(all_values))
        assert sum(series.totals) == pytest.approx(sum(all_values), abs=1e-3)
        assert series.steps[-1] == len(all_values) - 1
        assert list(series.steps) == sorted(series.steps)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from("ab")), max_size=80))
def test_a_histogram_counts_everything_in_the_right_bin(values):
    histogram = Histogram(8, 0.5)
    for value, name in values:
        histogram.add(value, name)
    for name, counts in histogram.counts.items():
        mine = [value for value, n in values if n == name]
        assert sum(counts) == len(mine)
        for place, count in enumerate(counts):
            low, high = place * histogram.width, (place + 1) * histogram.width
            assert count == sum(low <= value < high for value in mine)


def test_only_new_lines_are_read_and_a_torn_one_waits(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path, tmp_path)
    assert not tail.changed()
    path.write_text('{"a": 1}\n{"a": 2}\n{"a":')
    assert tail.changed()
    assert [row["a"] for _, row in tail.read()] == [1, 2]
    with path.open("a") as file:
        file.write(' 3}\nnonsense\n[1]\n{"a": 4}\n')
    assert not tail.cut()
    found = list(tail.read())
    assert [row["a"] for _, row in found] == [3, 4]
    assert tail.damaged == 2
    assert tail.line(found[1][0]) == {"a": 4}


def test_a_file_that_was_cut_is_read_again(tmp_path):
    """A resumed run takes back what came after its checkpoint, and may already have written more than before."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    tail = Tail(path, tmp_path)
    list(tail.read())
    path.write_text('{"a": 1}\n{"a": 7}\n{"a": 8}\n')
    assert tail.cut()
    assert [row["a"] for _, row in tail.read()] == [1, 7, 8]


def test_a_run_grows_and_goes_back(tmp_path):
    run = write_run(tmp_path / "run", steps=500)
    folder = Folder(tmp_path)
    folder.refresh()
    (before,) = folder.overview()["runs"]
    assert (before["status"], before["score"], before["step"], before["corrections"]) == (
        "finished",
        2.0,
        500,
        100,
    )
    assert folder.refresh() == []
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "evaluation", "step": 600, "mean": 9.0, "returns": [9.0]}) + "\n")
    assert folder.refresh() == ["run"]
    assert folder.overview()["runs"][0]["score"] == 9.0
    lines = (run / "metrics.jsonl").read_text().splitlines()[:3]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "result.json").unlink()
    folder.refresh()
    assert folder.overview()["runs"][0]["step"] <= 200
    assert folder.detail("run")["episode_list"]["total"] <= 3


def test_corrections_by_rule(tmp_path):
    path = tmp_path / "audit.jsonl"
    start = {"event": "start", "rules": ["a", "b"], "ungraded": [], "fingerprint": "", "near_miss": 0.1}
    events = [start, *(correction(s, 0.5, "a") for s in (1, 4, 5)), correction(6, 2.0, "b", "inevitable")]
    stop = {"event": "stop", "step": 11, "reason": "no answer"}
    path.write_text("".join(json.dumps(e) + "\n" for e in [*events, stop]) + "torn")
    found = Corrections(path, tmp_path)
    found.refresh()
    rules = {rule["name"]: rule for rule in found.as_json()["rules"]}
    assert (rules["a"]["blocked"], rules["a"]["mean"], rules["a"]["deepest"]) == (3, 0.5, 0.5)
    assert (rules["b"]["blocked"], rules["b"]["deepest"]) == (1, 2.0)
    assert sum(found.as_json()["timeline"]["counts"]["a"]) == 3
    assert found.as_json()["reasons"] == {"no answer": 1}
    assert [event["t"] for event in found.recorded(3, 2)] == [0, 1]


def test_what_a_correction_without_a_broken_rule_is_counted_under(tmp_path):
    path, rules = tmp_path / "audit.jsonl", [f"rule {i}" for i in range(40)]
    start = {"event": "start", "rules": rules, "ungraded": [], "fingerprint": "", "near_miss": 0.1}
    allowed = {"margins": {"rule 0": 0.4}, "binding": []}  # a classifier vetoes what no rule forbids
    both = {"margins": {"rule 35": -1.0, "rule 36": -2.0}}
    events = [
        correction(1, 0.5) | allowed,
        correction(2, 0.5) | both,
        correction(3, 0.5) | allowed | {"binding": ["action space"]},
        correction(4, 0.5, status="fallback") | {"margins": {"rule 0": None}, "reason": "rule 0 raised"},
        {"event": "stop", "step": 5, "reason": "no answer"},
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in [start, *events]))
    found = Corrections(path, tmp_path)
    found.refresh()
    counts = {name: sum(row) for name, row in found.as_json()["timeline"]["counts"].items()}
    assert counts == {
        "chosen by the guard": 1, "other rules": 1, "action space": 1, "no rule could be asked": 2,
    }  # fmt: skip
    assert found.rules["other rules"] == {"blocked": 2, "depth": 3.0, "deepest": 2.0}
    assert found.tail.damaged == 0


def test_recorded_corrections_are_found_after_stops(tmp_path):
    """An audit counts proposals: a stop is one, though nothing ran."""
    run = write_run(tmp_path / "run", steps=30, audit=False)
    lengths, stopped = [4, 0, 6, 5], [True, True, False, True]
    rows = [
        {"kind": "episode", "step": 10 * i, "return": 0.0, "length": lengths[i], "corrections": 1, "unsafe_events": 0,
         "env": 0, "stopped": stopped[i]} for i in range(4)
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # proposals 1 to 5, 6, 7 to 12 and 13 to 18 are those of the four episodes
    stops = [{"event": "stop", "step": step, "reason": why} for step, why in ((5, "a"), (6, "b"), (18, "c"))]
    corrections = [correction(step, 0.5) for step in (2, 9, 13)]
    events = sorted([*corrections, *stops], key=lambda event: event["step"])
    (run / "audit.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    folder = Folder(tmp_path)
    folder.refresh()
    watched = folder.runs["run"]
    assert (watched.firsts(), watched.first_proposals()) == ([0, 4, 4, 10], [0, 5, 6, 12])
    expected = {(0, 4): [1, 4], (4, 6): [2], (10, 5): [0, 5]}
    for (first, length), times in expected.items():
        assert [event["t"] for event in watched.recorded(0, first, length)] == times
    saved = page_content(folder)["recorded"]["run"]
    assert [event["t"] for event in saved["0-4-6"]] == [2]
    assert [event["t"] for event in saved["0-10-5"]] == [0, 5]
    assert [event.get("reason") for event in watched.recorded(0, 0, 4)] == [None, "a"]


def test_damaged_folders_are_shown_as_such(tmp_path):
    for name, file, content in [
        ("config", "config.json", "{"),
        ("rows", "metrics.jsonl", "\x00\xff nonsense\n" * 3),
        ("audit", "audit.jsonl", '{"event": "correction"}\n{"event": "start"}\n[]\n'),
        ("result", "result.json", "[1, 2]"),
        ("deep", "metrics.jsonl", "[" * 100_000 + "\n"),
    ]:
        run = write_run(tmp_path / name, steps=100)
        (run / file).write_text(content)
    write_run(tmp_path / "none", steps=100)
    (tmp_path / "none" / "config.json").unlink()
    write_run(tmp_path / "killed", steps=100)
    (tmp_path / "killed" / "result.json").unlink()
    folder = Folder(tmp_path)
    folder.refresh()
    status = {run["name"]: (run["status"], run["notes"]) for run in folder.overview()["runs"]}
    assert status["config"][0] == status["result"][0] == status["none"][0] == "damaged"
    assert "config.json cannot be read" in status["config"][1][0]
    assert "3 damaged lines" in status["rows"][1][0]
    assert status["killed"][0] == "stopped"
    assert "was stopped or killed" in status["killed"][1][0]
    for name in status:
        json.dumps(folder.detail(name), allow_nan=False)
    assert folder.detail("audit")["audits"][0]["damaged"] >= 2


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["config.json", "result.json", "metrics.jsonl", "audit.jsonl"]),
    st.sampled_from(
        ["steps", "num_envs", "kind", "event", "training", "audit", "evaluation", "rules", "returns"]
    ),
)
def test_any_json_in_any_file_is_read(tmp_path_factory, value, file, key):
    root = tmp_path_factory.mktemp("any")
    run = write_run(root / "run", steps=100)
    rows = [value, {key: value}, {"kind": "train", "step": 5, key: value}, {"kind": "episode", "step": 6, key: value},
            {"kind": "evaluation", "step": 7, key: value}, {"event": "correction", "step": 3, key: value},
            {"event": "episode", "tally": {key: value}}]  # fmt: skip
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (run / file).write_text(lines if file.endswith("l") else json.dumps({"steps": 100} | {key: value}))
    folder = Folder(root)
    folder.refresh()
    json.dumps([folder.overview(), folder.detail("run")], allow_nan=False)


@pytest.mark.parametrize("kind", ["train", "episode", "evaluation"])
def test_integers_that_no_float_holds_are_no_numbers(tmp_path, kind):
    run = write_run(tmp_path / "run", steps=100)
    huge = 10**400
    rows = [
        {"kind": kind, "step": huge},
        {"kind": kind, "step": 5, "return": huge, "mean": huge, "length": huge},
    ]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    folder = Folder(tmp_path)
    folder.refresh()
    json.dumps([folder.overview(), folder.detail("run")], allow_nan=False)
    assert folder.runs["run"].metrics.damaged == 1
    assert len(read_run(run).rows) == len((run / "metrics.jsonl").read_text().splitlines()) - 1


def test_nothing_outside_the_folder_is_read(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    secret = write_run(outside / "secret", env="SECRET")
    root.mkdir()
    (root / "link").symlink_to(secret)
    run = write_run(root / "run")
    for name in ("config.json", "metrics.jsonl", "audit.jsonl"):
        (run / name).unlink()
        (run / name).symlink_to(secret / name)
    (root / "copied").mkdir()
    (root / "copied" / "config.json").symlink_to("/etc/passwd")
    folder = Folder(root)
    folder.refresh()
    assert list(folder.runs) == ["run"]
    text = json.dumps([folder.overview(), folder.detail("run")])
    assert "SECRET" not in text
    assert "leads out of the folder" in text
    assert folder.detail("run")["audits"][0]["total"] == 0


def test_names_of_any_bytes(tmp_path):
    odd = os.fsdecode(b"run-\xff\xfe")
    write_run(tmp_path / odd, steps=100)
    folder = Folder(tmp_path)
    folder.refresh()
    (name,) = folder.runs
    assert name == "run-\\xff\\xfe"
    name.encode()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux's list of locks")
def test_a_run_trains_while_its_lock_is_held(tmp_path):
    from rlpd_gx.loop.run_folder import Lock

    write_run(tmp_path / "run", steps=100)
    (tmp_path / "run" / "result.json").unlink()
    lock = Lock.take(tmp_path / "run")
    folder = Folder(tmp_path)
    folder.refresh()
    assert folder.overview()["runs"][0]["status"] == "training"
    del lock
    assert not is_locked(tmp_path / "run", held_locks())
    folder.refresh()
    assert folder.overview()["runs"][0]["status"] == "stopped"


def test_memory_does_not_grow_with_the_run(tmp_path):
    """Fifty thousand steps take what eight thousand take: what is kept is bounded, and so is the page."""
    sizes = []
    for steps in (8_000, 50_000):
        write_run(tmp_path / str(steps), steps=steps, log_every=10, episode=1_000, audit=False)
        folder = Folder(tmp_path / str(steps))
        folder.refresh()
        detail = folder.detail(str(steps))
        assert all(len(series["x"]) <= BUCKETS for series in detail["series"].values())
        sizes.append(len(json.dumps(detail)))
    assert sizes[1] < 2.5 * sizes[0]


def test_the_page_as_a_file(tmp_path):
    write_run(tmp_path / "a", seed=1, rules=("</script><script>alert(1)</script>",))
    write_run(tmp_path / "b", seed=2)
    one = write_page([tmp_path / "a"], tmp_path / "one.html").read_text()
    two = write_page([tmp_path / "a", tmp_path / "b"], tmp_path / "two.html").read_text()
    assert "<script>alert(1)" not in one
    assert one.count("<script") == two.count("<script") == 2
    assert "http://" not in one.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in one
    (tmp_path / "empty").mkdir()
    with pytest.raises(GxError, match="holds no run"):
        write_page([tmp_path / "empty"], tmp_path / "x.html")
