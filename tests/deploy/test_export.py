"""An exported policy gives the verdicts of its training, or refuses to act."""

import importlib
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_runs import tiny_run

import rlpd_gx as gx
from rlpd_gx.deploy.export import ABOUT, TENSORS, Export
from rlpd_gx.deploy.play import drawable, scenes
from rlpd_gx.loop.resume import load_learner, resume

RULES = """
import numpy as np
import rlpd_gx as gx

LIMIT = 0.3
initial_action = np.full(3, 0.1, np.float32)

def state(env, observation, info):
    return {"velocity": env.unwrapped.data.qvel.copy()}

@gx.bounds_rule(name="gentle", needs=("previous_action", "time"))
def gentle(state, previous_action, time):
    reach = LIMIT / (1 + abs(state["velocity"][0]) + 0.1 * time)
    return previous_action - reach, previous_action + reach

@gx.mask_rule(name="upright")
def upright(observation):
    return np.array([observation[2] < 0.01, True])
"""

SETTINGS = {
    "hopper": {"env": "Hopper-v5", "rules": "export_rules:gentle", "rules_state": "export_rules:state"},
    "lure": {"env": "Probe/LureContinuous-v0", "rules": "rlpd_gx.envs.probes:lure_bounds"},
    "resampled": {
        "env": "Probe/LureDiscrete-v0",
        "rules": "rlpd_gx.envs.probes:lure_mask",
        "execution": "resample",
    },
    "watched": {
        "name": "rlpd",
        "env": "Probe/LureContinuous-v0",
        "rules": "rlpd_gx.envs.probes:lure_bounds",
        "guard": "none",
    },
    "free": {"name": "sac", "env": "CartPole-v1"},
    "made": {"env": "CartPole-v1", "rules": "export_made:gentle"},
    "pong": {"env": "Atari/Pong-ram", "rules": "export_pong:moving", "env_kwargs": {"max_steps": 30}},
}
PONG_RULES = """
import numpy as np
import rlpd_gx as gx

@gx.mask_rule(name="moving")
def moving(ram):  # whatever a policy keeps proposing, it is moved now and then
    return np.arange(6) % 2 == int(ram[-1].sum()) % 2
"""
MADE_RULES = """
import numpy as np
import rlpd_gx as gx

BUILT = []

def gentle(env):  # as look-ahead does, this makes a rule for an environment
    BUILT.append(env)
    return gx.mask_rule(name="gentle")(lambda observation: np.array([observation[2] < 0.01, True]))
"""
pytestmark = pytest.mark.filterwarnings("ignore:a rule reads the previous action")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with rules that is on the path of modules."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "export_rules.py").write_text(RULES)
    (folder / "export_made.py").write_text(MADE_RULES)
    (folder / "export_pong.py").write_text(PONG_RULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)  # a rule changed within a second must be read again
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="module")
def made(home):
    """name -> (run, exported folder), each made once."""
    done = {}

    def make(name):
        if name not in done:
            run = tiny_run(home / f"run-{name}", **SETTINGS[name])
            Export.of_run(run).write(home / name)
            done[name] = (run, home / name)
        return done[name]

    return make


def state_and_context(env, policy):
    """What the guarded environment will let its rules see in the next step."""
    read = env._state_of(env.env, *env._current())
    return {"state": read, "context": env.context()} if policy._reads_more else {"context": env.context()}


@pytest.mark.parametrize("name", ["hopper", "lure", "resampled", "pong"])
def test_verdicts_are_those_of_the_guarded_environment(made, name):
    run, exported = made(name)
    policy = gx.load_policy(exported)
    learner, environments = load_learner(run)
    env = environments.members[0].env
    moved = 0
    for episode in range(6):
        environments.reset(np.ones(1, bool), [episode])
        ended = False
        while not ended:
            verdict = policy.act(environments.members[0].observation, **state_and_context(env, policy))
            sets = environments.safe_sets() if name == "resampled" else None
            proposed = learner.act(environments.observation, sets, explore=False)
            outcome = environments.step(proposed)
            trained = outcome.verdicts[0]
            assert verdict == trained
            assert np.asarray(verdict.action).tobytes() == np.asarray(trained.action).tobytes()
            assert np.asarray(verdict.action).dtype == np.asarray(trained.action).dtype
            assert (verdict.distance, verdict.exact) == (trained.distance, trained.exact)
            moved += verdict.corrected
            ended = bool(outcome.ended[0])
    if name != "lure":  # whose mode may be allowed everywhere; resampled proposals always are
        assert (moved > 0) == (name != "resampled")


