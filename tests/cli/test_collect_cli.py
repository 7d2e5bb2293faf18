"""`rlpd-gx collect`: what it writes is what was played."""

import gzip
import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from rlpd_gx.replay.offline import load
from rlpd_gx.replay.offline.record import MinariSink, Recorder, roll_out


def lean_left(observation):
    """A policy for CartPole."""
    return int(observation[2] > 0)


@pytest.fixture(autouse=True)
def this_module_is_importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "my_policies", sys.modules[__name__])


def test_random_episodes_are_repeatable(command, tmp_path):
    for name in ("a", "b"):
        code, out, _ = command("collect", "CartPole-v1", tmp_path / name, "--episodes", 3, "--seed", 7)
        assert code == 0
        assert "in 3 episodes" in out
    first, second = load(tmp_path / "a"), load(tmp_path / "b")
    assert first.env_id == "CartPole-v1"
    assert (first.timeline.observation == second.timeline.observation).all()
    assert (first.timeline.executed_action == second.timeline.executed_action).all()
    assert len(np.unique(first.timeline.executed_action[first.timeline.is_step])) == 2
    # Another seed, another course; and the recorded start is the one that seed gives.
    env = gymnasium.make("CartPole-v1")
    starts = first.timeline.observation[first.timeline.episode_step == 0]
    assert (starts == [env.reset(seed=7 + k)[0] for k in range(3)]).all()


def test_the_dataset_is_one_minari_opens(command, tmp_path):
    import minari

    command("collect", "Pendulum-v1", tmp_path / "pendulum", "--steps", 250)
    dataset = minari.MinariDataset(tmp_path / "pendulum" / "data")
    assert (dataset.total_steps, dataset.total_episodes) == (250, 2)
    assert dataset.env_spec.id == "Pendulum-v1"
    data = load(tmp_path / "pendulum")
    assert np.flatnonzero(data.timeline.truncated).tolist() == [199, 250]  # its limit, and ours


def test_a_function_and_epsilons_that_take_turns(command, tmp_path):
    options = ("--policy", "my_policies:lean_left", "--epsilon", 0, "--epsilon", 1, "--episodes", 4)
    assert command("collect", "CartPole-v1", tmp_path / "mixed", *options)[0] == 0
    line = load(tmp_path / "mixed").timeline
    follows = line.executed_action == (line.observation[:, 2] > 0)
    episode = np.cumsum(line.episode_step == 0) - 1
    shares = [follows[line.is_step & (episode == k)].mean() for k in range(4)]
    assert (shares[0], shares[2]) == (1, 1)
    assert max(shares[1], shares[3]) < 1


def test_an_sb3_model_acts(command, tmp_path):
    from stable_baselines3 import PPO

    PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, device="cpu").save(tmp_path / "model.zip")
    options = ("--policy", tmp_path / "model.zip", "--steps", 30)
    assert command("collect", "CartPole-v1", tmp_path / "played", *options)[0] == 0
    assert load(tmp_path / "played").steps == 30


def test_what_a_learner_saw(command, tmp_path):
    code, out, _ = command(
        "collect", "CartPole-v1", tmp_path / "seen", "--policy", "learn:DQN", "--steps", 60
    )
    assert code == 0
    assert out.startswith("60 steps")
    assert load(tmp_path / "seen").steps == 60


def test_an_action_log_replays(command, tmp_path):
    log = tmp_path / "breakout.json.gz"
    kwargs = ("--env-kwargs", '{"obs_type": "ram"}')
    options = ("--format", "action-log", "--steps", 250, *kwargs)
    assert command("collect", "ALE/Breakout-v5", log, *options)[0] == 0
    written = json.loads(gzip.decompress(log.read_bytes()))
    assert written["kwargs"]["repeat_action_probability"] == 0
    assert min(min(episode["lives"]) for episode in written["episodes"]) < 5
    data = load(log)  # every reward and life is compared
    assert data.steps == 250
    assert command("collect", "ALE/Breakout-v5", tmp_path / "frames", "--steps", 250, *kwargs)[0] == 0
    played = load(tmp_path / "frames")
    assert (played.timeline.observation == data.timeline.observation).all()
    assert (played.timeline.unsafe_event == data.timeline.unsafe_event).all()
    assert played.timeline.unsafe_event.any()


class HalfTorque(gymnasium.Wrapper):
    """A guard of the simplest kind, reporting as a guarded environment does."""

    def step(self, action):
        executed = np.clip(action, -1, 1)
        observation, reward, terminated, truncated, info = self.env.step(executed)
        margins = {"torque": float(1 - np.abs(action).max())}
        info["guardian"] = SimpleNamespace(proposed=action, action=executed, margins=margins)
        return observation, reward, terminated, truncated, info


def test_a_guarded_environment_leaves_both_actions(tmp_path, monkeypatch):
    monkeypatch.setenv("RLPD_GX_CACHE", str(tmp_path / "cache"))
    env = HalfTorque(gymnasium.make("Pendulum-v1"))
    sink = MinariSink(tmp_path / "guarded", env, {})
    recorder = Recorder(env, sink, seed=0)
    roll_out(recorder, lambda observation: env.action_space.sample(), np.random.default_rng(0), steps=50)
    sink.close()
    line = load(tmp_path / "guarded").timeline
    at = line.is_step
    assert np.abs(line.proposed_action[at]).max() > 1
    assert (line.executed_action[at] == np.clip(line.proposed_action[at], -1, 1)).all()
    assert np.allclose(line.margin[at], 1 - np.abs(line.proposed_action[at])[:, 0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("CartPole-v1",), "--episodes or --steps"),
        (("Nowhere-v0", "--steps", 5), "Nowhere-v0 cannot be made"),
        (("CartPole-v1", "--steps", 5, "--policy", "."), "saved runs cannot act yet"),
        (("CartPole-v1", "--steps", 5, "--policy", "genius"), "'genius' is not known"),
        (("CartPole-v1", "--steps", 5, "--policy", "my_policies:nothing"), "module:name"),
        (("CartPole-v1", "--steps", 5, "--policy", "absent.zip"), "not a model saved by SB3"),
        (("CartPole-v1", "--episodes", 5, "--policy", "learn:DQN"), "--steps"),
        (("CartPole-v1", "--steps", 5, "--policy", "learn:MAGIC"), "learn:MAGIC is not known"),
        (("CartPole-v1", "--steps", 5, "--format", "action-log"), "needs an Atari environment"),
        (("CartPole-v1", "--steps", 5, "--env-kwargs", "[1]"), "JSON object"),
        (("CartPole-v1", "--steps", 5, "--rules", "nowhere:rules"), "'nowhere:rules' cannot be loaded"),
        (
            (
                *("ALE/Pong-v5", "--steps", 5, "--format", "action-log"),
                *("--env-kwargs", '{"repeat_action_probability": 0.25}'),
            ),
            "deterministic",
        ),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(command, tmp_path, arguments, sentence):
    (tmp_path / "here").mkdir()
    code, _, err = command("collect", arguments[0], tmp_path / "here" / "out", *arguments[1:])
    assert code == 2
    assert sentence in err
    assert list((tmp_path / "here").iterdir()) == []


def test_nothing_is_overwritten(command, tmp_path):
    (tmp_path / "out").mkdir()
    code, _, err = command("collect", "CartPole-v1", tmp_path / "out", "--steps", 5)
    assert code == 2
    assert "exists already" in err
