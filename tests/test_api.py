"""`gx.train` as a person uses it: an environment and rules made up in the same file."""

import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.loop.resume import resume
from rlpd_gx.safe_sets import decode

pytestmark = pytest.mark.filterwarnings("ignore:rule .* is not batched")
SMALL = {
    "utd": 1, "ensemble_size": 2, "batch_size": 16, "hidden_sizes": (16, 16), "learning_starts": 30,
    "evaluation_episodes": 1, "evaluate_every": 0, "device": "cpu", "progress": False,
}  # fmt: skip
EXECUTED: list[tuple[float, float]] = []


class Boat(gym.Env):
    """Drifts along a line; every action that reaches it is written down."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v, self.t = self.np_random.uniform(-1, 1), 0.0, 0
        return self._seen(), {}

    def step(self, action):
        EXECUTED.append((float(np.float32(self.v)), float(action[0])))
        self.v = float(np.clip(self.v + 0.3 * float(action[0]), -2, 2))
        self.x, self.t = float(np.clip(self.x + 0.1 * self.v, -9, 9)), self.t + 1
        return self._seen(), -abs(self.x - 2), False, self.t >= 25, {}

    def _seen(self):
        return np.array([self.x, self.v], np.float32)


@gx.bounds_rule(name="gentle")
def gentle(observation):
    limit = 0.3 if abs(observation[1]) > 0.2 else 1.0
    return [-limit], [limit]


def longest(episodes):
    return {"longest": max(episode.length for episode in episodes)}


@gx.rule(name="not full ahead")
def not_full_ahead(observation, action):
    return bool(action[0] <= 0.5)


def test_a_class_and_a_list_of_rules(tmp_path: Path) -> None:
    EXECUTED.clear()
    run = gx.train(Boat, [gentle], steps=80, out=tmp_path / "boat", **SMALL)
    assert len(EXECUTED) >= 80
    assert all(abs(action) <= (0.3 if abs(v) > 0.2 else 1.0) for v, action in EXECUTED)
    verdict = run.policy.act(np.array([0.0, 1.0], np.float32))
    assert abs(verdict.action[0]) <= 0.3
    found = run.evaluate(episodes=3, metrics=["returns", f"{__name__}:longest"])
    assert len(found["returns"]) == 3
    assert (found["longest"], found["return_mean"]) == (25, pytest.approx(found["mean"]))
    with pytest.raises(gx.GxError, match="there is no metric 'nothing'"):
        run.evaluate(metrics=["nothing"])
    assert run.report().read_text().startswith("<!")
    assert "return" in repr(run)


def test_a_run_can_be_extended(tmp_path: Path) -> None:
    run = gx.train(Boat, [gentle], steps=60, out=tmp_path / "boat", **SMALL)
    assert run.resume(steps=90, progress=False).result["steps"] == 90
    with pytest.raises(gx.GxError, match="is at step 90 already"):
        run.resume(steps=40)


@pytest.mark.parametrize("offline", [False, True])
def test_a_predicate_holds_at_execution_and_in_the_backup(tmp_path: Path, offline: bool) -> None:
    EXECUTED.clear()
    data = log(tmp_path) if offline else None
    run = gx.train(Boat, [gentle, not_full_ahead], data, steps=60, out=tmp_path / "boat", **SMALL)
    assert max(action for _, action in EXECUTED) <= 0.5
    assert run.result["training"]["corrections"] > 0
    assert run.result["rules_left_out_of_backup"] == {}
    assert run.resume(steps=70, progress=False).result["steps"] == 70


class Place:
    """What a rule may read that is no number."""

    def __init__(self, boat):
        self.boat = boat


@pytest.mark.parametrize("offline", [False, True])
def test_a_rule_that_reads_an_object_is_left_out_of_the_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offline: bool
) -> None:
    EXECUTED.clear()
    data = log(tmp_path) if offline else None
    run = gx.train(
        Boat, not_full_ahead, data, steps=60, out=tmp_path / "boat",
        guard_options={"state": lambda env, observation, info: Place(env.unwrapped)}, **(SMALL | {"progress": True}),
    )  # fmt: skip
    assert max(action for _, action in EXECUTED) <= 0.5
    assert (
        "1 of 1 rules (not full ahead) holds at execution only, not in the value backup"
        in capsys.readouterr().err
    )
    blocked = run.result["audit"]["rules"]["not full ahead"]["blocked"]
    assert blocked > 0
    assert run.result["rules_left_out_of_backup"] == {"not full ahead": {"proposals_blocked": blocked}}


@gx.bounds_rule(name="gentle by place")
def gentle_by_place(place):
    return gentle.fn([0, np.float32(place.boat.v)])


@pytest.mark.parametrize("offline", [False, True])
def test_structured_rules_beside_it_keep_their_exact_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offline: bool
) -> None:
    EXECUTED.clear()
    run = gx.train(
        Boat, [not_full_ahead, gentle_by_place], log(tmp_path) if offline else None, steps=60, out=tmp_path / "boat",
        guard_options={"state": lambda env, observation, info: Place(env.unwrapped)},
        offline_state="" if not offline else f"{__name__}:place_of", **(SMALL | {"progress": True}),
    )  # fmt: skip
    assert "1 of 2 rules (not full ahead) holds at execution only" in capsys.readouterr().err
    assert list(run.result["rules_left_out_of_backup"]) == ["not full ahead"]
    assert all(action <= 0.5 and abs(action) <= (0.3 if abs(v) > 0.2 else 1) for v, action in EXECUTED)
    trainer, _, _ = resume(run.folder, steps=70)
    assert trainer.learner.config.backup == "project"
    lines = [trainer.online.timeline] + ([trainer.task.offline.timeline] if offline else [])
    for line in lines:
        stored = decode(line.safe_set, trainer.learner.safe_set_spec)
        limit = np.where(np.abs(line.observation[:, 1]) > 0.2, 0.3, 1.0)
        used = line.is_step
        assert used.sum() > 30
        assert stored.contains(limit[:, None] - 1e-3)[used].all()
        assert not stored.contains(limit[:, None] + 1e-3)[used].any()


def place_of(observations):
    return [Place(SimpleNamespace(v=float(v))) for v in observations[:, 1]]


def log(folder: Path) -> Path:
    np.savez(
        folder / "log.npz", observations=np.linspace([0, 0], [0, 0.4], 40, dtype=np.float32),
        actions=np.zeros((40, 1), np.float32), rewards=np.ones(40, np.float32), terminals=np.arange(40) % 10 == 9,
    )  # fmt: skip
    return folder / "log.npz"


def test_without_rules_it_trains_unguarded_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = gx.train("CartPole-v1", steps=50, out=tmp_path / "pole", **(SMALL | {"progress": True}))
    assert run.result["guard"] == "no rules"
    assert "training without a guard" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:rule 'gentle' is not batched")
def test_data_may_be_a_dataset(tmp_path: Path) -> None:
    from rlpd_gx.replay.offline import load

    run = gx.train(Boat, [gentle], load(log(tmp_path)), steps=30, out=tmp_path / "boat", **SMALL)
    assert run.result["rows"]["offline"] > 0


def test_a_dataset_with_actions_that_the_environment_lacks_is_refused(tmp_path: Path) -> None:
    from rlpd_gx.replay.offline import load

    np.savez(
        tmp_path / "pole.npz",
        observations=np.zeros((20, 4), np.float32),
        next_observations=np.zeros((20, 4), np.float32),
        actions=np.where(np.arange(20) == 7, 5, 1),
        rewards=np.ones(20),
        terminals=np.arange(20) == 19,
    )
    with pytest.raises(gx.GxError, match="row 7: is 5, but the environment has actions 0 to 1"):
        gx.train("CartPole-v1", offline=load(tmp_path / "pole.npz"), steps=1, out=tmp_path / "pole", **SMALL)


@pytest.mark.filterwarnings("ignore:rule 'gentle' is not batched")
def test_a_mistake_leaves_no_copy_of_the_dataset(tmp_path: Path) -> None:
    from rlpd_gx.replay.offline import load

    data, out = load(log(tmp_path)), tmp_path / "boat"
    with pytest.raises(gx.GxError, match="tree-backup needs discrete actions"):
        gx.train(Boat, [gentle], data, steps=30, sampler="tree-backup", out=out, **SMALL)
    assert not out.exists()
    run = gx.train(Boat, [gentle], data, steps=30, out=out, **SMALL)
    assert run.result["rows"]["offline"] > 0
    plain = gx.train(Boat, [gentle], steps=30, out=tmp_path / "plain", **SMALL)
    with pytest.raises(gx.GxError, match="holds a run already"):
        gx.train(Boat, [gentle], data, steps=30, out=plain.folder, **SMALL)
    assert not (plain.folder / "offline").exists()


def test_an_environment_that_is_made_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gx.GxError, match="give its class"):
        gx.train(Boat(), [gentle], out=tmp_path / "boat")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fallbak", "gx.train: guard_options has no 'fallbak'; did you mean fallback?"),
        ("unsafe_evnt", "did you mean unsafe_event?"),
        ("colour", "there are state, embedding, unsafe_event, fallback"),
    ],
)
def test_an_unknown_guard_option_is_refused(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(gx.GxError, match=re.escape(says)):
        gx.train(Boat, [gentle], out=tmp_path / "boat", guard_options={name: 0})
    with pytest.raises(gx.GxError, match=f"gx.Run: guard_options has no '{name}'"):
        gx.Run(tmp_path / "boat", env=Boat, rules=[gentle], guard_options={name: 0})
    assert not (tmp_path / "boat").exists()


def test_text_is_not_taken_for_a_list_of_letters(tmp_path: Path) -> None:
    with pytest.raises(
        gx.GxError, match=re.escape("track takes a list, not the text 'wandb'; write track=['wandb']")
    ):
        gx.train(Boat, [gentle], out=tmp_path / "boat", track="wandb")
    with pytest.raises(gx.GxError, match=re.escape("write metrics=['returns']")):
        gx.Run(tmp_path / "boat").evaluate(metrics="returns")
    with pytest.raises(gx.GxError, match=re.escape("write names=['returns']")):
        gx.metrics.measure([], "returns")
    assert not (tmp_path / "boat").exists()


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import rlpd_gx as gx
from test_api import Boat, SMALL, gentle

def make(**kwargs):
    return Boat()

if sys.argv[1] == "begin":
    gx.train(make, [gentle], steps=40, out="boat", **SMALL)
else:
    print(gx.Run("boat", env=make, rules=[gentle]).resume(steps=60, progress=False).result["steps"])
"""


