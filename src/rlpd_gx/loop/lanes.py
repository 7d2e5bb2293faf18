"""Environments side by side, each behind its own guard; what a step of all of them brings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.guardian import GuardedEnv
from rlpd_gx.loop.sets import only
from rlpd_gx.rules import Lookahead
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.types import Array, Observation, Status, Verdict


@dataclass(frozen=True)
class Finished:
    """An episode as it is reported: unclipped, and over the whole game where a life ends the Learner's."""

    lane: int
    score: float
    length: int
    interventions: int
    unsafe_events: int
    success_steps: int | None
    """Steps whose info tells of success; None where the environment never says."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One step of every lane; arrays are [L, ...]."""

    executed_action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: Observation
    safe_set: Array
    """Codes [L, width] of the sets the actions were chosen from."""
    next_safe_set: Array
    """Codes after the step, only where an episode was truncated: elsewhere the next step brings them."""
    margin: Array
    unsafe_event: Array
    stepped: Array
    """False where the Guardian let nothing be executed and ended the episode."""
    verdicts: Sequence[Verdict | None]
    finished: Sequence[Finished]

    @property
    def ended(self) -> Array:
        """[L] bool: these lanes must be reset."""
        return self.terminated | self.truncated | ~self.stepped


class Lane:
    """One environment, its present observation, and the running counts of its episode."""

    def __init__(self, env: gym.Env, index: int) -> None:
        self.env, self.index = env, index
        self.observation: Any = None
        self.restart()

    def restart(self) -> None:
        """Count from nothing."""
        self.score, self.length, self.interventions, self.unsafe_events = 0.0, 0, 0, 0
        self.success_steps: int | None = None

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self.observation, info = self.env.reset(seed=seed)
        if self.length:  # the game goes on after a lost life, with a step that nobody proposed
            self.score += float(info.get("raw_reward", 0.0))
            self.unsafe_events += bool(info.get("unsafe_event", False))

    def step(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        """Propose an action; reward, terminated, truncated and info come back."""
        self.observation, reward, terminated, truncated, info = self.env.step(action)
        if "guardian_stop" in info:
            return 0.0, False, True, info
        verdict = info.get("guardian")
        self.score += float(info.get("raw_reward", reward))
        self.length += 1
        self.interventions += verdict is not None and verdict.corrected
        self.unsafe_events += bool(info.get("unsafe_event", False))
        success = info.get("success", info.get("is_success"))  # as robotics environments name it
        if success is not None:
            self.success_steps = (self.success_steps or 0) + bool(success)
        return float(reward), bool(terminated), bool(truncated), info

    def finish(self) -> Finished:
        """The episode is over: its counts, which start again."""
        done = Finished(lane=self.index, **self.counts())
        self.restart()
        return done

    def counts(self) -> dict[str, Any]:
        """The running counts, for a checkpoint."""
        names = ("score", "length", "interventions", "unsafe_events", "success_steps")
        return {name: getattr(self, name) for name in names}


class Lanes:
    """L lanes stepped together. Learners see [L, ...] arrays; `stack` frames make an observation."""

    def __init__(
        self,
        envs: Sequence[gym.Env],
        encode: Callable[[SafeSet | None], Array],
        stack: int,
        example: SafeSet | None,
    ) -> None:
        self.lanes = [Lane(env, i) for i, env in enumerate(envs)]
        self.encode, self.stack, self.example = encode, stack, example

    @property
    def observation(self) -> Observation:
        """[L, ...] what the Learner sees now."""
        return _stacked([lane.observation for lane in self.lanes])

    @property
    def frame(self) -> Observation:
        """[L, ...] what the replay stores of it: the newest frame."""
        return self.newest(self.observation)

    def newest(self, observation: Observation) -> Observation:
        """The newest frame of stacked observations [L, stack, ...]."""
        if self.stack == 1:
            return observation
        assert isinstance(observation, np.ndarray)
        return observation[:, -1]

    def reset(self, where: Array, seeds: Sequence[int] | None = None) -> None:
        """Begin episodes in some lanes [L] bool."""
        for i in np.flatnonzero(where).tolist():
            self.lanes[i].reset(None if seeds is None else seeds[i])

    def look_aheads(self, lane: Lane) -> list[Lookahead]:
        """The rules of a lane whose verdicts depend on those before, and which simulate steps."""
        if not isinstance(lane.env, GuardedEnv):
            return []
        atoms = [atom for rule in lane.env.guardian.rules for atom in rule.atoms()]
        return [atom for atom in atoms if isinstance(atom, Lookahead)]

    @property
    def simulated_steps(self) -> int:
        """Steps that rules have tried in a model of the world; to be told beside those of the world."""
        return sum(rule.simulated_steps for lane in self.lanes for rule in self.look_aheads(lane))

    @property
    def lazy(self) -> bool:
        """Whether a verdict may leave actions untested."""
        return any(isinstance(lane.env, GuardedEnv) and lane.env.guardian.lazy for lane in self.lanes)

    def safe_sets(self) -> Array:
        """Codes [L, width] of the whole safe sets in the present states."""
        return np.stack([self.encode(_safe_set(lane.env)) for lane in self.lanes])

    def step(self, proposed: Array, complete: Array | None = None) -> Outcome:
        """Step every lane. `complete` [L, width] are the safe sets, where they are known already."""
        known = [None] * len(self.lanes) if complete is None else complete
        rows = [self._step(lane, proposed[i], known[i]) for i, lane in enumerate(self.lanes)]
        executed, reward, terminated, truncated, code, final, margin, unsafe, stepped, verdicts, finished = (
            zip(*rows, strict=True)
        )
        return Outcome(
            executed_action=np.stack(executed),
            reward=np.array(reward, np.float32),
            terminated=np.array(terminated),
            truncated=np.array(truncated),
            next_observation=self.observation,
            safe_set=np.stack(code),
            next_safe_set=np.stack(final),
            margin=np.array(margin, np.float32),
            unsafe_event=np.array(unsafe),
            stepped=np.array(stepped),
            verdicts=verdicts,
            finished=[f for f in finished if f is not None],
        )

    def _step(self, lane: Lane, proposed: Any, known: Array | None) -> tuple[Any, ...]:
        reward, terminated, truncated, info = lane.step(proposed)
        verdict, stepped = info.get("guardian"), "guardian_stop" not in info
        executed = proposed if verdict is None else verdict.action
        regular = verdict is not None and verdict.status in (Status.ALLOWED, Status.PROJECTED)
        found = verdict.safe_set if verdict is not None and regular else None
        code = known if known is not None and regular else self.encode(self._or_only(found, executed))
        ended = terminated or truncated
        final = np.zeros_like(code)
        if truncated and stepped:  # a state that was cut is bootstrapped from
            final = self.encode(self._or_only(_safe_set(lane.env), executed))
        over = info.get("game_over", ended) or truncated
        margin = np.nan if verdict is None else verdict.executed_margin
        return (
            np.asarray(executed), reward, terminated, truncated, code, final, margin,
            bool(info.get("unsafe_event", False)), stepped, verdict, lane.finish() if over else None,
        )  # fmt: skip

    def _or_only(self, safe_set: SafeSet | None, action: Any) -> SafeSet | None:
        """What is stored for the backup: an empty or unknown set becomes the action that ran, alone."""
        if self.example is None:
            return None
        here = np.asarray(action)
        if safe_set is None or bool(np.all(safe_set.nearest(here).empty)):
            return only(self.example, here)
        return safe_set

    def code(self, lane: Lane) -> Array:
        """The code [width] in the present state of a lane, where no action has been chosen yet."""
        blank = lane.env.guardian.blank_actions(1)[0] if isinstance(lane.env, GuardedEnv) else None
        return self.encode(self._or_only(_safe_set(lane.env), blank))


def _safe_set(env: gym.Env) -> SafeSet | None:
    """The safe set in the present state; None without rules, or where they cannot be asked."""
    if not isinstance(env, GuardedEnv):
        return None
    try:
        return env.safe_set()
    except GxError:  # the verdict will fall back, and say so
        return None


def _stacked(observations: Sequence[Any]) -> Observation:
    if isinstance(observations[0], Mapping):
        return {key: np.stack([o[key] for o in observations]) for key in observations[0]}
    return np.stack(observations)
