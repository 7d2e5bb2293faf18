"""`rlpd-gx data convert --rules`: safe sets for rows that came without."""

import gzip
import json
import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.replay.offline import load, with_safe_sets

STEPS = 20


@gx.bounds_rule(batched=True)
def by_angle(states):
    """For Pendulum-v1: less torque the further it hangs."""
    limit = 1.5 + states[:, :1] / 2
    return -limit, limit


@gx.bounds_rule(batched=True)
def by_angle_less(states):
    limit = 0.5 + states[:, :1] / 2
    return -limit, limit


@gx.bounds_rule(batched=True)
def upright_only(states):
    """Cannot be asked where cos(angle) is negative."""
    if (states[:, 0] < 0).any():
        raise ValueError("no reading")
    return np.full((len(states), 1), -1.0), np.full((len(states), 1), 1.0)


@gx.bounds_rule(batched=True, needs=("previous_action",))
def slow(states, previous_action):
    return previous_action - 0.5, previous_action + 0.5


@gx.rule
def predicate(state, action):
    return True


def joints(observations):
    """What the rules of `rlpd_gx.envs.mujoco` read, from observations of Hopper-v5."""
    return {"velocity": observations[..., 8:11], "angle": observations[..., 2:5]}


def joints_of_others(observations):
    return {"velocity": 0 * observations[..., 8:11], "angle": observations[..., 2:5]}


def broken(observations):
    raise KeyError("angle")


@pytest.fixture(autouse=True)
def this_module_is_importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_rules", sys.modules[__name__])


@pytest.fixture
def pendulum(tmp_path):
    """Two episodes of 10 steps that fit Pendulum-v1; the first component of the state falls from 0.9 to -1."""
    generator = np.random.default_rng(0)
    observations = np.tile(np.linspace(0.9, -1, 11, dtype=np.float32)[:, None], (2, 3))
    first = np.arange(22) % 11 < 10
    np.savez(
        tmp_path / "pendulum.npz",
        observations=observations[first],
        next_observations=observations[np.roll(first, 1)],
        actions=generator.uniform(-2, 2, (STEPS, 1)).astype(np.float32),
        rewards=np.zeros(STEPS, np.float32),
        terminals=np.zeros(STEPS, bool),
        timeouts=np.arange(STEPS) % 10 == 9,
        env_id="Pendulum-v1",
    )
    return tmp_path / "pendulum.npz"


def convert(command, source, out, rule, *options):
    return command("data", "convert", source, "--out", out, "--rules", rule, *options)


def guardian_of(rule, env_id="Pendulum-v1"):
    return gx.Guardian(gymnasium.make(env_id).action_space, rule)


def test_sets_are_those_of_the_guardian_and_come_back(command, pendulum, tmp_path):
    assert convert(command, pendulum, tmp_path / "sets", "my_rules:by_angle")[0] == 0
    data, guardian = load(tmp_path / "sets"), guardian_of(by_angle)
    expected = guardian.safe_sets(data.timeline.observation)
    sets = gx.decode(data.timeline.safe_set, data.safe_set_spec)
    assert (sets.encode() == expected.encode()).all()
    assert len(np.unique(data.timeline.safe_set, axis=0)) == 11
    assert data.rules_fingerprint == guardian.fingerprint
    assert with_safe_sets(data, None, guardian.fingerprint) is data


def test_a_changed_rule_is_refused_or_computed_anew(command, pendulum, tmp_path):
    convert(command, pendulum, tmp_path / "sets", "my_rules:by_angle")
    data, changed = load(tmp_path / "sets"), guardian_of(by_angle_less)
    with pytest.raises(
        gx.GxError, match=f"made by other rules .{data.rules_fingerprint}, not {changed.fingerprint}"
    ):
        with_safe_sets(data, None, changed.fingerprint)
    assert convert(command, tmp_path / "sets", tmp_path / "again", "my_rules:by_angle_less")[0] == 0
    again = load(tmp_path / "again")
    assert again.rules_fingerprint == changed.fingerprint
    assert (again.timeline.safe_set == changed.safe_sets(data.timeline.observation).encode()).all()
    assert (again.timeline.safe_set != data.timeline.safe_set).any()


