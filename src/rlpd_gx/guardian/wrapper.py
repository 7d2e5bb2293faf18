"""Guarded environments: any Gymnasium environment, any agent, no forbidden action."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper

from rlpd_gx.errors import GxError, StopEpisode
from rlpd_gx.guardian.audit import Audit
from rlpd_gx.guardian.episodes import (
    EpisodeTracker,
    context_fingerprint,
    contexts,
    first_action,
    private,
)
from rlpd_gx.guardian.guardian import Guardian
from rlpd_gx.guardian.reading import pick
from rlpd_gx.loading import raised
from rlpd_gx.rules import Rule
from rlpd_gx.rules.forms import booleans
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.trees import Json, NotPlain, Tree, map_leaves, packed, unpacked
from rlpd_gx.types import HUMAN_ACTION, Action, Array, Context, Info, State, Verdict

Function = TypeVar("Function", bound=Callable[..., Any])
StateOf = Callable[[Any, Tree, Info], State]  # (env, observation, info) -> what the rules read
SEEN = ("env", "observation", "info")  # what `state` is called with
STEPPED = ("observation", "reward", "terminated", "truncated", "info")  # what `unsafe_event` is called with
OF_ONE_STEP = ("guardian", "unsafe_event", HUMAN_ACTION)  # in `info`: not repeated where nothing was executed
NESTED = (
    "the environment has a guard already, which could move what this one allows; give all rules to one guard, "
    "as a list"
)
STICKY = (
    "put StickyAction around the guarded environment, not inside: it executes older actions, which rules have to judge "
    "in the state they run in"
)
UnsafeEvent = Callable[[Tree, SupportsFloat, bool, bool, Info], bool]


class GuardedEnv(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """Executes only actions that the rules allow. `info["guardian"]` holds the verdict of each step, and
    `info["unsafe_event"]` the answer of `unsafe_event`.

    Args:
        env: the environment to guard.
        rules: a rule, several that must all hold, or a Guardian.
        state: (env, observation, info) -> what the rules read; the observation if not given.
        unsafe_event: (observation, reward, terminated, truncated, info) -> whether what the rules exist to
            prevent has just happened; counted per episode.
        initial_action: what rules that need the previous action see in the first step; zeros in a Box.
        parameters: what rules that need parameters see; a function of the step, or a constant.
        guardian: options of the Guardian (fallback, embedding, mode, deadline, audit, ...).

    A copy (`copy.deepcopy`, pickle) is independent: it has its own counts and writes no audit file.

    An inner wrapper in which a person may take over reports what ran as `info["intervene_action"]`; the verdict of that
    step holds it as its `action`.

    Where no action may be executed, the episode ends: `step` returns truncated=True and the last observation, and
    nothing has been executed.
    """

    def __init__(
        self,
        env: gym.Env,
        rules: Rule | Iterable[Rule] | Guardian,
        *,
        state: StateOf | None = None,
        unsafe_event: UnsafeEvent | None = None,
        initial_action: Action | None = None,
        parameters: object = None,
        **guardian: Any,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self, rules=rules, state=state, unsafe_event=unsafe_event, initial_action=initial_action,
            parameters=parameters, **guardian,
        )  # fmt: skip
        gym.Wrapper.__init__(self, env)
        _check_layers(env)
        self.guardian = _guardian(env.action_space, rules, guardian)
        self._state_of = _called_with(SEEN, "state", state) or _observation
        self.unsafe_event = _called_with(STEPPED, "unsafe_event", unsafe_event)
        self._declared_action = initial_action
        first = _initial_action(self.guardian, initial_action)
        self._episode = EpisodeTracker(self.guardian, first, parameters, watched=unsafe_event is not None)
        self._last: tuple[Tree, Info] | None = None

    @property
    def audit(self) -> Audit:
        """What the Guardian has counted."""
        return self.guardian.audit

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Tree, Info]:
        """Begin an episode; an unfinished one is counted as it is."""
        self._episode.end()
        self._last = None  # a reset that raises leaves no state to judge in
        observation, info = self.env.reset(seed=seed, options=options)
        self._last = (private(observation), private(info))
        self._episode.begin()
        return observation, info

    def step(self, action: Action) -> tuple[Tree, SupportsFloat, bool, bool, Info]:
        """Execute the nearest allowed action. After the end of an episode, `reset` comes first."""
        last = self._current()
        if not self._episode.running:
            raise gym.error.ResetNeeded("the episode is over; call reset() before the next step()")
        try:
            verdict = self.certify(action)
        except StopEpisode as stop:
            observation, info = last
            self._episode.stopped()
            self._last = None
            info = {k: v for k, v in info.items() if k not in OF_ONE_STEP}
            return observation, 0.0, False, True, {**info, "guardian_stop": str(stop)}
        try:
            return self._execute(verdict)
        except BaseException:
            self._episode.end()
            self._last = None  # it may have moved, and nobody knows where to: a reset comes first
            raise

    def _execute(self, verdict: Verdict) -> tuple[Tree, SupportsFloat, bool, bool, Info]:
        """What the environment makes of the action of a verdict."""
        # The environment gets its own copy: if it writes into it, the previous action must not change.
        observation, reward, terminated, truncated, info = self.env.step(private(verdict.action))
        if HUMAN_ACTION in info:  # that is what ran
            verdict = self.guardian.taken_over(verdict, info[HUMAN_ACTION])
        info = {**info, "guardian": verdict}
        self._episode.step(verdict)
        self._last = (private(observation), private(info))
        if self.unsafe_event is not None:
            seen = _events(1, self.unsafe_event, observation, reward, terminated, truncated, info)[0]
            info["unsafe_event"] = seen
            self._episode.unsafe_events += seen
        if terminated or truncated:
            self._episode.end()
        return observation, reward, terminated, truncated, info

    def certify(self, action: Action) -> Verdict:
        """The verdict on an action in the current state; counted as a proposal, but nothing is executed."""
        return self.guardian.certify(self._state(), action, context=self.context())

    def context(self) -> Context:
        """What rules may need beside the state, as it is now."""
        return self._episode.context()

    def safe_set(self, guardian: Guardian | None = None) -> SafeSet | None:
        """The safe set in the current state, also after the last step of an episode until the reset.

        None where the rules have no finite description; raises `GxError` where they cannot be asked. A `guardian` is
        asked in place of its own.
        """
        return (guardian or self.guardian).safe_set(self._state(), context=self.context())

    def safe_sets_fingerprint(self) -> str:
        """Fingerprint of the rules and of what they see beside the state; stored safe sets are valid while it stays."""
        return context_fingerprint(self.guardian, self._declared_action, self._episode.parameters)

    def snapshot(self) -> Json:
        """The state of this wrapper (not of what it wraps): arrays and JSON values, for `restore`.

        Raises `NotPlain` where a file cannot hold what rules may read: the observation and, if they have a state of
        their own, `info`. Otherwise what it cannot hold of `info` is left out.
        """
        observation, info = (None, {}) if self._last is None else self._last
        reads_info = self._state_of is not _observation
        kept = {k: v for k, v in info.items() if k not in OF_ONE_STEP and (reads_info or _is_plain(v))}
        return {**self._episode.snapshot(), "observation": packed(observation), "info": packed(kept)}

    def restore(self, snapshot: Json) -> None:
        """Restore a snapshot of a guarded environment made in the same way."""
        observation = unpacked(snapshot["observation"])
        self._last = None if observation is None else (observation, unpacked(snapshot["info"]))
        self._episode.restore(snapshot)

    def place(self, observation: Tree, info: Info, previous_action: Action, time: int) -> None:
        """Judge from here on as in this state of an episode, to which the environment was brought by other means."""
        self._episode.begin()
        self._episode.previous_action, self._episode.time = previous_action, time
        self._last = (private(observation), private(info))

    def _state(self) -> State:
        """What the rules read; a person's function has copies, since it may write into what it is given."""
        observation, info = self._current()
        if self._state_of is _observation:
            return observation
        return self._state_of(self.env, private(observation), private(info))

    def _current(self) -> tuple[Tree, Info]:
        """The observation and info the next action will be taken in."""
        if self._last is None:
            raise gym.error.ResetNeeded("there is no current state; call reset() first")
        return self._last

    def close(self) -> None:
        """Close the environment; an unfinished episode is counted as it is."""
        self._episode.end()
        super().close()


