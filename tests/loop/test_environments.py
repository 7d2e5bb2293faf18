"""What a step of all environments brings back: events, margins and stored safe sets, also where rules fail."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.config import LearnerConfig
from rlpd_gx.loop.environments import Environments, Member
from rlpd_gx.loop.evaluate import count, evaluate
from rlpd_gx.metrics import METRICS
from rlpd_gx.replay.offline.record import Recorder
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.timeline import Layout


class Line(gym.Env):
    """Two actions; the observation counts the steps."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.array([self.time], np.float32), 1.0, False, self.time >= 3, {}


@gx.mask_rule(name="only one")
def only_one(observation: Any) -> Any:
    return np.array([False, True])


@gx.mask_rule(name="nothing")
def nothing(observation: Any) -> Any:
    return np.array([False, False])


@gx.mask_rule(name="broken")
def broken(observation: Any) -> Any:
    if observation[0] > 0:
        raise RuntimeError("no answer")
    return np.array([True, True])


@gx.margin_rule(name="lazy", lazy=True)
def lazy(observation: Any, action: Any) -> float:
    return 1.0


def _environments(rules: Any, **options: Any) -> Environments:
    env = gx.GuardedEnv(Line(), rules, **options)
    env.reset(seed=0)
    example = env.safe_set()
    assert example is not None
    width = example.encode().shape
    encode: Callable[..., Any] = lambda s: np.zeros(width, np.uint8) if s is None else s.encode()  # noqa: E731
    environments = Environments([env], encode, 1, example)
    environments.reset(np.ones(1, bool), [0])
    return environments


def _allowed(environments: Environments, code: Any) -> list[bool]:
    decoded = gx.decode(code, environments.example.spec)  # type: ignore[union-attr]
    assert isinstance(decoded, gx.Mask)
    return decoded.allowed.tolist()


@gx.mask_rule(name="mute")
def mute(observation: Any) -> Any:
    raise RuntimeError("no answer")


class Proposer:
    """A policy as `evaluate` asks it: always the first action."""

    device, config = "cpu", LearnerConfig()

    def act(self, observation: Any, safe_sets: Any = None, **options: Any) -> Any:
        return np.zeros(1, np.int64)


def test_an_evaluation_of_episodes_that_the_guardian_stopped_says_so() -> None:
    env = gx.GuardedEnv(Line(), mute)
    environments = Environments([env], lambda s: np.zeros(0, np.uint8), 1, None)
    row = evaluate(Proposer(), environments, 3, 0, sample=False).row()  # type: ignore[arg-type]
    assert (row["steps"], row["proposals"], row["stopped"], row["corrections"]) == (0, 3, 3, 3)
    assert (row["episodes"], row["episodes_corrected"]) == (3, 3)
    assert "no answer" in next(iter(row["reasons"]))
    counted = env.audit.tally.as_dict()
    assert {name: value for name, value in counted.items() if name not in ("reasons", "rules")} == {
        name: row[name] for name in counted if name not in ("reasons", "rules")
    }


def test_a_stop_is_a_correction_but_no_step() -> None:
    environments, tally = _environments([broken, only_one]), gx.Tally()
    for _ in range(2):
        count(tally, environments.step(np.array([1])), environments)
    (episode,) = environments.finished
    assert (episode.length, episode.corrections, episode.stopped) == (1, 1, True)
    assert (tally.proposals, tally.allowed, tally.stopped, tally.episodes_corrected) == (2, 1, 1, 1)
    assert tally.rates()["stopped_rate"] == 0.5
    assert METRICS["safety"](environments.finished)["correction_rate"] == 0.5


def test_events_that_a_rule_module_tells_are_counted() -> None:
    environments = _environments(only_one, unsafe_event=lambda observation, *rest: observation[0] == 2)
    seen = [environments.step(np.array([1])) for _ in range(3)]
    assert [bool(o.unsafe_event[0]) for o in seen] == [False, True, False]
    assert environments.finished[0].unsafe_events == 1


@pytest.mark.parametrize("watched", [False, True])
def test_episodes_are_counted_where_they_end(watched: bool) -> None:
    told = {"unsafe_event": lambda *step: True} if watched else {}
    environments, tally = _environments(only_one, **told), gx.Tally()
    for episode in range(2):
        for _ in range(3):
            count(tally, environments.step(np.array([episode])), environments)
        environments.reset(np.ones(1, bool))
    assert (tally.episodes, tally.episodes_corrected) == (2, 1)
    assert (tally.episodes_watched, tally.episodes_with_unsafe_event) == ((2, 2) if watched else (0, 0))