def test_audit_counts_empty_sets(command, pendulum, tmp_path):
    convert(command, pendulum, tmp_path / "sets", "my_rules:by_angle_less")
    report = json.loads(command("data", "audit", tmp_path / "sets", "--json")[1])
    # 0.5 + s / 2 < 0 never holds; at s = -1 one point is left
    assert (report["safe_sets"]["empty_rows"], report["safe_sets"]["missing_rows"]) == (0, 0)
    convert(command, pendulum, tmp_path / "none", "my_rules:less_than_nothing")
    report = json.loads(command("data", "audit", tmp_path / "none", "--json")[1])
    below = load(tmp_path / "none").timeline.observation[:, 0] < 0
    assert report["safe_sets"]["empty_rows"] == below.sum() > 0
    assert report["safe_sets"]["empty_share"] == pytest.approx(below.mean())
    assert "empty share" in command("data", "audit", tmp_path / "none")[1].replace("_", " ")


@gx.bounds_rule(batched=True)
def less_than_nothing(states):
    return -states[:, :1], states[:, :1]


def test_a_row_whose_rule_fails_is_the_users_choice(command, pendulum, tmp_path):
    code, _, err = convert(command, pendulum, tmp_path / "sets", "my_rules:upright_only")
    assert code == 2
    assert "note: row 5: rule 'upright_only' raised ValueError: no reading" in err
    assert "pendulum.npz: 'safe_set', row 5: the safe set is unknown" in err
    assert "--offline-safe-sets assume-all" in err
    assert not (tmp_path / "sets").exists()

    choose = ("--offline-safe-sets", "drop")
    assert convert(command, pendulum, tmp_path / "dropped", "my_rules:upright_only", *choose)[0] == 0
    dropped = load(tmp_path / "dropped")
    assert dropped.steps == 8
    assert (dropped.timeline.observation[:, 0] >= 0).all()

    choose = ("--offline-safe-sets", "assume-all")
    assert convert(command, pendulum, tmp_path / "assumed", "my_rules:upright_only", *choose)[0] == 0
    assumed = load(tmp_path / "assumed")
    assert assumed.steps == STEPS
    sets = gx.decode(assumed.timeline.safe_set, assumed.safe_set_spec)
    wide = np.full((len(assumed.timeline), 1), 1.9)
    assert (sets.contains(wide) == (assumed.timeline.observation[:, 0] < 0)).all()
    assert not sets.contains(wide + 1).any()  # the action space itself stays
    report = json.loads(command("data", "audit", tmp_path / "assumed", "--json")[1])
    assert report["safe_sets"]["missing_rows"] == 12
    assert report["safe_sets"]["rules"].startswith("assumed:")
    assert report["not_finite_rows"] == {}  # the bounds that were lifted are no fault


def test_the_previous_action_comes_from_the_file(command, pendulum, tmp_path):
    assert convert(command, pendulum, tmp_path / "sets", "my_rules:slow")[0] == 0
    data = load(tmp_path / "sets")
    low = gx.decode(data.timeline.safe_set, data.safe_set_spec).parts[1].low
    previous = np.roll(data.timeline.executed_action, 1, axis=0)
    previous[[0, 11]] = 0
    assert (low == previous - np.float32(0.5)).all()


@gx.mask_rule(batched=True, needs=("previous_action",))
def no_repeat(states, previous_action):
    return np.arange(2) != previous_action[:, None]


def test_where_no_action_came_before_nothing_is_known(command, tmp_path):
    command("collect", "--env", "CartPole-v1", "--out", tmp_path / "cartpole", "--episodes", 3)
    source, rule = tmp_path / "cartpole", "my_rules:no_repeat"
    code, _, err = convert(command, source, tmp_path / "sets", rule)
    assert code == 2
    assert "note: row 0: the action before it is not stored" in err
    convert(command, source, tmp_path / "sets", rule, "--offline-safe-sets", "drop")
    data = load(tmp_path / "sets")
    assert data.steps == load(source).steps - 3
    at = np.flatnonzero(data.timeline.is_step)
    allowed = gx.decode(data.timeline.safe_set[at], data.safe_set_spec).allowed
    assert (allowed == (np.arange(2) != data.timeline.executed_action[at - 1][:, None])).all()


