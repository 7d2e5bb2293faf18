"""D4RL-style HDF5, written by h5py."""

import numpy as np
import pytest
from torture._writers import steps, write_hdf5

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import ActionRange, load


def test_episodes_keep_the_observation_after_their_last_step(tmp_path):
    columns = steps([3, 2], ["terminal", "timeout"])
    data = load(write_hdf5(tmp_path / "a.hdf5", columns, env_id="Toy-v0"))
    line = data.timeline
    line.check_episodes()
    assert (data.env_id, data.format, data.steps, data.episodes) == ("Toy-v0", "d4rl", 5, 2)
    assert line.observation.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2]]
    assert line.is_step.tolist() == [True, True, True, False, True, True, False]
    assert line.episode_step.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert line.reward.tolist() == [0, 1, 2, 0, 3, 4, 0]
    assert np.flatnonzero(line.terminated).tolist() == [2]
    assert np.flatnonzero(line.truncated).tolist() == [5]
    assert line.executed_action[:3, 0].tolist() == columns["actions"][:3, 0].tolist()
    assert data.findings == ()


def test_without_next_observations_nothing_is_invented(tmp_path):
    columns = steps([3, 3, 1], ["terminal", "timeout", "timeout"])
    del columns["next_observations"]
    data = load(write_hdf5(tmp_path / "a.hdf5", columns))
    data.timeline.check_episodes()
    # The terminal repeats its last observation, the cut episode loses its last step, one row alone is none.
    assert data.timeline.observation.tolist() == [[0, 0], [0, 1], [0, 2], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert data.timeline.reward.tolist() == [0, 1, 2, 0, 3, 4, 0]
    assert np.flatnonzero(data.timeline.terminated).tolist() == [2]
    assert np.flatnonzero(data.timeline.truncated).tolist() == [5]
    assert len(data.findings) == 2


def test_a_break_without_a_flag_is_a_border(tmp_path):
    columns = steps([3, 2], ["nothing", "timeout"])
    data = load(write_hdf5(tmp_path / "a.hdf5", columns))
    assert data.episodes == 2
    assert np.flatnonzero(data.timeline.truncated).tolist() == [2, 5]
    assert "row 2" in data.findings[0]


def test_episodes_told_apart_by_a_number_only(tmp_path):
    columns = steps([3, 2], ["nothing", "nothing"])
    del columns["terminals"], columns["timeouts"]
    columns["episode"] = np.array([8, 8, 8, 5, 5])
    data = load(write_hdf5(tmp_path / "a.hdf5", columns))
    assert np.flatnonzero(data.timeline.truncated).tolist() == [2, 5]
    assert not data.timeline.terminated.any()
    assert "each end is taken as a time limit" in data.findings[0]


def test_a_file_that_stops_inside_an_episode(tmp_path):
    data = load(write_hdf5(tmp_path / "a.hdf5", steps([3], ["nothing"])))
    assert np.flatnonzero(data.timeline.truncated).tolist() == [2]


def test_extras_are_kept_and_select(tmp_path):
    columns = steps([3, 2], ["terminal", "timeout"])
    columns["behaviour_iteration"] = np.array([0, 0, 20, 40, 20], np.int16)
    columns["infos/qpos"] = np.arange(10.0).reshape(5, 2)
    data = load(write_hdf5(tmp_path / "a.hdf5", columns))
    assert data.timeline.extras["infos/qpos"].shape == (7, 2)
    few = data.where("behaviour_iteration <= 20")
    few.timeline.check_episodes()
    assert few.timeline.observation.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2]]
    assert few.timeline.is_step.tolist() == [True, True, True, False, False, True, False]  # [1, 0] is history
    assert few.timeline.extras["step_in_episode"].tolist() == [0, 1, 2, 3, 0, 1, 2]
    first = data.where("behaviour_iteration==0").timeline
    assert first.observation.tolist() == [[0, 0], [0, 1], [0, 2]]
    assert first.truncated.tolist() == [False, True, False]  # cut, not terminal
    assert first.reward.tolist() == [0, 1, 0]
    assert load(tmp_path / "a.hdf5", where=["behaviour_iteration > 0", "behaviour_iteration < 40"]).steps == 2


def test_pieces_of_one_episode_keep_their_history(tmp_path):
    columns = steps([10], ["terminal"])
    columns["good"] = np.array([0, 1, 1, 0, 0, 0, 0, 1, 0, 1])
    line = load(write_hdf5(tmp_path / "a.hdf5", columns), where=["good == 1"]).timeline
    line.check_episodes()
    # Up to 3 rows before each piece, its steps, its final observation; a row may serve in two pieces.
    assert line.observation[:, 1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8, 9, 10]
    assert np.flatnonzero(line.is_step).tolist() == [1, 2, 7, 12]
    assert line.episode_step.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert np.flatnonzero(line.truncated).tolist() == [2, 7]
    assert np.flatnonzero(line.terminated).tolist() == [12]
    assert line.reward.tolist() == [0, 1, 2, 0, 0, 0, 0, 7, 0, 0, 0, 0, 9, 0]
    before = line.executed_action[np.flatnonzero(line.is_step) - 1, 0]
    assert before.tolist() == columns["actions"][[0, 1, 6, 8], 0].tolist()


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("nonsense", "name <= number"),
        ("nobody <= 3", "no column 'nobody'"),
        ("reward <= much", "'much'"),
        ("reward < -5", "no step is left"),
    ],
)
def test_a_condition_that_cannot_be_used(tmp_path, condition, sentence):
    path = write_hdf5(tmp_path / "a.hdf5", steps([3], ["terminal"]))
    with pytest.raises(GxError, match=sentence):
        load(path, where=[condition])