def test_sampled_actions_differ_by_seed_and_stay_allowed(made):
    _, exported = made("lure")
    second_step = np.ones(1, np.float32)
    drawn = []
    for seed in (0, 0, 1):
        policy = gx.load_policy(exported, seed=seed)
        drawn.append([float(policy.act(second_step, sample=True).action[0]) for _ in range(30)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert max(map(max, drawn)) <= 0.2 + 1e-6
    assert any(policy.act(second_step, sample=True).corrected for _ in range(50))


def test_a_resampled_policy_never_proposes_what_is_forbidden(made):
    policy = gx.load_policy(made("resampled")[1])
    verdicts = [policy.act(np.ones(1, np.float32), sample=True) for _ in range(60)]
    assert {int(v.proposed) for v in verdicts} == {0, 1}
    free = [int(policy.propose(np.ones(1, np.float32), sample=True)) for _ in range(60)]
    assert 2 in free  # the raw policy does
    with pytest.raises(gx.StopEpisode, match="no fallback"):
        policy.act(np.ones(1, np.float32), state="nonsense")
    with pytest.raises(gx.GxError, match="the observation holds NaN"):  # also where rules read something else
        policy.act(np.full(1, np.nan, np.float32), state=np.ones(1))


PARTLY = """
import numpy as np
import rlpd_gx as gx

class Seen:  # no array: rules that read it cannot be stored
    def __init__(self, first):
        self.first = first

def state(env, observation, info):
    return Seen(float(observation[0]))

@gx.bounds_rule(name="narrow")
def narrow(seen):
    return np.full(1, -1.0), np.full(1, 1.0)

@gx.rule(name="any")
def anything(seen, action):
    if seen.first == 7:
        raise ValueError("seven")
    return bool(action[0] < 0.5)

rules = [narrow, anything]
fallback = np.zeros(1, np.float32)
"""


@pytest.mark.filterwarnings("ignore:rule 'any' is not batched")
def test_a_policy_is_drawn_from_the_rules_that_could_be_stored(home, tmp_path):
    """As in training: from those with a finite description, where others cannot be stored."""
    (home / "export_partly.py").write_text(PARTLY)
    run = tiny_run(
        tmp_path / "run", env="Pendulum-v1", rules="export_partly:rules", rules_state="export_partly:state",
        execution="resample",
    )  # fmt: skip
    Export.of_run(run).write(tmp_path / "policy")
    policy, seen = gx.load_policy(tmp_path / "policy", seed=3), sys.modules["export_partly"].Seen
    observation = np.zeros(3, np.float32)
    proposed = [policy.act(observation, state=seen(0.0), sample=True).proposed[0] for _ in range(40)]
    assert max(map(abs, proposed)) <= 1 + 1e-6
    assert max(proposed) > 0.5  # the other rule only corrects
    free = [policy.propose(observation, sample=True)[0] for _ in range(40)]
    assert max(map(abs, free)) > 1.2
    assert load_learner(run)[1].described is not None
    # a rule that raises leaves the described ones, and the verdict its fallback
    verdict = policy.act(observation, state=seen(7.0), sample=True)
    assert verdict.status is gx.Status.FALLBACK
    assert abs(verdict.proposed[0]) <= 1 + 1e-6
    with closing(drawable(policy)) as env:
        film = list(scenes(policy, env, 0, sample=True, max_steps=15))
        assert all(abs(scene.verdict.proposed[0]) <= 1 + 1e-6 for scene in film[:-1])
        with pytest.MonkeyPatch.context() as patch:  # the film continues where a rule fails
            patch.setattr(env, "_state_of", lambda *current: seen(7.0))
            film = list(scenes(policy, env, 0, sample=True, max_steps=3))
    assert [scene.verdict.status for scene in film[:-1]] == [gx.Status.FALLBACK] * 3


def test_a_policy_that_was_only_watched_is_only_watched(made):
    policy = gx.load_policy(made("watched")[1])
    verdicts = [policy.act(np.ones(1, np.float32), sample=True) for _ in range(50)]
    blocked = [v for v in verdicts if v.corrected]
    assert blocked
    assert all(v.action[0] == v.proposed[0] > 0.2 >= v.suggestion[0] - 1e-6 for v in blocked)


def test_the_context_is_what_decides(made):
    policy = gx.load_policy(made("hopper")[1])
    observation, state = np.zeros(11), {"velocity": np.zeros(6)}
    side = np.where(policy.propose(observation) > 0, -1, 1).astype(np.float32)  # opposite to the proposal
    early, late = (policy.act(observation, state=state, context=gx.Context(side, time)) for time in (0, 20))
    assert (early.proposed == late.proposed).all()
    assert early.action == pytest.approx(0.7 * side)
    assert late.action == pytest.approx(0.9 * side)
    assert early != late


def test_another_process_without_the_environment_gives_the_same_verdict(home, made):
    script = """
import sys
sys.modules["mujoco"] = sys.modules["ale_py"] = None
import numpy as np
import rlpd_gx as gx
context = gx.Context(np.full(3, 0.1, np.float32), 3)
verdict = gx.load_policy("hopper").act(np.linspace(-1, 1, 11), state={"velocity": np.ones(6)}, context=context)
print(verdict.proposed.tobytes().hex(), verdict.action.tobytes().hex(), verdict.status)
"""
    _, exported = made("hopper")
    process = subprocess.run([sys.executable, "-c", script], cwd=home, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    context = gx.Context(np.full(3, 0.1, np.float32), 3)
    here = gx.load_policy(exported).act(
        np.linspace(-1, 1, 11), state={"velocity": np.ones(6)}, context=context
    )
    said = process.stdout.split()
    assert said == [here.proposed.tobytes().hex(), here.action.tobytes().hex(), str(here.status)]


def test_without_rules_everything_is_allowed(made):
    run, exported = made("free")
    policy, observation = gx.load_policy(exported), np.array([0.1, 0.0, 0.05, 0.0], np.float32)
    verdict = policy.act(observation)
    assert (verdict.status, verdict.action) == (gx.Status.ALLOWED, verdict.proposed)
    assert verdict.action == load_learner(run)[0].act(observation[None], explore=False)[0]


def test_the_folder_holds_the_policy_and_where_it_comes_from(made):
    run, exported = made("hopper")
    about = json.loads((exported / ABOUT).read_text())
    assert about["trained"] == {"command": "rlpd-gx train", "seed": 0, "step": 60}
    assert (about["rules"], about["rlpd_gx"]) == ("export_rules:gentle", gx.__version__)
    assert about["fingerprints"]["rules"] == load_learner(run)[1].members[0].env.guardian.fingerprint
    state, tensors = load_learner(run)[0].average.state_dict(), Export.read(exported).tensors
    assert state.keys() == tensors.keys()
    assert all((state[name] == tensors[name]).all() for name in state)


@pytest.mark.parametrize("name", SETTINGS)
def test_sampled_proposals_are_those_of_the_learner_bit_for_bit(made, name):
    run, exported = made(name)
    learner, environments = load_learner(run)
    network = gx.load_policy(exported, seed=7).network
    learner.generator.manual_seed(7)
    environments.reset(np.ones(1, bool), [0])
    safe_sets = environments.safe_sets()
    for _ in range(20):
        ours, theirs = (actor.act(environments.observation, safe_sets) for actor in (network, learner))
        assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes())
    parts = {name.partition(".")[0] for name, _ in network.named_parameters()}
    # a flat encoder has no parameters; the network of a soft policy is its critics, without their targets
    assert parts <= {"actor", "log_temperature"}


def test_the_guard_is_built_once(home, made):
    run, exported = made("made")
    built = sys.modules["export_made"].BUILT
    for path, worlds in ((exported, 1), (run, 2)):  # a run also makes an example of its environment
        built.clear()
        policy = gx.load_policy(path)
        assert policy.guardian is not None
        assert len(built) == worlds


def test_a_run_acts_as_its_export_does(made):
    run, exported = made("pong")
    frames = np.random.default_rng(0).integers(0, 256, (20, 2, 128), np.uint8)
    one, other = gx.load_policy(run), gx.load_policy(exported)
    assert [one.act(f) for f in frames] == [other.act(f) for f in frames]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("LIMIT = 0.3", "LIMIT = 0.4", "the rules of"),
        ("qvel.copy()", "qvel * 0", "the state of"),
        ("np.full(3, 0.1", "np.full(3, 0.2", "the initial_action of"),
    ],
)
def test_a_changed_rule_is_refused(home, made, monkeypatch, old, new, what):
    run, exported = made("hopper")
    (home / "export_rules.py").write_text(RULES.replace(old, new))
    monkeypatch.delitem(sys.modules, "export_rules")
    with pytest.raises(gx.GxError, match=f"{what} export_rules:gentle changed since the export; restore"):
        gx.load_policy(exported)
    with pytest.raises(gx.GxError, match=f"{what} export_rules:gentle changed since the checkpoint"):
        Export.of_run(run)
    with pytest.raises(gx.GxError, match=f"{what} export_rules:gentle changed since the checkpoint"):
        resume(run)
    (home / "export_rules.py").write_text("# a comment changes nothing\n" + RULES)
    monkeypatch.delitem(sys.modules, "export_rules")
    gx.load_policy(exported)