def guarded_layer(env: gym.Env) -> GuardedEnv | None:
    """The layer of an environment that asks the rules; None where there is none."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, GuardedEnv):
            return env
        env = env.env
    return None


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
        unsafe_event: Callable[..., npt.ArrayLike] | None = None,
        initial_action: Action | None = None,
        parameters: object = None,
        **guardian: Any,
    ) -> None:
        super().__init__(env)
        self.guardian = _guardian(env.single_action_space, rules, guardian)
        self._state_of = _called_with(SEEN, "state", state) or _observation
        self._unsafe_event = _called_with(STEPPED, "unsafe_event", unsafe_event)
        first = _initial_action(self.guardian, initial_action)
        watched = unsafe_event is not None
        self._episodes = [
            EpisodeTracker(self.guardian, first, parameters, watched=watched) for _ in range(env.num_envs)
        ]
        self._last: tuple[Tree, Info] | None = None
        _check_members(env)
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

    def reset(self, *, seed: Any = None, options: Json | None = None) -> tuple[Tree, Info]:
        """Begin an episode in every member, or in those of `options["reset_mask"]`."""
        mask = (options or {}).get("reset_mask")
        if mask is not None and self._last is None:
            raise gym.error.ResetNeeded(
                "the others have no current state either; call reset() without reset_mask"
            )
        fresh = [e for i, e in enumerate(self._episodes) if mask is None or mask[i]]
        for episode in fresh:
            episode.end()
        last, self._last = self._last, None  # a reset that raises leaves no state to judge in
        observations, infos = self.env.reset(seed=seed, options=options)
        known = private(infos)
        if last is not None and mask is not None:  # `infos` has only what the members that were reset report
            known = _merged(known, last[1], np.asarray(mask, bool))
        self._last = (private(observations), known)
        for episode in fresh:
            episode.begin()
        return observations, infos

    def step(self, actions: Action) -> tuple[Tree, Array, Array, Array, Info]:
        """Execute the nearest allowed actions."""
        if self._last is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        # Members that reset in this step execute nothing, but still need a valid action.
        executed = self.guardian.blank_actions(self.num_envs)
        running = np.array([e.running for e in self._episodes])
        alive = np.flatnonzero(running).tolist()
        verdicts = np.full(self.num_envs, None, dtype=object)
        if len(alive):
            verdicts[alive] = self._certify(alive, np.asarray(actions), *self._last)
        for i in alive:
            executed[i] = verdicts[i].action
        try:
            return self._execute(executed, verdicts, running)
        except BaseException:
            for episode in self._episodes:
                episode.end()
            self._last = None  # as for one environment
            raise

    def _execute(
        self, executed: Array, verdicts: Array, running: Array
    ) -> tuple[Tree, Array, Array, Array, Info]:
        """What the environments make of the actions of the verdicts of members that run."""
        observations, rewards, terminated, truncated, infos = self.env.step(executed)
        for i, action in _human_actions(infos, self.num_envs).items():
            if running[i]:
                verdicts[i] = self.guardian.taken_over(verdicts[i], action)
        infos = {**infos, "guardian": verdicts, "_guardian": running}
        seen = self._unsafe(observations, rewards, terminated, truncated, infos)
        for i, episode in enumerate(self._episodes):
            if not running[i]:  # the environment has reset it in this step
                episode.begin()
                continue
            episode.step(verdicts[i])
            episode.unsafe_events += bool(seen[i])
            if terminated[i] or truncated[i]:
                episode.end()
                if self._same_step:
                    episode.begin()
        self._last = (private(observations), private(infos))
        return observations, rewards, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environments; unfinished episodes are counted as they are."""
        for episode in self._episodes:
            episode.end()
        super().close(**kwargs)

    def _certify(
        self, alive: list[int], proposed: np.ndarray, observations: Tree, infos: Info
    ) -> list[Verdict]:
        states = observations
        if self._state_of is not _observation:  # a person's function may write into what it is given
            states = self._state_of(self.env, private(observations), private(infos))
        if len(alive) < self.num_envs:
            states = pick(states, np.array(alive))
        context = contexts([self._episodes[i] for i in alive])
        return list(self.guardian.certify_batch(states, proposed[alive], context=context))

    def _unsafe(self, observations: Tree, *outcome: Tree) -> Sequence[bool]:
        """Whether an unsafe event has just happened in each; an episode that ended shows its last step."""
        if self._unsafe_event is None:
            return [False] * self.num_envs
        *rest, infos = outcome
        if self._same_step and "final_obs" in infos:
            over = np.flatnonzero(infos["_final_obs"]).tolist()
            observations, infos = private(observations), private(infos)
            for i in over:
                map_leaves(lambda batch, last, i=i: _put(batch, i, last), observations, infos["final_obs"][i])
            for key, value in infos.get("final_info", {}).items():
                if key in infos and not key.startswith("_"):
                    infos[key][over] = value[over]
        return _events(self.num_envs, self._unsafe_event, observations, *rest, infos)