@gx.bounds_rule(batched=True, needs=("parameters",))
def by_parameters(states, parameters):
    return -parameters[:, None], parameters[:, None]


@pytest.fixture
def declare(monkeypatch):
    """Makes `declared:name` of a rule with options beside it."""

    def declared(rule, **options):
        module = ModuleType("declared")
        vars(module).update(options, **{rule.name: rule})
        monkeypatch.setitem(sys.modules, "declared", module)
        return f"declared:{rule.name}"

    return declared


@pytest.mark.filterwarnings("ignore:a rule reads the previous action")
@pytest.mark.parametrize(
    ("rule", "option", "first", "other"),
    [
        (slow, "initial_action", np.array([0.5], np.float32), np.array([-1.0], np.float32)),
        (by_parameters, "parameters", 0.25, 0.75),
        (by_parameters, "parameters", lambda time: 1.5 / (1 + time), lambda time: 0.5 / (1 + time)),
    ],
)
def test_stored_states_have_the_context_of_live_ones(
    command, declare, pendulum, tmp_path, rule, option, first, other
):
    """What the module declares beside the rules counts, and sets made with another declaration are not used again."""
    seen = {}
    for name, options in {"none": {}, "first": {option: first}, "other": {option: other}}.items():
        if name == "none" and rule is by_parameters:
            continue  # a rule cannot be asked without what it needs
        code, _, err = convert(command, pendulum, tmp_path / name, declare(rule, **options))
        assert code == 0, err
        data = load(tmp_path / name)
        live = gx.GuardedEnv(gymnasium.make("Pendulum-v1"), rule, **options)
        live.reset(seed=0)
        for row in range(3):
            assert (data.timeline.safe_set[row] == live.safe_set().encode()).all()
            live.step(data.timeline.executed_action[row])
            if rule is slow:
                break  # the guard executes other actions than the stored ones
        assert (data.timeline.safe_set[11] == data.timeline.safe_set[0]).all()  # the second episode
        seen[name] = (data.rules_fingerprint, data.timeline.safe_set[0].tobytes())
    assert (
        len({prints for prints, _ in seen.values()}) == len({sets for _, sets in seen.values()}) == len(seen)
    )
    if "none" in seen:
        assert seen["none"][0] == guardian_of(rule).fingerprint
    # those of other declarations are computed again, also from a file that holds sets
    convert(command, tmp_path / "other", tmp_path / "again", declare(rule, **{option: first}))
    again = load(tmp_path / "again")
    assert (again.rules_fingerprint, again.timeline.safe_set[0].tobytes()) == seen["first"]


@pytest.mark.filterwarnings("ignore:a rule reads the previous action")
def test_a_declared_first_action_makes_discrete_first_rows_known(command, declare, tmp_path):
    rule = declare(no_repeat, initial_action=1)
    command("collect", "--env", "CartPole-v1", "--out", tmp_path / "free", "--episodes", 3)
    code, _, err = convert(command, tmp_path / "free", tmp_path / "sets", rule)
    assert code == 0, err
    data = load(tmp_path / "sets")
    allowed = gx.decode(data.timeline.safe_set, data.safe_set_spec).allowed
    assert (allowed[data.timeline.episode_step == 0] == [True, False]).all()
    # what a guard with the same declaration has recorded is taken as it is
    options = ("--rules", rule, "--episodes", 3)
    assert command("collect", "--env", "CartPole-v1", "--out", tmp_path / "guarded", *options)[0] == 0
    guarded = load(tmp_path / "guarded")
    assert guarded.rules_fingerprint == data.rules_fingerprint
    assert with_safe_sets(guarded, None, data.rules_fingerprint) is guarded


