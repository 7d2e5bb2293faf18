"""Rules applied to stored states: for training on them, and for `rlpd-gx data convert --rules`."""

import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx.envs.making import make
from rlpd_gx.errors import GxError
from rlpd_gx.guardian import GuardedEnv, Guardian
from rlpd_gx.guardian.episodes import batched, context_fingerprint, first_action, parameters_at
from rlpd_gx.guardian.named import named_rules
from rlpd_gx.loading import load, raised
from rlpd_gx.loop.environments import COMPLETE_SHARE
from rlpd_gx.replay.offline import LiveSafeSets, OfflineDataset, formats, with_safe_sets
from rlpd_gx.replay.offline.cache import is_dataset
from rlpd_gx.replay.offline.safe_sets import Missing
from rlpd_gx.rules import fingerprint
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.trees import Json, JsonMapping, Tree
from rlpd_gx.types import Action, Array, Context, State


def with_rules(
    data: OfflineDataset,
    rules: str,
    state: str | None,
    missing: Missing,
    env: str | None,
    *,
    env_kwargs: JsonMapping | None = None,
    live_state: str = "",
    state_flag: str = "--state",
    guardian: Guardian | None = None,
) -> OfflineDataset:
    """The dataset with the safe sets of `rules` (module:name).

    `state` (module:callable) turns stored observations [k, ...] into what the rules read; `live_state` is what they
    read in the live environment, if their module does not say it; `state_flag` is how `state` was given.
    A `guardian` is asked in place of one of all these rules.
    """
    read = load(state, state_flag.removeprefix("--"))[0] if state else None
    world = _world(data.name, env, data.env_id, env_kwargs)
    whole, options = _guardian(world, rules, live_state)
    guardian, live = guardian or whole, options["state"]
    declared = {name: options.get(name) for name in ("initial_action", "parameters")}
    count = data.actions.count if data.actions else None
    if count is not None and count != getattr(world.action_space, "n", count):
        raise GxError(
            f"{data.name}: has {count} actions, but {env or data.env_id} takes {world.action_space}; give --env"
        )
    module = rules.partition(":")[0]
    unreadable = "the rules cannot be asked about the stored state (the note above says why)"
    if live is not None and read is None:
        unreadable = (
            f"the rules read {live_state or f'`state` of {module}'} from the live environment, which the file does not "
            f"hold; {state_flag} module:callable can name a function from stored observations [k, ...] to that state"
        )
    data = with_safe_sets(
        data,
        StoredStates(guardian, read, state_flag, **declared) if live is None or read is not None else None,
        context_fingerprint(guardian, **declared),
        missing=missing,
        everything_allowed=_example(world, guardian, live, **declared).everything()
        if missing == "assume-all"
        else None,
        state_fingerprint=fingerprint(read) if read is not None else None,
        unreadable=unreadable,
    )
    told = f"safe sets were computed from stored observations through {state_flag} {state}"
    if read is None or told in data.findings:
        return data
    return replace(data, findings=(*data.findings, told))


def while_replayed(
    source: Path,
    format: str | None,
    rules: str,
    env: str | None,
    *,
    env_kwargs: JsonMapping | None = None,
    live_state: str = "",
) -> LiveSafeSets | None:
    """The safe sets of `rules` in the emulator that replays an action log, if that is what they read.

    Lazy rules are asked as online: about every action in a share of the states, elsewhere about the action that ran.
    """
    if is_dataset(source) or (format or formats.detect(source)) != "action_log":
        return None
    _, module = load(rules, "rules")
    if not live_state and getattr(module, "state", None) is None:
        return None
    world = _world(source.name, env, formats.read(source, "action_log", {}).env_id, env_kwargs)
    guardian, options = _guardian(world, rules, live_state)
    live = options["state"]
    if guardian.needs:
        raise GxError(
            f"--rules {rules} need {', '.join(sorted(guardian.needs))}, which a replay does not tell them"
        )

    noted, chance = False, random.Random(0)

    def safe_set(env: gym.Env, action: int | None) -> SafeSet | None:
        nonlocal noted
        whole = not guardian.lazy or action is None or chance.random() < COMPLETE_SHARE
        try:
            now = live(env, None, {})
            if whole:
                found = guardian.safe_set(now)
            else:
                verdict = guardian.certify(now, action)
                if verdict.reason:
                    raise GxError(verdict.reason)
                found = verdict.safe_set
        except GxError as error:  # a rule failed: unknown here
            if not noted:
                print(f"note: {error}", file=sys.stderr)
            noted = True
            return None
        if found is None:
            raise _not_finite()
        return found

    return LiveSafeSets(safe_set, guardian.fingerprint, fingerprint(live))