def test_a_mapping_renames(tmp_path):
    columns = steps([3], ["terminal"])
    columns["obs"] = columns.pop("observations")
    path = write_hdf5(tmp_path / "a.hdf5", columns)
    assert load(path, options={"mapping": {"observations": "obs"}}).steps == 3
    with pytest.raises(GxError, match="'nowhere'"):
        load(path, options={"mapping": {"observations": "nowhere"}})
    with pytest.raises(GxError, match="no option 'colour'"):
        load(path, options={"colour": "red"})


def spoiled(name, row, value):
    columns = steps([3, 2], ["terminal", "timeout"])
    columns[name][row] = value
    return columns


def without(name):
    columns = steps([3, 2], ["terminal", "timeout"])
    del columns[name]
    return columns


def shorter(name):
    columns = steps([3, 2], ["terminal", "timeout"])
    columns[name] = columns[name][:-1]
    return columns


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (spoiled("rewards", 3, np.nan), ("'rewards', row 3", "NaN")),
        (spoiled("rewards", 1, np.inf), ("'rewards', row 1", "infinite")),
        (spoiled("observations", (4, 0), np.nan), ("'observations', row 4", "NaN")),
        (spoiled("next_observations", (4, 1), np.nan), ("'next_observations', row 4", "NaN")),
        (spoiled("actions", (2, 0), np.inf), ("'actions', row 2", "infinite")),
        (without("rewards"), ("'rewards'", "missing")),
        (without("terminals"), ("'terminals'", "missing")),
        (shorter("actions"), ("'actions', row 4", "4 rows", "5")),
        (shorter("next_observations"), ("'next_observations', row 4",)),
    ],
)
def test_bad_values_name_file_field_and_row(tmp_path, columns, parts):
    path = write_hdf5(tmp_path / "bad.hdf5", columns)
    with pytest.raises(GxError) as error:
        load(path)
    for part in (str(path), *parts):
        assert part in str(error.value)


@pytest.mark.usefixtures("nothing_cached")
def test_a_cut_file(tmp_path):
    whole = write_hdf5(tmp_path / "whole.hdf5", steps([300], ["terminal"])).read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GxError, match=r"cut\.hdf5.*download"):
        load(tmp_path / "cut.hdf5")


def test_actions_out_of_range_are_reported_and_clipped_only_on_request(tmp_path):
    columns = spoiled("actions", (2, 0), 1.37)
    path = write_hdf5(tmp_path / "human.hdf5", columns)
    allowed = ActionRange(low=np.array([-1.0]), high=np.array([1.0]))
    as_recorded = load(path, actions=allowed)
    assert as_recorded.timeline.executed_action.max() == np.float32(1.37)
    (finding,) = as_recorded.findings
    assert f"{path}: 'actions', row 2" in finding
    assert "--clip-actions" in finding
    clipped = load(path, actions=allowed, clip_actions=True)
    assert clipped.timeline.executed_action.max() == 1
    assert "clipped as asked" in clipped.findings[0]
    with pytest.raises(GxError, match="range is known"):
        load(path, clip_actions=True)


@pytest.mark.usefixtures("nothing_cached")
def test_ids_that_are_no_actions(tmp_path):
    columns = steps([3, 2], ["terminal", "timeout"])
    columns["actions"] = np.array([0, 1, 2, 7, 1])
    path = write_hdf5(tmp_path / "a.hdf5", columns)
    with pytest.raises(GxError, match="'actions', row 3: is 7"):
        load(path, actions=ActionRange(count=3))


def test_a_time_limit_flagged_as_terminal(tmp_path):
    path = write_hdf5(tmp_path / "a.hdf5", steps([50, 50, 20, 50], ["terminal"] * 4))
    data = load(path)
    assert np.count_nonzero(data.timeline.terminated) == 4
    (finding,) = data.findings
    assert f"{path}: 'terminals', row 49" in finding
    assert "--time-limit 50" in finding
    corrected = load(path, time_limit_steps=50)
    assert np.count_nonzero(corrected.timeline.terminated) == 1
    assert np.count_nonzero(corrected.timeline.truncated) == 3


def test_another_environment(tmp_path):
    import gymnasium

    data = load(write_hdf5(tmp_path / "a.hdf5", steps([3], ["terminal"]), env_id="Toy-v0"))
    box = gymnasium.spaces.Box
    right = box(-1, 1, (2,)), box(-1, 1, (1,))
    data.check_environment("Toy-v0", *right)
    with pytest.raises(GxError, match="'env_id' is Toy-v0, not Other-v1"):
        data.check_environment("Other-v1", *right)
    with pytest.raises(GxError, match=r"'observations'.*shape"):
        data.check_environment("Toy-v0", box(-1, 1, (3,)), right[1])
    with pytest.raises(GxError, match=r"'actions'.*shape"):
        data.check_environment("Toy-v0", right[0], gymnasium.spaces.Discrete(4))
    nested = gymnasium.spaces.Dict({"a": gymnasium.spaces.Dict({"b": right[0]})})
    with pytest.raises(GxError, match="'a/b'"):
        data.check_environment("Toy-v0", nested, right[1])
