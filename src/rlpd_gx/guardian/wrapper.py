"""Guarded environments: any Gymnasium environment, any agent, no forbidden action."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rlpd_gx.errors import GxError, StopEpisode
from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.guardian import Guardian
from rlpd_gx.guardian.reading import pick
from rlpd_gx.guardian.verdicts import VerdictBatch
from rlpd_gx.rules import Rule
from rlpd_gx.types import Context, Verdict

StateOf = Callable[[Any, Any, dict[str, Any]], Any]  # (env, observation, info) -> what the rules read
UnsafeEvent = Callable[[Any, SupportsFloat, bool, bool, dict[str, Any]], bool]


class GuardedEnv(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Executes only actions that the rules allow. `info["guardian"]` holds the verdict of each step.

    Args:
        env: the environment to guard.
        rules: a rule, several that must all hold, or a Guardian.
        state: (env, observation, info) -> what the rules read; the observation if not given.
        unsafe_event: (observation, reward, terminated, truncated, info) -> whether what the rules exist to
            prevent has just happened; counted per episode.
        initial_action: what rules that need the previous action see in the first step; zeros in a Box.
        parameters: what rules that need parameters see; a function of the step, or a constant.
        guardian: options of the Guardian (fallback, embedding, mode, deadline, audit, ...).

    An episode for which no action may be executed ends: `step` returns truncated=True with the observation
    unchanged, and nothing has been executed.
    """

    def __init__(
        self,
        env: gym.Env,
        rules: Rule | Iterable[Rule] | Guardian,
        *,
        state: StateOf | None = None,
        unsafe_event: UnsafeEvent | None = None,
        initial_action: Any | None = None,
        parameters: Any | None = None,
        **guardian: Any,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self, rules=rules, state=state, unsafe_event=unsafe_event, initial_action=initial_action,
            parameters=parameters, **guardian,
        )  # fmt: skip
        gym.Wrapper.__init__(self, env)
        self.guardian = _guardian(env.action_space, rules, guardian)
        self._state_of = state or _observation
        self._unsafe_event = unsafe_event
        self._initial_action = _initial_action(self.guardian, env.action_space, initial_action)
        self._parameters = parameters
        self._previous: Any = None
        self._time = 0
        self._last: tuple[Any, dict[str, Any]] | None = None
        self._unsafe = False

    @property
    def audit(self) -> Audit:
        """What the Guardian has counted."""
        return self.guardian.audit

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that was left unfinished is counted as it stands."""
        if self._time > 0:
            self._end_episode()
        observation, info = self.env.reset(seed=seed, options=options)
        self._previous, self._time, self._unsafe = self._initial_action, 0, False
        self._last = (observation, info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Execute the nearest allowed action."""
        if self._last is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        try:
            verdict = self.certify(action)
        except StopEpisode as stop:
            observation, info = self._last
            self._end_episode()
            self._last = None
            return observation, 0.0, False, True, {**info, "guardian_stop": str(stop)}
        observation, reward, terminated, truncated, info = self.env.step(verdict.action)
        info = {**info, "guardian": verdict}
        self._previous, self._time = verdict.action, self._time + 1
        self._last = (observation, info)
        if self._unsafe_event is not None:
            self._unsafe |= bool(self._unsafe_event(observation, reward, terminated, truncated, info))
        if terminated or truncated:
            self._end_episode()
        return observation, reward, terminated, truncated, info

    def certify(self, action: Any) -> Verdict:
        """The verdict on an action in the current state, without executing anything."""
        assert self._last is not None
        parameters = self._parameters(self._time) if callable(self._parameters) else self._parameters
        context = Context(self._previous, self._time, parameters)
        return self.guardian.certify(self._state_of(self.env, *self._last), action, context=context)

    def close(self) -> None:
        """Close the environment; an unfinished episode is counted as it stands."""
        if self._time > 0:
            self._end_episode()
        super().close()

    def _end_episode(self) -> None:
        self.guardian.end_episode(unsafe_event=None if self._unsafe_event is None else self._unsafe)
        self._time, self._unsafe = 0, False