def test_rules_can_be_given_instead_of_imported(home, made, monkeypatch):
    _, exported = made("hopper")
    module = importlib.import_module("export_rules")
    monkeypatch.setitem(sys.modules, "export_rules", None)  # so that importing it fails
    with pytest.raises(gx.GxError, match="cannot be used"):
        gx.load_policy(exported)
    beside = {"state": module.state, "initial_action": module.initial_action}
    policy = gx.load_policy(exported, rules=[module.gentle], **beside)
    assert policy.guardian.rules == (module.gentle,)
    with pytest.raises(gx.GxError, match="read more than the observation"):
        policy.act(np.zeros(11))
    with pytest.raises(gx.GxError, match="the initial_action of export_rules:gentle changed since"):
        gx.load_policy(exported, rules=module.gentle, state=module.state)
    with pytest.raises(gx.GxError, match="the rules of export_rules:gentle changed since"):
        gx.load_policy(exported, rules=gx.bounds_rule(lambda s: (-1.0, 1.0)), **beside)
    with pytest.raises(gx.GxError, match="no option 'colour'"):
        gx.load_policy(exported, rules=module.gentle, colour=1)
    with pytest.raises(gx.GxError, match="state only together with rules"):
        gx.load_policy(exported, state=module.state)
    with pytest.raises(gx.GxError, match="trained without rules"):
        gx.load_policy(made("free")[1], rules=module.gentle)