class StoredStates:
    """Asks a Guardian that only monitors for the safe sets of stored states; see `with_safe_sets`.

    Rules see the context of a guarded environment with this `initial_action` and these `parameters`.
    """

    def __init__(
        self,
        guardian: Guardian,
        read: Callable[[Tree], State] | None,
        state_flag: str = "--state",
        *,
        initial_action: Action | None = None,
        parameters: object = None,
    ) -> None:
        self.guardian, self.read, self.state_flag = guardian, read, state_flag
        self.first_action, self.parameters = first_action(guardian, initial_action), parameters
        self._row, self._noted = 0, False

    def __call__(self, observations: Tree, context: JsonMapping) -> tuple[SafeSet, Array]:
        """Safe sets of k states, and which are known: not those where a rule fails."""
        time = context["episode_step"]
        previous, known = self._previous(context["previous_action"], time)
        verdicts = self.guardian.certify_batch(
            self._states(observations),
            self.guardian.blank_actions(len(time)),
            context=Context(previous, time, self._parameters(time)),
        )
        known &= np.array([not reason for reason in verdicts.reasons])
        if not self._noted and not known.all():
            row = int(np.argmin(known))
            reason = verdicts.reasons[row] or "the action before it is not stored, and a rule needs it"
            print(f"note: row {self._row + row}: {reason}", file=sys.stderr)
            self._noted = True
        self._row += len(time)
        if verdicts.safe_set is None and known.any():
            raise _not_finite()
        return verdicts.safe_set, known  # type: ignore[return-value]  # None only where nothing is known

    def _states(self, observations: Tree) -> State:
        if self.read is None:
            return observations
        try:
            return self.read(observations)
        except Exception as error:
            raise GxError(
                f"{self.state_flag} {raised(error)}; it is given a batch of stored observations"
            ) from error

    def _previous(self, previous: Array, time: Array) -> tuple[Array, Array]:
        """The action before each state, as a guarded environment would have it, and where that is known."""
        known = np.ones(len(time), bool)
        if "previous_action" not in self.guardian.needs:
            return previous, known
        if self.first_action is None:
            known &= time > 0
        else:
            previous[time == 0] = self.first_action
        if not isinstance(self.guardian.action_space, gym.spaces.Box):
            known &= (previous.reshape(len(time), -1) >= 0).all(axis=1)  # -1: an id that is not known
        return previous, known

    def _parameters(self, time: Array) -> Tree:
        if "parameters" not in self.guardian.needs:
            return None
        return batched([parameters_at(self.parameters, step) for step in time.tolist()])


def _world(name: str, env: str | None, named_in_file: str | None, env_kwargs: JsonMapping | None) -> Any:
    """The environment of the data: the rules are about its actions."""
    env_id = env or named_in_file
    if env_id is None:
        raise GxError(f"{name}: does not name its environment, whose actions --rules judge; give --env")
    if env is None and ":" in env_id:  # would import whatever module a file names
        raise GxError(f"{name}: 'env_id' is {env_id!r}, which would import a module; give it as --env")
    return make(env_id, **(env_kwargs or {}))


def _example(
    world: Any, guardian: Guardian, live: Any, initial_action: Action | None, parameters: object
) -> SafeSet:
    """The safe set in some state of the live environment: its form is that of all others."""
    with warnings.catch_warnings():  # nothing is learned from here
        warnings.simplefilter("ignore", UserWarning)
        first = guardian.blank_actions(1)[0] if initial_action is None else initial_action
        guarded = GuardedEnv(world, guardian, state=live, initial_action=first, parameters=parameters)
    guarded.reset(seed=0)
    safe_set = guarded.safe_set()
    if safe_set is None:
        raise _not_finite()
    return safe_set


def _guardian(world: gym.Env, rules: str, live_state: str) -> tuple[Guardian, Json]:
    """A Guardian that only monitors, and the options declared beside its rules (see `named_rules`)."""
    rule, options = named_rules(rules, live_state, lambda: world)
    embedding = options.get("embedding", getattr(world.unwrapped, "embedding", None))
    return Guardian(world.action_space, rule, embedding=embedding, mode="monitor"), options


def _not_finite() -> GxError:
    return GxError(
        "what these predicates or margins of continuous actions read cannot be stored as numbers, so their safe sets "
        "cannot either; write them as bounds or constraints"
    )
