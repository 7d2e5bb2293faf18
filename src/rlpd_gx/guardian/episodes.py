"""Where a guarded environment is in its episode; one for each member of a vector."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from rlpd_gx.guardian.guardian import Guardian
from rlpd_gx.guardian.reading import batch_of_one
from rlpd_gx.rules import fingerprint
from rlpd_gx.trees import Json, Tree, leaves, map_leaves, stack
from rlpd_gx.types import Action, Context, Verdict


class EpisodeTracker:
    """The context that rules may need of an episode, and what the audit counts of it."""

    def __init__(
        self, guardian: Guardian, initial_action: Action, parameters: object, *, watched: bool
    ) -> None:
        self.guardian, self.watched = guardian, watched
        self.initial_action, self.parameters = initial_action, parameters
        self.running = False  # between `begin` and `end`
        self.previous_action, self.time = initial_action, 0
        self.corrected, self.unsafe_events = False, 0

    def begin(self) -> None:
        """The environment was reset."""
        self.running = True
        self.previous_action, self.time = self.initial_action, 0
        self.corrected, self.unsafe_events = False, 0

    def step(self, verdict: Verdict) -> None:
        """The action of a verdict was executed."""
        self.previous_action, self.time = private(verdict.action), self.time + 1
        self.corrected |= verdict.corrected

    def end(self) -> None:
        """The episode is over or abandoned; it is counted once, and only if it had a step."""
        if self.running and self.time > 0:
            self._count()
        self.running = False

    def stopped(self) -> None:
        """The Guardian let nothing be executed: the episode is over, though it may have had no step."""
        self.corrected = True
        self._count()
        self.running = False

    def context(self) -> Context:
        """What rules may need beside the state."""
        return Context(self.previous_action, self.time, parameters_at(self.parameters, self.time))

    def snapshot(self) -> Json:
        """Arrays and JSON values, for `restore`."""
        previous = self.previous_action
        return {
            "previous": None if previous is None else np.asarray(previous),
            "time": self.time,
            "running": self.running,
            "corrected": self.corrected,
            "unsafe_events": self.unsafe_events,
        }

    def restore(self, snapshot: Json) -> None:
        """Restore a snapshot."""
        self.previous_action, self.time = snapshot["previous"], snapshot["time"]
        self.running, self.corrected = snapshot["running"], snapshot["corrected"]
        self.unsafe_events = snapshot["unsafe_events"]

    def _count(self) -> None:
        events = self.unsafe_events if self.watched else None
        self.guardian.end_episode(unsafe_event=events, corrected=self.corrected)


def first_action(guardian: Guardian, declared: Action | None) -> Action | None:
    """The previous action in the first step of an episode: the declared one, or zeros in a Box; None if unknown."""
    space = guardian.action_space
    if declared is not None:
        return np.asarray(declared, dtype=space.dtype)
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return None


def parameters_at(parameters: object, time: int) -> Tree:
    """The parameters in a step of an episode: declared as a function of the step, or constant."""
    return parameters(time) if callable(parameters) else parameters


def context_fingerprint(guardian: Guardian, initial_action: Action | None, parameters: object) -> str:
    """Fingerprint of all that safe sets depend on beside the state: the rules, and what is declared that they need.

    Where they need nothing that is declared, it is the fingerprint of the rules.
    """
    needed: Json = {}
    if "previous_action" in guardian.needs and initial_action is not None:
        needed["initial_action"] = first_action(guardian, initial_action)
    if "parameters" in guardian.needs and parameters is not None:
        needed["parameters"] = parameters
    return fingerprint(guardian.fingerprint, needed) if needed else guardian.fingerprint


def contexts(episodes: Sequence[EpisodeTracker]) -> Context:
    """The contexts of several episodes as a batch."""
    each = [episode.context() for episode in episodes]
    return Context(
        batched([c.previous_action for c in each]),
        np.array([c.time for c in each], dtype=np.int64),
        batched([c.parameters for c in each]),
    )


def batched(values: list[Tree]) -> Tree:
    """Arrays, numbers, and dicts or tuples of them stacked; None if all are, else a list."""
    if all(value is None for value in values):
        return None
    plain = (np.ndarray, np.generic, int, float)
    if all(isinstance(leaf, plain) for value in values for leaf in leaves(value)):
        return stack(values)
    return batch_of_one(values[0]) if len(values) == 1 else values


def private(value: Tree) -> Tree:
    """A copy of arrays, lists and tensors, also inside dicts and tuples, that no other code writes into."""
    return map_leaves(_own, value)


def _own(leaf: Tree) -> Tree:
    if isinstance(leaf, np.ndarray):
        copied = leaf.copy()
        if leaf.dtype == object:
            for place in np.ndindex(leaf.shape):
                copied[place] = private(leaf[place])
        return copied
    if isinstance(leaf, list):
        return [private(part) for part in leaf]
    if isinstance(leaf, set | bytearray):
        return leaf.copy()
    if isinstance(leaf, tuple) and hasattr(leaf, "_make"):  # with names
        return leaf._make(map(private, leaf))
    return leaf.detach().clone() if hasattr(leaf, "detach") else leaf
