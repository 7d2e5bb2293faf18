"""Minari datasets, written by Minari itself."""

import json

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from torture._writers import minari_episode, write_minari

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import load

BOX = Box(-9, 9, (2,), np.float32)


def test_arrays(tmp_path):
    episodes = [
        minari_episode(0, 3, True, lives=np.array([3, 3, 2, 1])),
        minari_episode(1, 2, False, lives=np.array([3, 3, 3])),
    ]
    folder = write_minari(tmp_path, episodes, BOX, Discrete(3))
    data = load(folder)
    line = data.timeline
    line.check_episodes()
    assert (data.format, data.steps, data.episodes) == ("minari", 5, 2)
    assert line.observation.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2]]
    assert line.executed_action.tolist() == [0, 1, 2, 0, 0, 1, 0]
    assert line.reward.tolist() == [0, 1, 2, 0, 0, 1, 0]
    assert np.flatnonzero(line.terminated).tolist() == [2]
    assert np.flatnonzero(line.truncated).tolist() == [5]
    assert line.extras["infos/lives"].tolist() == [3, 2, 1, 0, 3, 3, 0]
    assert load(folder / "data").steps == 5


def test_dict_observations_and_what_a_guard_recorded(tmp_path):
    space = Dict({"position": BOX, "goal": Dict({"where": Box(0, 1, (1,), np.float32)})})
    whole = minari_episode(
        0,
        3,
        True,
        proposed_action=np.array([0, 2, 1, 2]),
        margin=np.array([np.nan, 0.5, -0.5, 0.25]),
        unsafe_event=np.array([False, False, False, True]),
        safe_set=np.array([[7], [3], [1], [7]], np.uint8),
    )
    whole["observations"] = {
        "position": whole["observations"],
        "goal": {"where": np.linspace(0, 1, 4, dtype=np.float32)[:, None]},
    }
    folder = write_minari(tmp_path, [whole], space, Discrete(3))
    metadata = folder / "data" / "metadata.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "rules_fingerprint": "abc"}))
    data = load(folder)
    line = data.timeline
    assert sorted(line.observation) == ["goal/where", "position"]
    assert line.observation["position"][:, 1].tolist() == [0, 1, 2, 3]
    assert line.proposed_action.tolist() == [2, 1, 2, 0]
    assert line.executed_action.tolist() == [0, 1, 2, 0]
    assert line.margin[:3].tolist() == [0.5, -0.5, 0.25]
    assert line.unsafe_event.tolist() == [False, False, True, False]
    assert line.safe_set.tolist() == [[7], [3], [1], [7]]
    assert data.rules_fingerprint == "abc"


def test_what_the_environment_says_is_used(tmp_path):
    env = gymnasium.make("CartPole-v1")
    length = env.spec.max_episode_steps
    flagged = minari_episode(0, length, True)
    flagged["observations"] = np.zeros((length + 1, 4), np.float32)
    flagged["actions"] = np.zeros(length, np.int64)
    data = load(write_minari(tmp_path, [flagged], None, None, env=env))
    assert data.env_id == "CartPole-v1"
    assert data.actions.count == 2
    assert f"--time-limit {length}" in data.findings[0]


def test_the_other_storage_of_minari(tmp_path):
    episodes = [minari_episode(0, 3, True), minari_episode(1, 2, False)]
    folder = write_minari(tmp_path, episodes, BOX, Discrete(3), data_format="arrow")
    assert load(folder).timeline.reward.tolist() == [0, 1, 2, 0, 0, 1, 0]


def test_lossy_pictures_are_said(tmp_path):
    pictures = minari_episode(0, 2, True)
    pictures["observations"] = np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3)).astype(np.uint8)
    space = Box(0, 255, (32, 32, 3), np.uint8)
    lossy = load(write_minari(tmp_path / "a", [pictures], space, Discrete(3)))
    assert "JPEG" in lossy.findings[0]
    exact = load(write_minari(tmp_path / "b", [pictures], space, Discrete(3), jpeg_encoding=False))
    assert exact.findings == ()
    assert (exact.timeline.observation == pictures["observations"]).all()


@pytest.mark.usefixtures("nothing_cached")
def test_bad_datasets(tmp_path):
    folder = write_minari(
        tmp_path, [minari_episode(0, 3, True), minari_episode(1, 2, False)], BOX, Discrete(3)
    )
    main = folder / "data" / "main_data.hdf5"
    whole = main.read_bytes()
    with h5py.File(main, "a") as file:
        file["episode_1/rewards"][1] = np.nan
    with pytest.raises(GxError, match="'rewards', row 4: is NaN"):
        load(folder)
    with h5py.File(main, "a") as file:
        del file["episode_1/rewards"]
        file["episode_1/rewards"] = [1.0]
    with pytest.raises(GxError, match="'episode_1/terminations'"):
        load(folder)
    with h5py.File(main, "a") as file:
        del file["episode_1/actions"]
    with pytest.raises(GxError, match="'episode_1': cannot be read"):
        load(folder)
    main.write_bytes(whole[:1000])
    with pytest.raises(GxError, match=r"test-v0.*again"):
        load(folder)
