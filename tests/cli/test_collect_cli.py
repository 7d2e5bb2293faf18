"""`rlpd-gx collect`: what it writes is what was played."""

import gzip
import json
import sys
import types
import warnings

import gymnasium
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.replay.offline import audit, load, record, with_safe_sets


def push(observation):
    return 1


def short(observation):
    return np.zeros(3, np.float32)


def not_a_number(observation):
    return np.array([np.nan, 0], np.float32)


def broken(observation):
    raise ValueError("gripper")


class Faulty(gymnasium.Env):
    """Two numbers; what is named in `fault` is wrong in the seventh step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, fault=""):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3 if self.fault == "reset" else 2, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation, reward = np.zeros(2, np.float32), 0.0
        if self.steps == 7:
            observation = {
                "nan": np.array([0, np.nan], np.float32),
                "infinite": np.array([0, np.inf], np.float32),
                "shape": np.zeros((1, 2), np.float32),
                "type": np.zeros(2, complex),
                "parts": {"a": np.zeros(2, np.float32)},
            }.get(self.fault, observation)
            reward = {"reward": np.nan, "nothing": None}.get(self.fault, reward)
        return observation, reward, False, self.steps >= 10, {}


class Whole(Faulty):
    """Says that its observations are whole numbers, which they are not."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.int64)


nothing_allowed = gx.bounds_rule(lambda state: (np.ones(2), -np.ones(2)), name="nothing allowed")


def lean_left(observation):
    """A policy for CartPole."""
    return int(observation[2] > 0)


@pytest.fixture(autouse=True)
def this_module_is_importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_policies", sys.modules[__name__])


def test_random_episodes_are_repeatable(command, tmp_path):
    for name in ("a", "b"):
        where = ("--env", "CartPole-v1", "--out", tmp_path / name)
        code, out, _ = command("collect", *where, "--episodes", 3, "--seed", 7)
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

    command("collect", "--env", "Pendulum-v1", "--out", tmp_path / "pendulum", "--steps", 250)
    dataset = minari.MinariDataset(tmp_path / "pendulum" / "data")
    assert (dataset.total_steps, dataset.total_episodes) == (250, 2)
    assert dataset.env_spec.id == "Pendulum-v1"
    data = load(tmp_path / "pendulum")
    assert np.flatnonzero(data.timeline.truncated).tolist() == [199, 250]  # its limit, and ours


def test_a_function_and_epsilons_that_take_turns(command, tmp_path):
    options = ("--policy", "my_policies:lean_left", "--epsilon", 0, "--epsilon", 1, "--episodes", 4)
    assert command("collect", "--env", "CartPole-v1", "--out", tmp_path / "mixed", *options)[0] == 0
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
    assert command("collect", "--env", "CartPole-v1", "--out", tmp_path / "played", *options)[0] == 0
    assert load(tmp_path / "played").steps == 30


def test_what_a_learner_saw(command, tmp_path):
    code, out, _ = command(
        "collect", "--env", "CartPole-v1", "--out", tmp_path / "seen", "--policy", "learn:DQN", "--steps", 60
    )
    assert code == 0
    assert out.startswith("60 steps")
    assert load(tmp_path / "seen").steps == 60


def test_an_action_log_replays(command, tmp_path):
    log = tmp_path / "breakout.json.gz"
    kwargs = ("--env-kwargs", '{"obs_type": "ram"}')
    options = ("--format", "action-log", "--steps", 250, *kwargs)
    assert command("collect", "--env", "ALE/Breakout-v5", "--out", log, *options)[0] == 0
    written = json.loads(gzip.decompress(log.read_bytes()))
    assert written["kwargs"]["repeat_action_probability"] == 0
    assert min(min(episode["lives"]) for episode in written["episodes"]) < 5
    data = load(log)  # every reward and life is compared
    assert data.steps == 250
    options = ("--steps", 250, *kwargs)
    assert command("collect", "--env", "ALE/Breakout-v5", "--out", tmp_path / "frames", *options)[0] == 0
    played = load(tmp_path / "frames")
    assert (played.timeline.observation == data.timeline.observation).all()
    assert (played.timeline.unsafe_event == data.timeline.unsafe_event).all()
    assert played.timeline.unsafe_event.any()