def test_objects_of_another_process_are_handed_over_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SCRIPT.format(here=str(Path(__file__).parent))))

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True)

    assert call("mine.py", "begin").returncode == 0
    alone = call("-m", "rlpd_gx", "train", "--resume=boat")
    assert alone.returncode == 2
    assert "started from Python" in alone.stderr
    played = call("-m", "rlpd_gx", "evaluate", "boat")
    assert played.returncode == 2
    assert "run.evaluate()" in played.stderr
    again = call("mine.py", "again")
    assert again.stdout.strip() == "60", again.stderr


HARBOUR = """
from test_api import Boat, gentle
import rlpd_gx as gx

@gx.bounds_rule(name="slow")
def slow(observation):
    return [-0.5], [0.5]

@gx.rule(name="ahead")
def ahead(observation, action):
    return bool(action[0] > -0.4)

both = slow & ahead
listed = [slow, ahead]
"""
EVENT = """
def unsafe_event(observation, reward, terminated, truncated, info):
    return True
"""


@pytest.fixture
def harbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Writes a module of rules where other processes find it too."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(more: str = "") -> ModuleType:
        (tmp_path / "harbour.py").write_text(HARBOUR + more)
        return importlib.import_module("harbour")

    yield write
    sys.modules.pop("harbour", None)