class GuardedVectorEnv(VectorWrapper):
    """Like `GuardedEnv` for a vector environment; all proposals of a step are judged at once.

    `state` is (envs, observations, infos) -> a batch of states; `unsafe_event` returns one answer for each.
    One member cannot be stopped alone: where no action may be executed, `StopEpisode` is raised and nothing has
    been executed in any of them. Declare a fallback to avoid that.
    """

    def __init__(
        self,
        env: VectorEnv,
        rules: Rule | Iterable[Rule] | Guardian,
        *,
        state: StateOf | None = None,
        unsafe_event: Callable[..., Any] | None = None,
        initial_action: Any | None = None,
        parameters: Any | None = None,
        **guardian: Any,
    ) -> None:
        super().__init__(env)
        self.guardian = _guardian(env.single_action_space, rules, guardian)
        self._state_of = state or _observation
        self._unsafe_event = unsafe_event
        first = _initial_action(self.guardian, env.single_action_space, initial_action)
        self._initial_action = None if first is None else np.stack([first] * env.num_envs)
        self._parameters = parameters
        self._last: tuple[Any, dict[str, Any]] | None = None
        self._waits_for_reset = np.zeros(env.num_envs, dtype=bool)
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._autoreset = AutoresetMode(mode) if mode is not None else AutoresetMode.NEXT_STEP
        if self._autoreset is AutoresetMode.DISABLED:
            raise GxError("a guarded vector environment needs autoreset; make it with NEXT_STEP or SAME_STEP")

    @property
    def audit(self) -> Audit:
        """What the Guardian has counted."""
        return self.guardian.audit

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every member."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._previous = None if self._initial_action is None else self._initial_action.copy()
        self._time = np.zeros(self.num_envs, dtype=np.int64)
        self._unsafe = np.zeros(self.num_envs, dtype=bool)
        self._waits_for_reset[:] = False
        self._last = (observations, infos)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Execute the nearest allowed actions."""
        if self._last is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        executed = np.array(actions)
        (alive,) = np.nonzero(
            ~self._waits_for_reset
        )  # the others only reset in this step: no action is executed
        verdicts = self._certify(alive, executed) if len(alive) else None
        if verdicts is not None:
            executed[alive] = verdicts.action
        observations, rewards, terminated, truncated, infos = self.env.step(executed)
        given = np.full(self.num_envs, None, dtype=object)
        for j, i in enumerate(alive.tolist()):
            given[i] = verdicts[j]  # type: ignore[index]
        infos = {**infos, "guardian": given, "_guardian": ~self._waits_for_reset}
        self._after(alive, executed, terminated, truncated, observations, rewards, infos)
        self._last = (observations, infos)
        return observations, rewards, terminated, truncated, infos

    def _certify(self, alive: np.ndarray, actions: np.ndarray) -> VerdictBatch:
        assert self._last is not None
        states = self._state_of(self.env, *self._last)
        parameters = self._parameters(self._time) if callable(self._parameters) else self._parameters
        if parameters is not None and not callable(self._parameters):
            parameters = [parameters] * self.num_envs
        context = Context(self._previous, self._time, parameters)
        if len(alive) < self.num_envs:
            states = pick(states, alive)
            context = Context(*(pick(v, alive) for v in vars(context).values()))
        return self.guardian.certify_batch(states, actions[alive], context=context)

    def _after(
        self, alive: np.ndarray, executed: Any, terminated: Any, truncated: Any, *outcome: Any
    ) -> None:
        """Book-keeping of contexts and episodes after a step."""
        ended = np.asarray(terminated) | np.asarray(truncated)
        if self._unsafe_event is not None:
            observations, rewards, infos = outcome
            self._unsafe |= np.asarray(
                self._unsafe_event(observations, rewards, terminated, truncated, infos), bool
            )
        if self._previous is not None:
            self._previous[alive] = executed[alive]
        self._time[alive] += 1
        started = self._waits_for_reset | (ended if self._autoreset is AutoresetMode.SAME_STEP else False)
        for i in np.flatnonzero(ended).tolist():
            seen = None if self._unsafe_event is None else bool(self._unsafe[i])
            self.guardian.end_episode(unsafe_event=seen)
        fresh = started | ended
        self._time[fresh], self._unsafe[ended] = 0, False
        if self._previous is not None and self._initial_action is not None:
            self._previous[fresh] = self._initial_action[fresh]
        self._waits_for_reset = ended if self._autoreset is AutoresetMode.NEXT_STEP else self._waits_for_reset


def _guardian(space: gym.Space, rules: Any, options: dict[str, Any]) -> Guardian:
    if not isinstance(rules, Guardian):
        return Guardian(space, rules, **options)
    if options:
        raise GxError(f"give {', '.join(options)} to the Guardian itself")
    if rules.action_space != space:
        raise GxError(f"the Guardian was made for {rules.action_space}, the environment has {space}")
    return rules


def _observation(env: Any, observation: Any, info: dict[str, Any]) -> Any:
    return observation


def _initial_action(guardian: Guardian, space: gym.Space, given: Any | None) -> Any | None:
    """What counts as the previous action in the first step."""
    if "previous_action" in guardian.needs:
        warnings.warn(
            "a rule reads the previous action: put that action into the Learner's observation too, or the safe "
            "sets are not a function of what the Learner sees",
            stacklevel=4,
        )
    if given is not None:
        return np.asarray(given, dtype=space.dtype)
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if "previous_action" in guardian.needs:
        raise GxError(
            "a rule needs the previous action; say with initial_action= what it sees in the first step"
        )
    return None