@gx.bounds_rule
def half_torque(state):
    """A rule for Pendulum-v1."""
    return np.array([-1.0]), np.array([1.0])


def unsafe_event(observation, reward, terminated, truncated, info):
    return observation[0] < 0  # hanging down


def test_a_guarded_environment_leaves_both_actions(command, tmp_path):
    options = ("--rules", "my_policies:half_torque", "--steps", 250)
    assert command("collect", "--env", "Pendulum-v1", "--out", tmp_path / "guarded", *options)[0] == 0
    data = load(tmp_path / "guarded")
    line, at = data.timeline, data.timeline.is_step
    assert np.abs(line.proposed_action[at]).max() > 1.5
    assert (line.executed_action[at] == np.clip(line.proposed_action[at], -1, 1)).all()
    inside = at & (np.abs(line.proposed_action[:, 0]) < 1)
    assert np.allclose(line.margin[inside], 1 - np.abs(line.executed_action[inside, 0]), atol=1e-6)
    assert (line.margin[at & ~inside] == 0).all()  # moved to the boundary
    after = np.flatnonzero(at) + 1
    assert (line.unsafe_event[at] == (line.observation[after, 0] < 0)).all()


@gx.bounds_rule(batched=True, needs=("previous_action",))
def slow_torque(states, previous_action):
    """A rule for Pendulum-v1: the torque may change by 0.5 a step."""
    return previous_action - 0.5, previous_action + 0.5


def test_the_guardian_and_the_stored_states_agree_on_safe_sets(command, tmp_path):
    """What offline rows get from their stored context is what the Guardian saw when they were made."""
    options = ("--rules", "my_policies:slow_torque", "--steps", 250)
    with pytest.warns(UserWarning, match="previous action"):
        assert command("collect", "--env", "Pendulum-v1", "--out", tmp_path / "slow", *options)[0] == 0
    data = load(tmp_path / "slow")
    guardian = gx.Guardian(gymnasium.make("Pendulum-v1").action_space, slow_torque)

    def encode(states, context):
        seen = gx.Context(context["previous_action"], context["episode_step"])
        return guardian.safe_sets(states, context=seen).encode()

    data = with_safe_sets(data, encode, guardian.fingerprint)
    line = data.timeline
    spec = guardian.safe_sets(line.observation[:1], context=gx.Context(np.zeros((1, 1)))).spec
    sets = gx.decode(line.safe_set, spec)
    at = np.flatnonzero(line.is_step)
    assert sets[at].contains(line.executed_action[at]).all()
    moved = at[(line.proposed_action[at] != line.executed_action[at])[:, 0]]
    assert len(moved) > 50
    assert not sets[moved].contains(line.proposed_action[moved]).any()
    pieces = with_safe_sets(data.where("reward > -3"), encode, "computed from pieces").timeline
    assert (pieces.is_step & (pieces.episode_step > 0)).any()
    cut = np.flatnonzero(pieces.is_step)
    assert gx.decode(pieces.safe_set, spec)[cut].contains(pieces.executed_action[cut]).all()


@gx.bounds_rule(batched=True, needs=("time",))
def ever_less(states, time):
    """A rule for Pendulum-v1."""
    limit = 1 / (1 + np.asarray(time))[:, None]
    return -limit, limit