def test_nothing_is_imported_from_a_damaged_folder(home, made, tmp_path):
    folder = copied(made("lure")[1], tmp_path / "edited")
    about = json.loads((folder / ABOUT).read_text()) | {"rules": "export_trap:rule"}
    (folder / ABOUT).write_text(json.dumps(about))
    (home / "export_trap.py").write_text("raise SystemExit('imported')")
    with pytest.raises(gx.GxError, match="was changed"):
        gx.load_policy(folder)


def test_an_unknown_guard_is_refused(made, tmp_path):
    whole = Export.read(made("lure")[1])
    replace(whole, about=whole.about | {"guard": "gaurdian"}).write(tmp_path / "typo")
    with pytest.raises(gx.GxError, match="there is no guard 'gaurdian'"):
        gx.load_policy(tmp_path / "typo")


def test_a_missing_module_is_a_sentence(home, made, monkeypatch):
    _, exported = made("hopper")
    (home / "export_rules.py").rename(home / "elsewhere.py")
    monkeypatch.delitem(sys.modules, "export_rules")
    try:
        with pytest.raises(gx.GxError, match=r"cannot be used: .*there is no module 'export_rules'"):
            gx.load_policy(exported)
    finally:
        (home / "elsewhere.py").rename(home / "export_rules.py")