def test_rules_of_the_simulator_need_to_be_told_the_state(command, tmp_path):
    command("collect", "--env", "Hopper-v5", "--out", tmp_path / "hopper", "--steps", 40)
    power = (tmp_path / "hopper", tmp_path / "sets", "rlpd_gx.envs.mujoco:power")
    code, _, err = convert(command, *power)
    assert code == 2
    assert "`state` of rlpd_gx.envs.mujoco" in err
    assert "--state module:callable" in err
    assert "assume-all" in err
    assert convert(command, *power, "--state", "my_rules:joints")[0] == 0
    data = load(tmp_path / "sets")
    expected = guardian_of(gx.envs.mujoco.power, "Hopper-v5").safe_sets(joints(data.timeline.observation))
    assert (data.timeline.safe_set == expected.encode()).all()
    assert "through --state my_rules:joints" in data.findings[-1]
    # Another reading is no cache hit.
    options = ("--state", "my_rules:joints_of_others")
    assert convert(command, power[0], tmp_path / "others", power[2], *options)[0] == 0
    assert (load(tmp_path / "others").timeline.safe_set[:, 6:9] == 0).all()
    options = ("--offline-safe-sets", "assume-all")
    assert convert(command, power[0], tmp_path / "assumed", power[2], *options)[0] == 0
    assumed = load(tmp_path / "assumed")
    assert assumed.safe_set_spec == data.safe_set_spec
    corner = np.ones((len(assumed.timeline), 3))
    assert gx.decode(assumed.timeline.safe_set, assumed.safe_set_spec).contains(corner).all()


def test_what_a_guard_recorded_is_taken_as_it_is(command, tmp_path):
    """The stored state says less than the guard saw, and nothing more is needed; under other rules it is."""
    guarded, kept, other = tmp_path / "guarded", tmp_path / "kept", tmp_path / "other"
    options = ("--rules", "rlpd_gx.envs.mujoco:power", "--steps", 60)
    assert command("collect", "--env", "Hopper-v5", "--out", guarded, *options)[0] == 0
    assert convert(command, guarded, kept, "rlpd_gx.envs.mujoco:power")[0] == 0
    assert (load(kept).timeline.safe_set == load(guarded).timeline.safe_set).all()
    code, _, err = convert(command, guarded, other, "rlpd_gx.envs.mujoco:absolute_power")
    assert code == 2
    assert "were made by other rules" in err
    assert not other.exists()


@gx.mask_rule
def by_frame(frame):
    """Reads the emulator itself (see `emulator_rules`): no firing early on, and no answer in frame 12."""
    if frame == 12:
        raise ValueError("no reading")
    return np.array([True, frame >= 100, True, True])


@pytest.fixture
def emulator_rules(monkeypatch):
    module = ModuleType("emulator_rules")
    module.by_frame, module.state = (
        by_frame,
        lambda env, observation, info: env.unwrapped.ale.getEpisodeFrameNumber(),
    )
    monkeypatch.setitem(sys.modules, "emulator_rules", module)


def test_an_action_log_is_replayed_for_rules_that_read_the_emulator(command, tmp_path, emulator_rules):
    log, rule = tmp_path / "breakout.json.gz", "emulator_rules:by_frame"
    options = ("--format", "action-log", "--steps", 60)
    assert command("collect", "--env", "ALE/Breakout-v5", "--out", log, *options)[0] == 0
    code, _, err = convert(command, log, tmp_path / "sets", rule)
    assert code == 2
    assert "rule 'by_frame' raised ValueError: no reading" in err
    assert "'safe_set', row 3: the safe set is unknown" in err
    code, _, err = convert(command, log, tmp_path / "sets", rule, "--offline-safe-sets", "drop")
    assert code == 0, err
    data = load(tmp_path / "sets")
    assert data.steps == 58  # to row 3 and from it
    guardian = guardian_of(by_frame, "ALE/Breakout-v5")
    assert data.rules_fingerprint == guardian.fingerprint
    rows = data.needs_safe_set
    allowed = gx.decode(data.timeline.safe_set[rows], data.safe_set_spec).allowed
    step = data.timeline.extras["step_in_episode"][rows]
    assert (allowed[:, 1] == (4 * step >= 100)).all()
    assert allowed[:, 0].all()