def _guardian(space: gym.Space, rules: Rule | Iterable[Rule] | Guardian, options: Json) -> Guardian:
    if not isinstance(rules, Guardian):
        return Guardian(space, rules, **options)
    if options:
        raise GxError(f"give {', '.join(options)} to the Guardian itself")
    if rules.action_space != space:
        raise GxError(f"the Guardian was made for {rules.action_space}, the environment has {space}")
    return rules


def _events(count: int, unsafe_event: Callable[..., npt.ArrayLike], *stepped: Any) -> list[bool]:
    """The answers of a person's function; None, or a number that is neither 0 nor 1, must not count as "safe"."""
    try:
        answers = (booleans(unsafe_event(*stepped)).ravel() > 0).tolist()
    except GxError as error:
        raise GxError(f"unsafe_event {error}") from None
    except Exception as error:
        raise GxError(f"unsafe_event {raised(error)}") from error
    if len(answers) != count:
        raise GxError(
            f"unsafe_event returned {len(answers)} answers; return one for each of {count} environments"
        )
    return answers


def _human_actions(infos: Info, num_envs: int) -> dict[int, Action]:
    """What people did who took over, by member; of an episode that was reset at once, its last `info` says so."""
    found: dict[int, Action] = {}
    for reported in (infos, infos.get("final_info", {})):
        if HUMAN_ACTION in reported:
            where = reported.get(f"_{HUMAN_ACTION}", np.ones(num_envs, bool))
            found |= {i: reported[HUMAN_ACTION][i] for i in np.flatnonzero(where).tolist()}
    return found