def test_a_guarded_collection_brings_its_safe_sets(command, tmp_path):
    for rule in (slow_torque, ever_less):
        folder = tmp_path / rule.name
        options = ("--rules", f"my_policies:{rule.name}", "--steps", 250)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "a rule reads the previous action")
            assert command("collect", "--env", "Pendulum-v1", "--out", folder, *options)[0] == 0
        data = load(folder)
        line = data.timeline
        guardian = gx.Guardian(gymnasium.make("Pendulum-v1").action_space, rule)
        previous = np.roll(line.executed_action, 1, axis=0)
        previous[line.episode_step == 0] = 0
        context = gx.Context(previous, line.episode_step)
        expected = guardian.safe_sets(line.observation, context=context)
        assert data.safe_set_spec == expected.spec
        assert (line.safe_set == expected.encode()).all()
        assert len(np.unique(line.safe_set[~line.is_step], axis=0)) == 2  # the final ones are no blanks
        assert with_safe_sets(data, None, guardian.fingerprint) is data
        changed = gx.Guardian(guardian.action_space, half_torque)
        with pytest.raises(
            gx.GxError, match=f"other rules .{guardian.fingerprint}, not {changed.fingerprint}"
        ):
            with_safe_sets(data, None, changed.fingerprint)


def test_safe_sets_of_the_simulator(command, tmp_path):
    options = ("--rules", "rlpd_gx.envs.mujoco:power", "--steps", 60)
    assert command("collect", "--env", "Hopper-v5", "--out", tmp_path / "hopper", *options)[0] == 0
    data = load(tmp_path / "hopper")
    line = data.timeline
    assert data.episodes > 1
    velocity = gx.decode(line.safe_set, data.safe_set_spec).parts[1].w
    observed = line.observation[:, 8:11]
    assert (np.clip(velocity, -10, 10) == observed).all()  # in the final states as well


@gx.rule
def gentle(state, action):
    return bool(np.abs(action).max() < 0.5)


def test_rules_without_a_finite_description_store_the_state_they_are_asked_from(command, tmp_path):
    options = ("--rules", "my_policies:gentle", "--steps", 5)
    assert command("collect", "--env", "Pendulum-v1", "--out", tmp_path / "gentle", *options)[0] == 0
    data = load(tmp_path / "gentle")
    assert data.safe_set_spec["kind"] == "asked"
    line = data.timeline
    sets, steps = gx.decode(line.safe_set, data.safe_set_spec)[line.is_step], line.is_step
    assert sets.contains(line.executed_action[steps]).all()
    assert not sets.contains(np.full((steps.sum(), 1), 2.0, np.float32)).any()


@gx.mask_rule
def sensor(state):
    """A rule for CartPole-v1 that cannot be asked beyond an angle."""
    if abs(state[2]) > 0.1:
        raise RuntimeError("the sensor is broken")
    return np.array([True, True])


@gx.mask_rule
def never(state):
    raise RuntimeError("no answer")


def test_a_step_that_the_guardian_refused_is_not_recorded(command, tmp_path):
    options = ("--rules", "my_policies:sensor", "--policy", "my_policies:push", "--episodes", 3)
    assert command("collect", "--env", "CartPole-v1", "--out", tmp_path / "stopped", *options)[0] == 0
    line = load(tmp_path / "stopped").timeline
    line.check_episodes()
    assert np.count_nonzero(line.truncated) == 3
    # Every recorded step began where the rule could still be asked, and the last one led where it could not.
    assert (np.abs(line.observation[line.is_step, 2]) <= 0.1).all()
    assert (np.abs(line.observation[~line.is_step, 2]) > 0.1).all()
    # So its safe set there is unknown, which no later load overlooks.
    data = load(tmp_path / "stopped")
    assert audit(data)["safe_sets"]["missing_rows"] == 3
    with pytest.raises(gx.GxError, match="could not be asked when it was recorded"):
        with_safe_sets(data, None, data.rules_fingerprint)
    left = with_safe_sets(data, None, data.rules_fingerprint, missing="drop")
    assert left.steps == data.steps - 3
    assert audit(left)["safe_sets"]["missing_rows"] == 0
    options = ("--rules", "my_policies:never", "--episodes", 3)
    code, _, err = command("collect", "--env", "CartPole-v1", "--out", tmp_path / "empty", *options)
    assert code == 2
    assert "lets nothing be executed" in err
    assert not (tmp_path / "empty").exists()