def stored(run: gx.Run) -> str:
    return json.loads((run.folder / "config.json").read_text())["rules"]


@pytest.mark.parametrize("name", ["slow", "both", "listed"])
def test_rules_that_a_module_holds_are_stored_by_name(
    harbour: Callable[..., ModuleType], tmp_path: Path, name: str
) -> None:
    run = gx.train(Boat, getattr(harbour(), name), steps=40, out=tmp_path / "run", **SMALL)
    assert stored(run) == f"harbour:{name}"
    command = [sys.executable, "-m", "rlpd_gx", "evaluate", "run", "--episodes=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rules_that_no_module_holds_are_given(harbour: Callable[..., ModuleType], tmp_path: Path) -> None:
    module = harbour()
    for number, rules in enumerate(([module.slow], module.slow & module.ahead, gx.rule(lambda o, a: True))):
        run = gx.train(Boat, rules, steps=40, out=tmp_path / str(number), **SMALL)
        assert stored(run).startswith("given_to_rlpd_gx")


def test_a_rule_passed_as_an_object_is_watched_by_what_is_passed(
    harbour: Callable[..., ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name brings what its module defines, so it is used only where that is the same."""
    module = harbour(EVENT)
    alone = gx.train(Boat, module.slow, steps=40, out=tmp_path / "alone", **SMALL)
    said = capsys.readouterr().err
    assert (
        "harbour defines unsafe_event, which rules passed as objects do not use; pass it in guard_opt" in said
    )
    assert "or give rules='harbour:slow'" in said
    options = {"unsafe_event": module.unsafe_event}
    watched = gx.train(Boat, module.slow, steps=40, out=tmp_path / "watched", guard_options=options, **SMALL)
    by_name = gx.train(Boat, "harbour:slow", steps=40, out=tmp_path / "named", **SMALL)
    assert capsys.readouterr().err == ""
    assert stored(alone).startswith("given_to_rlpd_gx")
    assert stored(watched) == stored(by_name) == "harbour:slow"
    events = [run.result["training"]["unsafe_events"] for run in (alone, watched, by_name)]
    assert events[0] == 0
    assert events[1] == events[2] > 0


class Quay(Boat):
    """The same with another reward, so that a return tells which of them was played."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 1.0, terminated, truncated, info


NAMES = {"new": None, "of an earlier version": "given_to_rlpd_gx_1"}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_two_runs_given_their_objects_again_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    makers = {"boat": lambda **kwargs: Boat(), "quay": lambda **kwargs: Quay()}
    for folder, make in makers.items():
        with monkeypatch.context() as patch:
            if name is not None:
                patch.delitem(sys.modules, name, raising=False)
                patch.setattr("rlpd_gx.api.secrets.token_hex", lambda count: "1")
            gx.train(make, [gentle], steps=40, out=tmp_path / folder, **SMALL)
    for module in [module for module in sys.modules if module.startswith("given_to_rlpd_gx")]:
        monkeypatch.delitem(sys.modules, module)  # as in another process
    runs = {folder: gx.Run(tmp_path / folder, env=make, rules=[gentle]) for folder, make in makers.items()}
    assert runs["boat"].evaluate(1)["mean"] < 0
    assert runs["quay"].evaluate(1)["mean"] == 25
    again = runs["boat"].resume(steps=50, progress=False)
    assert runs["quay"].resume(steps=50, progress=False).result["evaluation"]["mean"] == 25
    assert again.evaluate(1)["mean"] < 0


def test_a_run_of_another_process_leaves_a_live_one_alone(tmp_path: Path) -> None:
    makers = [lambda **kwargs: Boat(), lambda **kwargs: Quay()]
    live, other = (
        gx.train(make, [gentle], steps=40, out=tmp_path / str(number), **SMALL)
        for number, make in enumerate(makers)
    )
    names = [json.loads((run.folder / "config.json").read_text())["env"] for run in (live, other)]
    assert names[0] != names[1]
    # numbers that begin again in each process gave both this name
    assert not {f"given_to_rlpd_gx_{n}:env" for n in range(1, 100)} & set(names)
    gx.Run(other.folder, env=makers[1], rules=[gentle])
    assert live.evaluate(1)["mean"] < 0


class Mixed(gym.Env):
    """Observations of every kind, nested."""

    observation_space = gym.spaces.Dict(
        {
            "pose": gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(4))),
            "lamps": gym.spaces.MultiBinary(3),
            "dials": gym.spaces.Dict({"left": gym.spaces.MultiDiscrete([2, 5])}),
        }
    )
    action_space = gym.spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(action == 2), False, self.t >= 10, {}


@gx.mask_rule(name="not three")
def not_three(state):
    # rules read the observation as the environment gives it
    return np.array([True, True, state["pose"][1] < 2])


def test_a_damaged_checkpoint_is_not_replaced_by_an_older_policy_in_silence(tmp_path: Path, capsys) -> None:
    run = gx.train(Boat, gentle, steps=60, checkpoint_every=20, out=tmp_path / "run", **SMALL)
    newest = sorted((run.folder / "checkpoints").iterdir())[-1] / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    for use in (lambda: run.policy, lambda: run.evaluate(1), lambda: gx.load_policy(run.folder)):
        with pytest.raises(gx.GxError, match=r"damaged.*; continue from the checkpoint before it with"):
            use()
    run.resume()
    assert "is used instead" in capsys.readouterr().err
    assert run.result["steps"] == 60
    run.evaluate(1)


def test_a_run_is_not_put_into_a_dataset(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", observations=np.zeros((4, 2), np.float32), actions=np.zeros((4, 1), np.float32),
             rewards=np.zeros(4), terminals=np.array([False, False, False, True]))  # fmt: skip
    from rlpd_gx.replay.offline import load

    load(tmp_path / "a.npz").save(tmp_path / "data")
    with pytest.raises(gx.GxError, match="holds a dataset; choose another --out"):
        gx.train(Boat, gentle, steps=20, out=tmp_path / "data", **SMALL)


class Pair(gym.Env):
    """Observations are a tuple with unlike parts; a checkpoint holds the whole environment."""

    observation_space = gym.spaces.Tuple((gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(8)))
    action_space = gym.spaces.Discrete(3)
    told: ClassVar[list[int]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        Pair.told.append(int(action))
        self.t += 1
        return self._seen(), float(action), False, self.t >= 7, {}

    def snapshot(self):
        return {"t": self.t}

    def restore(self, saved):
        self.t = saved["t"]

    def _seen(self):
        return np.full(2, self.t, np.float32), np.int64(self.t)


@gx.mask_rule(name="late is low")
def late_is_low(state):
    where, time = state
    assert where.shape == (2,)
    return np.array([True, True, time < 4])


def test_a_tuple_of_unlike_parts_is_trained_on_and_resumed(tmp_path: Path) -> None:
    settings = SMALL | {"steps": 53, "checkpoint_every": 10}  # ends inside an episode
    run = gx.train(Pair, late_is_low, out=tmp_path / "run", **settings)
    first = len(Pair.told)
    run.resume(steps=60, progress=False)
    assert run.result["training"]["proposals"] == 60
    assert all(action < 2 for t, action in zip((4, 5, 6), Pair.told[first : first + 3], strict=True))


def test_an_evaluation_counts_near_misses_as_the_rules_declare_them(tmp_path: Path) -> None:
    run = gx.train(Boat, gentle, steps=40, out=tmp_path / "run", guard_options={"near_miss": 100.0}, **SMALL)
    found = run.evaluate(episodes=1)
    assert found["near_misses"] + found["corrections"] == found["proposals"] == 25


def test_observations_of_every_kind(tmp_path: Path) -> None:
    run = gx.train(Mixed, not_three, steps=60, num_envs=2, out=tmp_path / "mixed", **SMALL)
    assert run.result["training"]["corrections"] > 0
    observation, _ = Mixed().reset(seed=3)
    verdict = run.policy.act(observation)
    assert verdict.action in (1, 2, 3)
    assert run.resume(steps=80, progress=False).result["steps"] == 80