def _put(batch: np.ndarray, i: int, value: npt.ArrayLike) -> None:
    batch[i] = value


def _merged(infos: Info, before: Info, fresh: Array) -> Info:
    """Infos of a partial reset, with those from before of the members that were not reset."""
    merged = dict(infos)
    for key, old in before.items():
        new = infos.get(key)
        if isinstance(old, dict):
            merged[key] = _merged(new or {}, old, fresh)
        elif isinstance(old, np.ndarray) and len(old) == len(fresh):
            whole = old.astype(old.dtype if new is None else np.result_type(old, new))
            whole[fresh] = np.zeros(1, whole.dtype)[0] if new is None else new[fresh]
            merged[key] = whole
    return merged


def _called_with(arguments: Sequence[str], name: str, function: Function | None) -> Function | None:
    """The function, if it can be called with these arguments: a mistake is reported before any step."""
    if function is None:
        return None
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in another language, which does not tell
        return function
    except TypeError:
        raise GxError(f"{name} must be a function of ({', '.join(arguments)}), got {function!r}") from None
    try:
        signature.bind(*arguments)
    except TypeError:
        raise GxError(
            f"{name} is called with ({', '.join(arguments)}), but the one given takes {signature}; "
            "change its parameters"
        ) from None
    return function


def _check_layers(env: gym.Env) -> None:
    """Refuse what would execute other actions than the guard has judged, or in other episodes."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.Autoreset):
            raise GxError(
                "put Autoreset around the guarded environment, not inside: rules must see where episodes end"
            )
        if isinstance(env, gym.wrappers.StickyAction):
            raise GxError(STICKY)
        if isinstance(env, GuardedEnv):
            raise GxError(NESTED)
        env = env.env


def _check_members(env: VectorEnv) -> None:
    """The same of the members of a vector, also of those in other processes, which are asked what they have."""
    layer = env
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, GuardedVectorEnv):
            raise GxError(NESTED)
        layer = layer.env
    for member in getattr(layer, "envs", ()):
        _check_layers(member)
    if isinstance(layer, AsyncVectorEnv):
        for attribute, sentence in (("guardian", NESTED), ("is_sticky_actions", STICKY)):
            if any(layer.call("has_wrapper_attr", attribute)):
                raise GxError(sentence)


def _is_plain(value: Tree) -> bool:
    try:
        packed(value)
    except NotPlain:
        return False
    return True


def _observation(env: object, observation: Tree, info: Info) -> State:
    return observation


def _initial_action(guardian: Guardian, given: Action | None) -> Action | None:
    """What counts as the previous action in the first step."""
    if "previous_action" in guardian.needs:
        warnings.warn(
            "a rule reads the previous action: put that action into the Learner's observation too, or the safe "
            "sets are not a function of what the Learner sees",
            stacklevel=4,
        )
    first = first_action(guardian, given)
    if first is None and "previous_action" in guardian.needs:
        raise GxError(
            "a rule needs the previous action; say with initial_action= what it sees in the first step"
        )
    return first