def test_where_nothing_reports_unsafe_events_no_rate_is_said_to_be_zero() -> None:
    environments = _environments(only_one)
    for _ in range(3):
        environments.step(np.array([1]))
    assert environments.finished[0].unsafe_events is None
    assert METRICS["safety"](environments.finished).keys() == {"correction_rate"}


@pytest.mark.parametrize("rules", [[lazy, only_one], [only_one, lazy]])
def test_a_rule_that_was_not_asked_hides_nothing(rules: Any) -> None:
    environments, tally = _environments(rules, mode="monitor"), gx.Tally()
    outcome = environments.step(np.array([0]))
    count(tally, outcome, environments)
    assert (tally.forbidden_proposals, tally.forbidden_executed) == (1, 1)
    assert outcome.margin[0] < 0


def test_a_fallback_that_is_allowed_does_not_cut_a_span() -> None:
    """Spans end before a later action with a margin below zero: the stored margin is the executed action's."""
    environments = _environments([broken, only_one], fallback=1)
    outcomes = [environments.step(np.array([0])) for _ in range(2)]
    statuses = [str(o.verdicts[0].status) for o in outcomes]  # type: ignore[union-attr]
    assert statuses == ["projected", "fallback"]
    assert [int(o.executed_action[0]) for o in outcomes] == [1, 1]
    assert all(o.verdicts[0].margin < 0 for o in outcomes)  # type: ignore[union-attr]
    assert all(o.margin[0] >= 0 for o in outcomes)


@pytest.mark.parametrize("known_before", [False, True])
def test_where_nothing_is_allowed_the_executed_action_alone_is_stored(known_before: bool) -> None:
    environments = _environments(nothing)
    outcome = environments.step(np.array([1]), environments.safe_sets() if known_before else None)
    assert outcome.verdicts[0].inevitable  # type: ignore[union-attr]
    stored = _allowed(environments, outcome.safe_set[0])
    assert stored == [a == outcome.executed_action[0] for a in (0, 1)]


