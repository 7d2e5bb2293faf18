"""Action logs: a short one recorded here with Gymnasium, replayed by the reader."""

import gzip
import json

import gymnasium
import numpy as np
import pytest

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import LiveSafeSets, load
from rlpd_gx.replay.offline.cache import cache_root
from rlpd_gx.safe_sets import Box

KWARGS = {"frameskip": 4, "repeat_action_probability": 0.0, "full_action_space": False}
STEPS = 220  # long enough for a random player of Breakout to lose a life


@pytest.fixture(scope="module")
def recorded():
    """(log, RAM seen [episode][T + 1, 128])."""
    import ale_py

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = gymnasium.make("ALE/Breakout-v5", obs_type="ram", **KWARGS)
    ids = [action.value for action in env.unwrapped._action_set]
    rng = np.random.default_rng(0)
    episodes, seen = [], []
    for seed in (3, 4):
        ram, info = env.reset(seed=seed)
        record = {"seed": seed, "ale_actions": [], "rewards": [], "lives": [info["lives"]]}
        frames, terminated = [ram], False
        while len(record["rewards"]) < STEPS and not terminated:
            action = int(rng.integers(len(ids)))
            ram, reward, terminated, _, info = env.step(action)
            record["ale_actions"].append(ids[action])
            record["rewards"].append(reward)
            record["lives"].append(info["lives"])
            frames.append(ram)
        episodes.append({**record, "terminated": terminated, "truncated": not terminated})
        seen.append(np.array(frames))
    return {"env_id": "ALE/Breakout-v5", "kwargs": KWARGS, "episodes": episodes}, seen


def write(path, log):
    path.write_bytes(gzip.compress(json.dumps(log).encode()))
    return path


def copy(log):
    return json.loads(json.dumps(log))


def test_the_replay_restores_what_was_seen(tmp_path, recorded):
    log, seen = recorded
    data = load(write(tmp_path / "log.json.gz", log))
    line = data.timeline
    line.check_episodes()
    assert (data.format, data.env_id, data.actions.count) == ("action_log", "ALE/Breakout-v5", 4)
    assert (line.observation == np.concatenate(seen)).all()
    assert line.executed_action.max() == 3  # indices of the minimal set, not ALE ids
    lives = np.array(log["episodes"][0]["lives"])
    assert lives.min() < lives.max(), "the log is too short to prove anything about lives"
    first = slice(0, len(lives) - 1)
    assert (line.extras["lives"][first] == lives[1:]).all()
    assert (line.unsafe_event[first] == (np.diff(lives) < 0)).all()


def test_each_life_can_be_an_episode_with_clipped_rewards(tmp_path, recorded):
    log = copy(recorded[0])
    for record in log["episodes"]:  # the replay must see what was recorded: Breakout's rewards are 1 at first
        assert max(record["rewards"]) > 0
    path = write(tmp_path / "log.json.gz", log)
    whole = load(path).timeline
    lives = load(path, options={"life_loss_ends": True, "clip_rewards": True}).timeline
    lives.check_episodes()
    lost = [np.diff(record["lives"]) < 0 for record in log["episodes"]]
    assert sum(map(np.count_nonzero, lost)) > 1
    steps, whole_steps = lives.is_step, whole.is_step
    assert (lives.terminated[steps] == (np.concatenate(lost) | whole.terminated[whole_steps])).all()
    assert (lives.reward[steps] == np.sign(whole.reward[whole_steps])).all()
    for name in ("observation", "executed_action", "unsafe_event"):
        assert (getattr(lives, name)[steps] == getattr(whole, name)[whole_steps]).all()


def test_pixels_and_both(tmp_path, recorded):
    log = copy(recorded[0])
    log["episodes"] = log["episodes"][:1]
    path = write(tmp_path / "log.json.gz", log)
    pixels = load(path, options={"observation": "pixels"}).timeline.observation
    both = load(path, options={"observation": "both"}).timeline.observation
    assert pixels.shape[1:] == (84, 84)
    assert pixels.dtype == np.uint8
    assert len(np.unique(pixels.reshape(len(pixels), -1), axis=0)) > 50
    assert (both["pixels"] == pixels).all()
    assert (both["ram"] == recorded[1][0]).all()
    with pytest.raises(GxError, match="one of: ram, pixels, both"):
        load(path, options={"observation": "sound"})


def test_safe_sets_come_from_the_live_emulator(tmp_path, recorded):
    path = write(tmp_path / "log.json.gz", recorded[0])

    def frames(env, action):  # something only the emulator knows, and not always
        number = env.unwrapped.ale.getEpisodeFrameNumber()
        return None if number == 8 else Box(np.array([number]), np.array([number]))

    data = load(path, live_safe_sets=LiveSafeSets(frames, "frames-v1"))
    assert (data.rules_fingerprint, data.safe_set_spec) == ("frames-v1", {"kind": "box", "dimension": 1})
    assert (data.has_safe_set == (data.timeline.episode_step != 2)).all()
    at = data.timeline.is_step & data.has_safe_set  # a game can end inside the last four frames
    assert (data.timeline.safe_set[at, 0] == 4 * data.timeline.episode_step[at]).all()
    assert load(path).rules_fingerprint is None
    assert len(list(cache_root().iterdir())) == 2


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize(
    ("field", "step", "value", "sentence"),
    [
        ("rewards", 100, 50.0, "'rewards', episode 1, step 100: 50.0 was recorded, the replay gives"),
        ("lives", 31, 2, "'lives', episode 1, step 30: 2 was recorded, the replay gives 5"),
        ("ale_actions", 60, 17, "'ale_actions', episode 1, step 60: 17 is no action"),
    ],
)
def test_a_spoiled_log_is_caught_at_its_step(tmp_path, recorded, field, step, value, sentence):
    log = copy(recorded[0])
    log["episodes"][1][field][step] = value
    with pytest.raises(GxError, match=sentence):
        load(write(tmp_path / "log.json.gz", log))


@pytest.mark.usefixtures("nothing_cached")
def test_a_replay_that_takes_another_course_is_caught(tmp_path, recorded):
    """Other actions, all legal: the recorded lives or rewards cannot come out by chance."""
    log = copy(recorded[0])
    log["episodes"][0]["ale_actions"] = [0] * len(log["episodes"][0]["ale_actions"])
    with pytest.raises(GxError, match="episode 0, step"):
        load(write(tmp_path / "log.json.gz", log))


@pytest.mark.usefixtures("nothing_cached")
def test_bad_logs(tmp_path, recorded):
    path = write(tmp_path / "log.json.gz", recorded[0])
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(GxError, match=r"log\.json\.gz: the gzip stream is cut short"):
        load(path)
    for change, sentence in (
        ({"env_id": None}, "'env_id': is missing"),
        ({"env_id": "os:Nothing-v5"}, "'env_id': is 'os:Nothing-v5'; only ALE"),
        ({"env_id": "ALE/Nothing-v5"}, "'env_id': cannot be made"),
        ({"kwargs": {"frameskip": [2, 5]}}, "'kwargs': has no fixed frameskip"),
    ):
        log = {**copy(recorded[0]), **change}
        log = {name: value for name, value in log.items() if value is not None}
        with pytest.raises(GxError, match=sentence):
            load(write(path, log))
    log = copy(recorded[0])
    del log["episodes"][1]["rewards"][-1]
    with pytest.raises(GxError, match="'rewards', row episode 1: has 219 entries, not 220"):
        load(write(path, log))
    del log["episodes"][1]["rewards"]
    with pytest.raises(GxError, match="'rewards', row episode 1: is missing"):
        load(write(path, log))