def copied(exported, target):
    target.mkdir()
    for name in (TENSORS, ABOUT):
        (target / name).write_bytes((exported / name).read_bytes())
    return target


def test_every_damaged_byte_of_the_weights_is_noticed(made, tmp_path):
    folder = copied(made("lure")[1], tmp_path / "damaged")
    whole = (folder / TENSORS).read_bytes()
    for place in range(0, len(whole), 97):
        (folder / TENSORS).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(gx.GxError, match=f"{TENSORS}: is damaged"):
            gx.load_policy(folder)


def test_rules_cannot_be_edited_out(made, tmp_path):
    folder = copied(made("lure")[1], tmp_path / "edited")
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps(about, indent=4))
    gx.load_policy(folder)  # another layout of the same JSON is the same
    (folder / ABOUT).write_text(json.dumps(about | {"rules": ""}))
    with pytest.raises(gx.GxError, match=f"{ABOUT}: is damaged or was changed"):
        gx.load_policy(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("{", "no JSON object"), ("[]", "no JSON object"), ('{"format": 99}', "has format 99")],
)
def test_a_policy_json_that_cannot_be_read(made, tmp_path, content, sentence):
    folder = copied(made("lure")[1], tmp_path / "broken")
    (folder / ABOUT).write_text(content)
    with pytest.raises(gx.GxError, match=sentence):
        gx.load_policy(folder)


def test_a_folder_without_weights_or_with_nothing(made, tmp_path):
    folder = copied(made("lure")[1], tmp_path / "light")
    (folder / TENSORS).unlink()
    with pytest.raises(gx.GxError, match=f"{TENSORS}: cannot be read"):
        gx.load_policy(folder)
    with pytest.raises(gx.GxError, match="holds neither an exported policy"):
        gx.load_policy(tmp_path)


def test_what_a_caller_can_forget(made):
    policy = gx.load_policy(made("hopper")[1])
    observation, velocity = np.zeros(11), {"velocity": np.zeros(6)}
    with pytest.raises(gx.GxError, match=r"read more than the observation; give act\(\.\.\., state="):
        policy.act(observation)
    with pytest.raises(gx.GxError, match="need previous_action and time"):
        policy.act(observation, state=velocity)
    with pytest.raises(gx.GxError, match="need time"):
        policy.act(observation, state=velocity, context={"previous_action": np.zeros(3)})
    with pytest.raises(gx.GxError, match=r"shape \(4,\); the policy was trained on \(11,\)"):
        policy.act(np.zeros(4), state=velocity, context={"previous_action": np.zeros(3), "time": 0})


def test_rules_see_arrays_where_a_caller_gives_lists(home, made):
    seen = []

    @gx.mask_rule(name="upright")
    def upright(observation):
        seen.append(observation)
        return np.array([observation[2] < 0.01, True])

    policy = gx.load_policy(made("free")[1])
    policy.guardian = gx.Guardian(policy.action_space, upright)
    for observation in ([0, 0, 1, 0], (0.0, 0.0, 1.0, 0.0)):
        assert policy.act(observation).action == policy.act(np.array(observation, np.float32)).action
    for observation in seen:
        assert isinstance(observation, np.ndarray)
        assert observation.dtype == np.float32
    for wrong in ([0, "left", 1, 0], [[0], [0, 1], 1, 0], np.array(["0", "0", "1", "0"]), None):
        with pytest.raises(gx.GxError, match="the observation is not an array of numbers"):
            policy.act(wrong)
    for wrong in (np.array([0, np.nan, 1, 0]), [0.0, float("nan"), 1.0, 0.0]):
        with pytest.raises(gx.GxError, match="the observation holds NaN"):
            policy.act(wrong)


