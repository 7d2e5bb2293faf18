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
from rlpd_gx.guardian.reading import batch_of_one, pick
from rlpd_gx.rules import Rule
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.types import Context, Verdict

StateOf = Callable[[Any, Any, dict[str, Any]], Any]  # (env, observation, info) -> what the rules read
UnsafeEvent = Callable[[Any, SupportsFloat, bool, bool, dict[str, Any]], bool]


class GuardedEnv(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Executes only actions that the rules allow. `info["guardian"]` holds the verdict of each step, and
    `info["unsafe_event"]` what `unsafe_event` said of it.

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
        _refuse_autoreset(env)
        self.guardian = _guardian(env.action_space, rules, guardian)
        self._state_of = state or _observation
        self.unsafe_event = unsafe_event
        self._initial_action = _initial_action(self.guardian, env.action_space, initial_action)
        self._parameters = parameters
        self._previous: Any = None
        self._time = 0
        self._last: tuple[Any, dict[str, Any]] | None = None
        self._unsafe = self._unfinished = False

    @property
    def audit(self) -> Audit:
        """What the Guardian has counted."""
        return self.guardian.audit

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that was left unfinished is counted as it stands."""
        if self._unfinished:
            self._end_episode()
        observation, info = self.env.reset(seed=seed, options=options)
        self._previous, self._time, self._unsafe = self._initial_action, 0, False
        self._last = (_private(observation), info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Execute the nearest allowed action."""
        last = self._current()
        try:
            verdict = self.certify(action)
        except StopEpisode as stop:
            observation, info = last
            self._end_episode()
            self._last = None
            info = {k: v for k, v in info.items() if k != "guardian"}
            return observation, 0.0, False, True, {**info, "guardian_stop": str(stop)}
        # The environment gets a copy of its own: what it does to it must not become the previous action.
        observation, reward, terminated, truncated, info = self.env.step(_private(verdict.action))
        info = {**info, "guardian": verdict}
        self._previous, self._time = _private(verdict.action), self._time + 1
        self._unfinished = True
        self._last = (_private(observation), info)
        if self.unsafe_event is not None:
            seen = bool(self.unsafe_event(observation, reward, terminated, truncated, info))
            info["unsafe_event"] = seen
            self._unsafe |= seen
        if terminated or truncated:
            self._end_episode()
        return observation, reward, terminated, truncated, info

    def certify(self, action: Any) -> Verdict:
        """The verdict on an action in the current state; counted as a proposal, but nothing is executed."""
        state = self._state_of(self.env, *self._current())
        return self.guardian.certify(state, action, context=self._context())

    def safe_set(self) -> SafeSet | None:
        """The safe set in the current state, also after the last step of an episode until the reset.

        None where the rules have no finite description; raises `GxError` where they cannot be asked.
        """
        fields = vars(self._context()).values()
        context = Context(*(None if v is None else batch_of_one(v) for v in fields))
        state = batch_of_one(self._state_of(self.env, *self._current()))
        safe_sets = self.guardian.safe_sets(state, context=context)
        return None if safe_sets is None else safe_sets[0]

    def snapshot(self) -> dict[str, Any]:
        """Where this wrapper is (not what it wraps): arrays and JSON values, for `restore`.

        Of `info` it keeps what JSON and arrays can hold; rules that read more of it need a fresh episode.
        """
        observation, info = (None, {}) if self._last is None else self._last
        return {
            "previous": None if self._previous is None else np.asarray(self._previous),
            "time": self._time,
            "observation": observation if isinstance(observation, dict) else {"": np.asarray(observation)},
            "info": {
                k: v.item() if isinstance(v, np.generic) else v
                for k, v in info.items()
                if isinstance(v, np.ndarray | np.generic | str | int | float)
            },
            "unsafe": self._unsafe,
            "unfinished": self._unfinished,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot of a guarded environment made in the same way."""
        observation = snapshot["observation"]
        self._previous, self._time = snapshot["previous"], snapshot["time"]
        self._last = (observation.get("", observation), dict(snapshot["info"]))
        self._unsafe, self._unfinished = snapshot["unsafe"], snapshot["unfinished"]

    def _current(self) -> tuple[Any, dict[str, Any]]:
        """The observation and info the next action will be taken in."""
        if self._last is None:
            raise gym.error.ResetNeeded("there is no current state; call reset() first")
        return self._last

    def _context(self) -> Context:
        parameters = self._parameters(self._time) if callable(self._parameters) else self._parameters
        return Context(self._previous, self._time, parameters)

    def close(self) -> None:
        """Close the environment; an unfinished episode is counted as it stands."""
        if self._unfinished:
            self._end_episode()
        super().close()

    def _end_episode(self) -> None:
        self.guardian.end_episode(unsafe_event=None if self.unsafe_event is None else self._unsafe)
        self._unfinished = self._unsafe = False


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
        self._initial_action = first
        self._previous: list[Any] = [first] * env.num_envs
        self._time = np.zeros(env.num_envs, dtype=np.int64)
        self._unsafe, self._moved = np.zeros((2, env.num_envs), dtype=bool)
        self._parameters = parameters
        self._last: tuple[Any, dict[str, Any]] | None = None
        self._waits_for_reset = np.zeros(env.num_envs, dtype=bool)
        mode = env.metadata.get("autoreset_mode")
        if mode is None or AutoresetMode(mode) is AutoresetMode.DISABLED:
            raise GxError(
                "the vector environment does not say how it resets; its metadata must have autoreset_mode "
                "NEXT_STEP or SAME_STEP, or an action could run unchecked"
            )
        self._same_step = AutoresetMode(mode) is AutoresetMode.SAME_STEP

    @property
    def audit(self) -> Audit:
        """What the Guardian has counted."""
        return self.guardian.audit

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every member, or in those of `options["reset_mask"]`."""
        mask = (options or {}).get("reset_mask")
        fresh = np.ones(self.num_envs, dtype=bool) if mask is None else np.array(mask, dtype=bool)
        self._end_episodes(fresh & (self._time > 0))
        observations, infos = self.env.reset(seed=seed, options=options)
        self._begin(fresh)
        self._waits_for_reset[fresh] = False
        self._last = (_private(observations), infos)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Execute the nearest allowed actions."""
        if self._last is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        proposed = np.asarray(actions)
        # Members that only reset in this step execute nothing; what they are handed is a valid action all the same.
        executed = self.guardian.blank_actions(self.num_envs)
        alive = np.flatnonzero(~self._waits_for_reset)
        verdicts = self._certify(alive, proposed, *self._last) if len(alive) else ()
        for i, verdict in zip(alive, verdicts, strict=True):
            executed[i] = verdict.action
            self._previous[i] = _private(verdict.action)
            self._moved[i] |= verdict.intervened
        observations, rewards, terminated, truncated, infos = self.env.step(executed)
        given = np.full(self.num_envs, None, dtype=object)
        given[alive] = verdicts
        infos = {**infos, "guardian": given, "_guardian": ~self._waits_for_reset}
        self._time[alive] += 1
        self._watch(alive, observations, rewards, terminated, truncated, infos)
        ended = np.asarray(terminated) | np.asarray(truncated)
        self._end_episodes(ended)
        self._begin(ended | self._waits_for_reset)
        if not self._same_step:
            self._waits_for_reset = ended
        self._last = (_private(observations), infos)
        return observations, rewards, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environments; unfinished episodes are counted as they stand."""
        self._end_episodes(self._time > 0)
        super().close(**kwargs)

    def _certify(
        self, alive: np.ndarray, proposed: np.ndarray, observations: Any, infos: dict[str, Any]
    ) -> list[Verdict]:
        states = self._state_of(self.env, observations, infos)
        parameters = (
            self._parameters(self._time) if callable(self._parameters) else [self._parameters] * self.num_envs
        )
        previous = None if self._previous[0] is None else np.stack(self._previous)
        context = Context(previous, self._time, None if parameters[0] is None else parameters)
        if len(alive) < self.num_envs:
            states, context = pick(states, alive), Context(*(pick(v, alive) for v in vars(context).values()))
        return list(self.guardian.certify_batch(states, proposed[alive], context=context))

    def _watch(self, alive: np.ndarray, observations: Any, *outcome: Any) -> None:
        """Ask whether an unsafe event has just happened; an episode's last step is seen as it ended."""
        if self._unsafe_event is None:
            return
        *rest, infos = outcome
        if self._same_step and "final_obs" in infos:
            over = np.flatnonzero(infos["_final_obs"]).tolist()
            observations, infos = _private(observations), _private(infos)
            for i in over:
                _put(observations, i, infos["final_obs"][i])
            for key, value in infos.get("final_info", {}).items():
                if key in infos and not key.startswith("_"):
                    infos[key][over] = value[over]
        seen = np.asarray(self._unsafe_event(observations, *rest, infos), dtype=bool)
        self._unsafe[alive] |= seen[alive]

    def _begin(self, fresh: np.ndarray) -> None:
        self._time[fresh] = 0
        self._unsafe[fresh] = self._moved[fresh] = False
        self._previous = [
            self._initial_action if f else p for f, p in zip(fresh, self._previous, strict=True)
        ]

    def _end_episodes(self, ended: np.ndarray) -> None:
        for i in np.flatnonzero(ended).tolist():
            seen = None if self._unsafe_event is None else bool(self._unsafe[i])
            self.guardian.end_episode(unsafe_event=seen, intervened=bool(self._moved[i]))


def _guardian(space: gym.Space, rules: Any, options: dict[str, Any]) -> Guardian:
    if not isinstance(rules, Guardian):
        return Guardian(space, rules, **options)
    if options:
        raise GxError(f"give {', '.join(options)} to the Guardian itself")
    if rules.action_space != space:
        raise GxError(f"the Guardian was made for {rules.action_space}, the environment has {space}")
    return rules


def _private(value: Any) -> Any:
    """A copy of arrays, also inside dicts and tuples, that nobody else writes into."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {k: _private(v) for k, v in value.items()}
    return tuple(_private(v) for v in value) if type(value) is tuple else value


def _put(batch: Any, i: int, value: Any) -> None:
    """batch[i] = value, also for dicts and tuples of arrays."""
    if isinstance(batch, dict):
        for key in batch:
            _put(batch[key], i, value[key])
    elif isinstance(batch, tuple):
        for part, item in zip(batch, value, strict=True):
            _put(part, i, item)
    else:
        batch[i] = value


def _refuse_autoreset(env: Any) -> None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.Autoreset):
            raise GxError(
                "put Autoreset around the guarded environment, not inside: rules must see where episodes end"
            )
        env = env.env


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
