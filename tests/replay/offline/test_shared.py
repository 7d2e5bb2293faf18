"""The readers on data that nobody here wrote."""

import gzip
import json

import h5py
import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import ActionRange, audit, load

pytestmark = pytest.mark.shared
UNIT = ActionRange(low=np.full(28, -1.0), high=np.full(28, 1.0))


@pytest.mark.parametrize(
    ("name", "env_id", "steps", "episodes"),
    [
        ("hopper-v5-ladder", "Hopper-v5", 75_994, 197),
        ("halfcheetah-v5-ladder", "HalfCheetah-v5", 52_000, 52),
        ("adroit-door-human", "AdroitHandDoor-v1", 6_704, 25),
        ("adroit-door-expert", "AdroitHandDoor-v1", 4_000, 20),
        ("adroit-pen-mixed", "AdroitHandPen-v1", 10_000, 50),
    ],
)
def test_hdf5(shared_data, name, env_id, steps, episodes):
    path = shared_data / f"{name}.hdf5"
    data = load(path)
    line = data.timeline
    line.check_episodes()
    assert (data.env_id, data.steps, data.episodes) == (env_id, steps, episodes)
    at = np.flatnonzero(line.is_step)
    with h5py.File(path) as file:
        assert (line.observation[at] == file["observations"][:]).all()
        assert (line.observation[at + 1] == file["next_observations"][:]).all()
        assert (line.executed_action[at] == file["actions"][:]).all()
        assert (line.reward[at] == file["rewards"][:]).all()
        assert (line.terminated[at] == file["terminals"][:]).all()
        assert (line.truncated[at] == file["timeouts"][:]).all()
        for extra, column in line.extras.items():
            assert (column[at] == file[extra][:]).all()
    assert data.findings == ()


def test_the_ladder_can_be_cut(shared_data):
    data = load(shared_data / "hopper-v5-ladder.hdf5", where=["behaviour_iteration <= 20"])
    data.timeline.check_episodes()
    assert data.timeline.extras["behaviour_iteration"].max() == 20
    assert audit(data)["episode_return"]["max"] < 1000  # weak policies only


def test_people_leave_the_range(shared_data):
    path = shared_data / "adroit-door-human.hdf5"
    data = load(path, actions=UNIT)
    assert any("'actions', row" in finding for finding in data.findings)
    assert data.timeline.executed_action.max() == pytest.approx(1.366, abs=1e-3)
    assert audit(data)["actions_out_of_range_steps"] > 0
    clipped = load(path, actions=UNIT, clip_actions=True)
    assert (clipped.timeline.executed_action.min(), clipped.timeline.executed_action.max()) == (-1, 1)
    assert audit(clipped)["actions_out_of_range_steps"] == 0


@pytest.mark.parametrize(
    ("game", "episodes", "lowest", "highest"), [("pong", 10, 14, 21), ("breakout", 12, 51, 134)]
)
def test_action_logs_reproduce_every_reward_and_life(shared_data, game, episodes, lowest, highest):
    path = shared_data / f"{game}-actions.json.gz"
    data = load(path)  # any reward or life that differs would raise
    data.timeline.check_episodes()
    report = audit(data)
    assert data.episodes == episodes
    assert (report["episode_return"]["min"], report["episode_return"]["max"]) == (lowest, highest)
    recorded = json.loads(gzip.decompress(path.read_bytes()))["episodes"]
    at = data.timeline.is_step
    assert data.timeline.reward[at].tolist() == [r for episode in recorded for r in episode["rewards"]]
    lives = [n for episode in recorded for n in episode["lives"][1:]]
    assert data.timeline.extras["lives"][at].tolist() == lives


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_one_wrong_entry_in_an_action_log_is_caught(shared_data, tmp_path, game):
    log = json.loads(gzip.decompress((shared_data / f"{game}-actions.json.gz").read_bytes()))
    log["episodes"] = log["episodes"][:1]
    log["episodes"][0]["rewards"][700] += 1
    path = tmp_path / "spoiled.json.gz"
    path.write_bytes(gzip.compress(json.dumps(log).encode()))
    with pytest.raises(GxError, match=r"spoiled\.json\.gz: 'rewards', episode 0, step 700"):
        load(path)