def test_look_ahead_says_the_same_of_a_replayed_log_as_of_the_game(command, tmp_path, monkeypatch):
    log, rule = tmp_path / "freeway.json.gz", "rlpd_gx.envs.atari:Lookahead"
    (tmp_path / "freeway_script.py").write_text("def up(observation):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    policy = ("--policy", "freeway_script:up")
    options = ("--format", "action-log", "--steps", 60)
    assert command("collect", "--env", "ALE/Freeway-v5", "--out", log, *policy, *options)[0] == 0
    code, _, err = convert(command, log, tmp_path / "sets", rule, "--env", "Atari/Freeway-ram")
    assert code == 0, err
    data = load(tmp_path / "sets")
    env = gx.envs.atari.make("Freeway", noop_max=0)
    guardian = gx.Guardian(env.action_space, gx.envs.atari.Lookahead(env), embedding=env.embedding)
    assert data.rules_fingerprint == guardian.fingerprint
    env.reset(seed=json.loads(gzip.decompress(log.read_bytes()))["episodes"][0]["seed"])
    forbidden = complete = 0
    for row, action in enumerate(data.timeline.executed_action[:60]):
        found = guardian.safe_sets([env])[0]
        stored = gx.decode(data.timeline.safe_set[row][None], data.safe_set_spec)[0]
        asked = (
            stored.tested
        )  # as online: about every action in some states, elsewhere about the one that ran
        assert asked[int(action)]
        assert np.array_equal(stored.allowed[asked], found.allowed[asked])
        complete += asked.all()
        forbidden += not found.allowed[asked].all()
        env.step(int(action))
    assert 1 <= complete <= 20
    assert forbidden > 0


def test_a_predicate_is_stored_with_the_state_it_reads(command, pendulum, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="not batched"):
        code, _, err = command("data", "convert", pendulum, "--out", "x", "--rules", "my_rules:predicate")
    assert code == 0, err
    code, out, err = command("data", "audit", "x", "--json")
    assert code == 0, err
    assert json.loads(out)["safe_sets"]["missing_rows"] == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--rules", "my_rules:by_angle"), "--out"),
        (("--out", "x", "--state", "my_rules:joints"), "--rules"),
        (("--out", "x", "--offline-safe-sets", "drop"), "--rules"),
        (
            ("--out", "x", "--rules", "my_rules:by_angle", "--state", "my_rules:broken"),
            "--state raised KeyError",
        ),
        (("--out", "x", "--rules", "my_rules:upright_only", "--offline-safe-sets", "guess"), "guess"),
    ],
)
def test_mistakes(command, pendulum, tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = command("data", "convert", pendulum, *options)
    assert code == 2
    assert sentence in err
    assert not (tmp_path / "x").exists()


def test_a_file_that_names_no_environment(command, pendulum, tmp_path):
    with np.load(pendulum) as file:
        columns = dict(file)
    for env_id, sentence in ((None, "give --env"), ("trap:Pendulum-v1", "would import a module")):
        named = (
            columns | {"env_id": env_id} if env_id else {k: v for k, v in columns.items() if k != "env_id"}
        )
        np.savez(pendulum, **named)
        code, _, err = convert(command, pendulum, tmp_path / "sets", "my_rules:by_angle")
        assert code == 2
        assert sentence in err
    np.savez(pendulum, **{k: v for k, v in columns.items() if k != "env_id"})
    assert convert(command, pendulum, tmp_path / "sets", "my_rules:by_angle", "--env", "Pendulum-v1")[0] == 0


def test_everything_is_the_whole_space_in_any_form():
    d = gx.Box(np.full(2, -1.0), np.ones(2))
    point, outside = np.array([0.9, -0.9]), np.array([1.1, 0.0])
    tight = gx.Intersection(
        d, gx.WeightedL1(np.ones(2), np.array(0.1)), gx.Polytope(np.ones((1, 2)), -np.ones(1))
    )
    for example in (tight, gx.Union(tight, gx.Intersection(d, gx.Box(d.low / 9, d.high / 9)))):
        full = example.everything()
        assert full.spec == example.spec
        assert not example.contains(point)
        again = gx.decode(full.encode(), full.spec)
        assert again.contains(point)
        assert not again.contains(outside)
        assert np.allclose(again.project(outside), [1, 0])
    mask = gx.Mask(np.array([False, True]), start=3)
    assert mask.everything().spec == mask.spec
    assert mask.everything().contains(np.array([3, 4])).all()
    product = gx.ProductMask(np.array([True, False, False]), (2, 1))
    assert product.everything().contains(np.array([1, 0]))