def test_rules_may_look_up_a_whole_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rules = "import rlpd_gx as gx\nOPEN = {s: [True, s != 0, True, False] for s in range(16)}\n"
    (tmp_path / "lake_rules.py").write_text(f"{rules}@gx.mask_rule\ndef shore(s):\n    return OPEN[s]\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = gx.train(
        "FrozenLake-v1", rules="lake_rules:shore", out=tmp_path / "run", steps=20, learning_starts=10, utd=0.1,
        ensemble_size=2, hidden_sizes=(8, 8), batch_size=8, evaluation_episodes=1,
    )  # fmt: skip
    for observation in (0, np.int64(0), np.array(0)):
        verdict = run.policy.act(observation)
        assert verdict.action in (0, 2)
        assert not verdict.reason


def test_whole_numbers_of_a_small_type_do_not_overflow_in_a_rule(made):
    """Bytes that hold what was trained on as floats: the rule adds them, and must come to the same sum."""

    @gx.mask_rule(name="light")
    def light(observation):
        return np.array([observation[0] + observation[1] < 255, True])

    policy = gx.load_policy(made("free")[1])
    policy.guardian = gx.Guardian(policy.action_space, light)
    numbers = [200, 200, 0, 0]
    for given in (np.array(numbers, dtype) for dtype in (np.float32, np.float64, np.uint8, np.int64)):
        assert policy.act(given).action == 1
    assert policy.act(torch.tensor(numbers, dtype=torch.uint8)).action == 1


def test_a_policy_says_what_it_is(made):
    assert repr(gx.load_policy(made("free")[1])) == "<Policy for CartPole-v1 without rules>"
    lure = "<Policy for Probe/LureContinuous-v0 under rlpd_gx.envs.probes:lure_bounds (guard guardian)>"
    assert repr(gx.load_policy(made("lure")[1])) == lure


def test_a_write_that_fails_leaves_nothing(made, tmp_path):
    export = Export.read(made("lure")[1])
    with pytest.raises(gx.GxError, match="exists already"):
        export.write(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(gx.GxError, match="cannot be written"):
        export.write(tmp_path / "file" / "below")
    export.write(tmp_path / "new" / "folder")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["folder"]


@pytest.mark.parametrize("guard", ["replace", "classifier", "replace+penalty=2"])
def test_what_the_rules_alone_cannot_repeat_is_refused(made, tmp_path, guard):
    run = tiny_run(tmp_path / "run", **SETTINGS["lure"], guard=guard)
    with pytest.raises(gx.GxError, match="whose corrections follow from more than the rules"):
        Export.of_run(run).write(tmp_path / "policy")
    with pytest.raises(gx.GxError, match="whose corrections follow from more than the rules"):
        gx.load_policy(run)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    whole = Export.read(made("lure")[1])  # as an earlier version exported it
    whole = replace(whole, about=whole.about | {"guard": guard})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Export, "refuse_other_execution", lambda self: None)
        whole.write(tmp_path / "older")
    with pytest.raises(gx.GxError, match="whose corrections follow from more than the rules"):
        gx.load_policy(tmp_path / "older")


@pytest.mark.parametrize("guard", ["lagrangian", "penalty", "guardian+penalty", "shield"])
def test_guards_whose_rules_decide_are_exported(tmp_path, guard):
    run = tiny_run(tmp_path / "run", **SETTINGS["lure"], guard=guard)
    Export.of_run(run).write(tmp_path / "policy")
    verdicts = [gx.load_policy(tmp_path / "policy").act(np.ones(1, np.float32), sample=True) for _ in "123"]
    assert all(verdict.enforced == (guard in ("guardian+penalty", "shield")) for verdict in verdicts)