@pytest.mark.parametrize("known_before", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_where_the_guardian_stops_the_step_before_does_not_bootstrap_from_the_refused_action(
    first: int, known_before: bool
) -> None:
    environments = _environments(broken)
    width = environments.safe_sets().shape[1:]
    observation, action, code = ((np.float32, (1,)), (np.int64, ()), (np.uint8, width))
    ring = Ring(Layout(np.dtype(observation), np.dtype(action), np.dtype(code)), 10)
    ring.begin(environments.frame)
    for proposed in (first, 1 - first):
        outcome = environments.step(np.array([proposed]), environments.safe_sets() if known_before else None)
        ring.complete(outcome.safe_set)
        ring.add(outcome)
    assert outcome.stop_reasons[0]
    line = ring.timeline
    (step,) = np.flatnonzero(line.is_step)
    assert line.executed_action[step] == first
    assert _allowed(environments, line.safe_set[step + 1]) == [a == first for a in (0, 1)]


def test_a_stop_in_the_first_step_is_stored_nowhere() -> None:
    environments = _environments(only_one)
    environments.members[0].env = gx.GuardedEnv(Line(), mute)
    environments.reset(np.ones(1, bool))
    outcome = environments.step(np.array([1]))
    assert not outcome.executed[0]
    assert outcome.safe_set.shape == environments.encode(environments.example)[None].shape


def test_a_failing_rule_falls_back_everywhere() -> None:
    environments = _environments(broken, fallback=0)
    environments.step(np.array([1]))
    for _ in range(2):
        outcome = environments.step(np.array([1]), environments.safe_sets())
        assert outcome.executed_action[0] == 0
        assert _allowed(environments, outcome.safe_set[0]) == [True, False]
    assert outcome.truncated[0]
    assert _allowed(environments, outcome.next_safe_set[0]) == [True, False]


@pytest.mark.parametrize("name", ["success", "is_success"])
def test_success_is_counted_where_the_environment_tells_of_it(name: str) -> None:
    class Told(Line):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {name: np.bool_(self.time >= 2)}

    def played(env: gym.Env) -> int | None:
        environments = Environments([env], lambda s: np.zeros(0, np.uint8), 1, None)
        environments.reset(np.ones(1, bool))
        for _ in range(3):
            environments.step(np.array([0]))
        return environments.finished[0].success_steps

    assert played(Told()) == 2
    assert played(Line()) is None


class Assisted(Line):
    """A person chooses action 1 in the second step, and the environment reports it as HIL-SERL does."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *outcome, info = super().step(action)
        return *outcome, {"intervene_action": 1} if self.time == 2 else info  # type: ignore[return-value]


@gx.mask_rule(name="only zero")
def only_zero(observation: Any) -> Any:
    return np.array([True, False])


def test_what_a_person_did_under_a_guard_is_stored_and_counted() -> None:
    environments, tally = _environments(only_zero), gx.Tally()
    environments.members[0].env = gx.GuardedEnv(Assisted(), only_zero)
    environments.reset(np.ones(1, bool))
    steps = [environments.step(np.array([0])) for _ in range(3)]
    for step in steps:
        count(tally, step, environments)
    assert [int(step.executed_action[0]) for step in steps] == [0, 1, 0]
    assert [bool(step.margin[0] < 0) for step in steps] == [False, True, False]
    assert (tally.forbidden_proposals, tally.forbidden_executed) == (0, 1)
    assert environments.finished[0].human_steps == 1


def test_a_recorder_stores_what_a_person_did() -> None:
    class Kept:
        def add(self, episode: Any, start: Any) -> None:
            self.episode = episode

    for guarded in (False, True):
        sink = Kept()
        env = gx.GuardedEnv(Assisted(), only_zero) if guarded else Assisted()
        recorder = Recorder(env, sink, seed=0)  # type: ignore[arg-type]
        recorder.reset()
        for _ in range(3):
            recorder.step(0)
        assert sink.episode.actions.tolist() == [0, 1, 0]
        if guarded:
            assert sink.episode.proposed_actions.tolist() == [0, 0, 0]
            assert (sink.episode.margins < 0).tolist() == [False, True, False]


def test_what_a_person_did_is_what_ran() -> None:
    environments = Environments([Assisted()], lambda s: np.zeros(0, np.uint8), 1, None)
    environments.reset(np.ones(1, bool))
    steps = [environments.step(np.array([0])) for _ in range(3)]
    assert [int(step.proposed_action[0]) for step in steps] == [0, 0, 0]
    assert [int(step.executed_action[0]) for step in steps] == [0, 1, 0]
    assert environments.finished[0].human_steps == 1


class Numb(gym.Env):
    """Its third observation, or its third reward, is NaN or what else is given."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Dict({"place": gym.spaces.Box(-1, 1, (2,), np.float32)})

    def __init__(self, what: str, value: Any = np.nan) -> None:
        self.what, self.value, self.t = what, value, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        reward = self.value if self.what == "reward" and self.t == 3 else 0.0
        return self._seen(), reward, False, False, {}

    def _seen(self):
        return {"place": np.full(2, self.value if self.what == "place" and self.t == 3 else 0.0, np.float32)}


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        ("place", np.nan, "place holds NaN"),
        ("place", -np.inf, "place holds -inf"),
        ("reward", np.nan, "the reward is nan"),
        ("reward", None, "the reward is None, not a number"),
        ("reward", "1", "the reward is '1', not a number"),
        ("reward", np.ones(1), r"the reward is array\(\[1.\]\), not a number"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_where_it_comes_from(what: str, value: Any, said: str) -> None:
    member = Member(Numb(what, value), 0)
    member.reset(0)
    member.step(0)
    member.step(0)
    with pytest.raises(
        gx.GxError, match=rf"Numb, step [23] of an episode: (observation/)?{said}.*: mend the environment$"
    ):
        member.step(0)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0)])
def test_any_number_is_a_reward(reward: Any) -> None:
    member = Member(Numb("reward", reward), 0)
    member.reset(0)
    assert [member.step(0)[0] for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("space", "observation", "said"),
    [
        (gym.spaces.Discrete(5, start=2), 1, "observation is 1, outside its space"),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 3]), r"observation is \[1 3\], outside its space"),
        (
            gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(2)),
            {"a": 0},
            "it returned observation/a,",
        ),
        (gym.spaces.Box(-1, 1, (2,)), None, "observation is None, not numbers"),
    ],
)
def test_an_observation_that_is_not_of_its_space_is_refused(space: Any, observation: Any, said: str) -> None:
    env = Numb("nothing")
    env.observation_space = space
    env._seen = lambda: observation  # type: ignore[method-assign]
    with pytest.raises(gx.GxError, match=f"Numb, step 0 of an episode: {said}.*: mend the environment$"):
        Member(env, 0).reset(0)