def test_where_a_fallback_ran_the_safe_set_is_unknown(tmp_path):
    env = gx.GuardedEnv(gymnasium.make("CartPole-v1"), sensor, fallback=1)
    sink = record.MinariSink(tmp_path / "fallback", env, {})
    recorder = record.Recorder(env, sink, seed=0, safe_set=env.safe_set)
    record.roll_out(recorder, push, np.random.default_rng(0), episodes=2)
    sink.close({"rules_fingerprint": env.guardian.fingerprint, "safe_set_spec": recorder.safe_set_spec})
    data = load(tmp_path / "fallback")
    outside = np.abs(data.timeline.observation[:, 2]) > 0.1
    assert (outside & data.timeline.is_step).any()
    assert (data.has_safe_set == ~outside).all()


SEVENTH = "after 7 steps of the episode with seed 3"


@pytest.mark.filterwarnings("ignore")  # Gymnasium's own about such environments
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("nan", f"'observation', {SEVENTH}: is NaN"),
        ("infinite", f"'observation', {SEVENTH}: is infinite"),
        ("reward", f"'reward', {SEVENTH}: is nan"),
        ("nothing", f"'reward', {SEVENTH}: is None, not a number"),
        ("shape", f"'observation', {SEVENTH}: has shape (1, 2), its space (2,)"),
        ("type", f"'observation', {SEVENTH}: is complex128, its space float32"),
        ("parts", f"'observation', {SEVENTH}: has parts ['observation/a'], its space ['observation']"),
        ("reset", "'observation', at the reset with seed 3: has shape (3,), its space (2,)"),
    ],
)
def test_an_environment_that_breaks_its_promises_is_not_recorded(command, tmp_path, fault, sentence):
    (tmp_path / "here").mkdir()
    where = ("--env", "my_policies:Faulty", "--env-kwargs", json.dumps({"fault": fault}))
    code, _, err = command("collect", *where, "--out", tmp_path / "here/out", "--episodes", 2, "--seed", 3)
    assert code == 2
    assert f"my_policies:Faulty: {sentence}; repair the environment, nothing was written" in err
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.filterwarnings("ignore")
def test_numbers_that_are_no_whole_ones_are_not_recorded_as_such(command, tmp_path):
    where = ("--env", "my_policies:Whole", "--out", tmp_path / "out", "--steps", 5)
    code, _, err = command("collect", *where)
    assert code == 2
    assert "at the reset with seed 0: is float32, its space int64" in err


def test_a_dataset_in_which_the_rules_allowed_nothing_is_noted(command, tmp_path):
    rules = ("--rules", "my_policies:nothing_allowed")
    where = ("--env", "my_policies:Faulty", "--out", tmp_path / "out", "--episodes", 2)
    code, out, err = command("collect", *where, *rules)
    assert (code, out.startswith("20 steps")) == (0, True)
    assert "note: the rules allowed no action in any of the 20 steps" in err
    report = audit(load(tmp_path / "out"))
    assert report["safe_sets"]["empty_share"] == 1
    assert any("allow no action; check the rules" in finding for finding in report["findings"])
    assert "note" not in command("collect", *where[:-3], tmp_path / "free", *where[-2:])[2]


def test_a_dataset_of_nothing_but_the_fallback_is_noted(command, tmp_path, monkeypatch):
    module = types.ModuleType("my_fallback")
    module.rules, module.fallback = never, 1
    monkeypatch.setitem(sys.modules, "my_fallback", module)
    where = ("--env", "CartPole-v1", "--out", tmp_path / "out", "--steps", 12)
    code, _, err = command("collect", *where, "--rules", "my_fallback:rules")
    assert code == 0
    assert "note: the fallback was executed in each of the 12 steps (rule 'never' raised RuntimeError" in err


def test_a_learner_that_never_acted_leaves_nothing(command, tmp_path):
    options = ("--rules", "my_policies:never", "--policy", "learn:DQN", "--steps", 40)
    code, _, err = command("collect", "--env", "CartPole-v1", "--out", tmp_path / "out", *options)
    assert code == 2
    assert "not a single action was executed" in err
    assert "no answer" in err
    assert not (tmp_path / "out").exists()


