"""Where a guarded environment is in its episode; one for each member of a vector."""

from collections.abc import Sequence

import numpy as np

from rlpd_gx.guardian.guardian import Guardian
from rlpd_gx.guardian.reading import batch_of_one
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
        parameters = self.parameters(self.time) if callable(self.parameters) else self.parameters
        return Context(self.previous_action, self.time, parameters)

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


def contexts(episodes: Sequence[EpisodeTracker]) -> Context:
    """The contexts of several episodes as a batch."""
    each = [episode.context() for episode in episodes]
    return Context(
        _batch([c.previous_action for c in each]),
        np.array([c.time for c in each], dtype=np.int64),
        _batch([c.parameters for c in each]),
    )


def _batch(values: list[Tree]) -> Tree:
    """Arrays, numbers, and dicts or tuples of them stacked; None if all are, else a list."""
    if all(value is None for value in values):
        return None
    plain = (np.ndarray, np.generic, int, float)
    if all(isinstance(leaf, plain) for value in values for leaf in leaves(value)):
        return stack(values)
    return batch_of_one(values[0]) if len(values) == 1 else values


def private(value: Tree) -> Tree:
    """A copy of arrays, also inside dicts and tuples, that no other code writes into."""
    return map_leaves(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, value)