def test_a_path_below_a_file(command, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    for format in ("minari", "action-log"):
        options = ("--out", tmp_path / "notes.txt/x", "--steps", 5, "--format", format)
        code, _, err = command("collect", "--env", "ALE/Pong-v5", *options)
        assert code == 2
        assert "notes.txt is no folder" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("CartPole-v1",), "--episodes or --steps"),
        (("CartPole-v1", "--steps", 5, "--seed", -1), "--seed: must be at least 0, got -1"),
        (
            ("CartPole-v1", "--steps", 5, "--policy", "my_policies:short"),
            "but the environment takes Discrete(2)",
        ),
        (
            ("my_policies:Faulty", "--steps", 5, "--policy", "my_policies:short"),
            "--policy my_policies:short returned array([0., 0., 0.], dtype=float32), but the environment takes Box",
        ),
        (("my_policies:Faulty", "--steps", 5, "--policy", "my_policies:not_a_number"), "returned array([nan"),
        (
            ("my_policies:Faulty", "--steps", 5, "--policy", "my_policies:broken"),
            "--policy my_policies:broken raised ValueError: gripper",
        ),
        (("Nowhere-v0", "--steps", 5), "--env Nowhere-v0"),
        (("CartPole-v1", "--steps", 5, "--policy", "."), "holds neither an exported policy"),
        (("CartPole-v1", "--steps", 5, "--policy", "genius"), "--policy genius: there is no such folder"),
        (("CartPole-v1", "--steps", 5, "--policy", "my_policies:nothing"), "has no 'nothing'"),
        (("CartPole-v1", "--steps", 5, "--policy", "absent.zip"), "there is no file absent.zip"),
        (("CartPole-v1", "--episodes", 5, "--policy", "learn:DQN"), "--steps"),
        (("CartPole-v1", "--steps", 5, "--policy", "learn:MAGIC"), "learn:MAGIC is not known"),
        (("CartPole-v1", "--steps", 5, "--format", "action-log"), "needs an Atari environment"),
        (("CartPole-v1", "--steps", 5, "--env-kwargs", "[1]"), "JSON object"),
        (("CartPole-v1", "--steps", 5, "--env-kwargs", '{"bogus": 1}'), "do not fit CartPole-v1"),
        (("CartPole-v1", "--steps", 5, "--rules", "nowhere:rules"), "there is no module 'nowhere'"),
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
    code, _, err = command(
        "collect", "--env", arguments[0], "--out", tmp_path / "here" / "out", *arguments[1:]
    )
    assert code == 2
    assert sentence in err
    assert list((tmp_path / "here").iterdir()) == []


def test_nothing_is_overwritten(command, tmp_path):
    (tmp_path / "out").mkdir()
    code, _, err = command("collect", "--env", "CartPole-v1", "--out", tmp_path / "out", "--steps", 5)
    assert code == 2
    assert "exists already" in err


def test_a_guarded_policy_without_its_rules_is_noted(command, tmp_path):
    lure = ("--env", "Probe/LureDiscrete-v0")
    rules = ("--rules", "rlpd_gx.envs.probes:lure_mask")
    small = ("--steps", 20, "--learning-starts", 8, "--batch-size", 8, "--utd", 1, "--hidden-sizes", 8)
    for name, more in (("guarded", rules), ("watched", (*rules, "--guard", "none"))):
        code, _, error = command("train", *lure, *more, *small, "--quiet", "--out", tmp_path / name)
        assert code == 0, error
    taken = ("collect", *lure, "--steps", 5, "--policy")
    code, _, noted = command(*taken, tmp_path / "guarded", "--out", tmp_path / "a")
    assert code == 0
    assert "are not used here, so its proposals are executed as they are" in noted
    assert "--rules rlpd_gx.envs.probes:lure_mask guards them" in noted
    assert noted.count("\n") == 1
    assert command(*taken, tmp_path / "guarded", "--out", tmp_path / "b", *rules)[2] == ""
    assert command(*taken, tmp_path / "watched", "--out", tmp_path / "c")[2] == ""
    assert command(*taken, "random", "--out", tmp_path / "d")[2] == ""
