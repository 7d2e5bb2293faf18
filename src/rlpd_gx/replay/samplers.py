"""Samplers: which rows make a minibatch, and over how many steps each target spans.

A sampler uses storage only through the `Extent` it draws from. `interval` is Delta(t) of DTS.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator

from rlpd_gx.errors import GxError
from rlpd_gx.replay.extent import Extent
from rlpd_gx.types import Array, Observation

Probability = Callable[[Observation, Array, Array], Array]
"""(observation, executed_action, safe_set), each [n, ...] -> the policy's probability of that action [n]."""


class Draw(NamedTuple):
    """Rows for U minibatches of n each, and how long their targets are."""

    rows: Array
    """[U, n] each a step."""
    filled: Array | None = None
    """[U, n] bool: drawn at random, because the episode was too short for its window (None: none was)."""
    length: Array | None = None
    """[U, n] steps from each row to where its target bootstraps (None: all 1)."""
    horizon: int = 1
    """The largest possible `length`."""
    all_steps: bool = False
    """Whether the Learner needs every step inside a span."""

    def flat(self, kept: Array | None) -> "Draw":
        """The rows where `kept` [U, n] (None: all), in one dimension."""

        def pick(field: Array) -> Array:
            return field.ravel() if kept is None else field[kept]

        filled = None if self.filled is None else pick(self.filled)
        length = None if self.length is None else pick(self.length)
        return self._replace(rows=pick(self.rows), filled=filled, length=length)


class Sampler(Protocol):
    """Anything that draws rows from an extent, which has at least one usable row."""

    def draw(
        self, extent: Extent, shape: tuple[int, int], interval: int, stack: int, generator: Generator
    ) -> Draw:
        """Usable rows, in minibatches of `shape` [U, n]."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Independent transitions, each equally likely."""

    def draw(
        self, extent: Extent, shape: tuple[int, int], interval: int, stack: int, generator: Generator
    ) -> Draw:
        """Usable rows, in minibatches of `shape` [U, n]."""
        rows = extent.draw(math.prod(shape), stack, generator).reshape(shape)
        return Draw(rows)


@dataclass(frozen=True)
class Stride:
    """DTS as stride: windows of `width` transitions from one episode, `interval` steps apart.

    Each window holds a row drawn uniformly, at a position drawn uniformly among those where the window fits. In
    an episode too short for it, every row that fits is used, and the rest are drawn uniformly from all data.
    """

    width: int = 16
    constant_interval: int | None = None
    """Used instead of the interval of DTS, if given."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise GxError(f"a window is 1 transition wide or more, got {self.width}")
        if self.constant_interval is not None and self.constant_interval < 1:
            raise GxError(f"constant_interval must be 1 step or more, got {self.constant_interval}")

    def draw(
        self, extent: Extent, shape: tuple[int, int], interval: int, stack: int, generator: Generator
    ) -> Draw:
        """Usable rows; the last window of a minibatch is cut to fit."""
        interval = self.constant_interval or interval
        updates, count = shape
        width, windows = self.width, math.ceil(count / self.width)
        anchor = extent.draw(updates * windows, stack, generator)[:, None]
        places = np.arange(1 - width, width)
        near = extent.shift(anchor, places * interval)
        # the valid positions are consecutive around the anchor
        good = extent.reaches(anchor, places * interval) & extent.usable(near, stack)
        back = np.count_nonzero(good[:, : width - 1], axis=1)
        ahead = np.count_nonzero(good[:, width:], axis=1)
        first = generator.integers(-back, np.maximum(ahead - (width - 1), -back) + 1)
        place = first[:, None] + np.arange(width)
        rows = extent.shift(anchor, place * interval)
        filled = place > ahead[:, None]
        rows, filled = (array.reshape(updates, -1)[:, :count] for array in (rows, filled))
        rows[filled] = extent.draw(int(np.count_nonzero(filled)), stack, generator)
        return Draw(rows, filled)


def fixed(width: int = 16) -> Stride:
    """Contiguous windows of constant width, independent of DTS."""
    return Stride(width, constant_interval=1)


@dataclass(frozen=True)
class Span:
    """DTS as span: independent transitions with `interval`-step targets.

    A span ends early where its episode ends and, if `guarded`, before the first *later* action that is forbidden
    (margin below zero; an unknown margin, NaN, does not cut). Without further correction it evaluates the behaviour
    policy: `cut` also ends it before the first later action whose probability under the policy is below `threshold`;
    `tree-backup` makes the batch carry every step (`Batch.span_steps`), for the Learner to correct.
    """

    correction: Literal["none", "cut", "tree-backup"] = "none"
    probability: Probability | None = None
    """Needed by `cut`."""
    threshold: float = 0.1
    guarded: bool = True

    def __post_init__(self) -> None:
        if self.correction not in ("none", "cut", "tree-backup"):
            raise GxError(f"correction must be none, cut or tree-backup, got {self.correction!r}")
        if (self.correction == "cut") != (self.probability is not None):
            raise GxError("correction 'cut' needs the policy's probability function, and the others do not")

    def draw(
        self, extent: Extent, shape: tuple[int, int], interval: int, stack: int, generator: Generator
    ) -> Draw:
        """Usable rows with spans of up to `interval` steps."""
        rows = extent.draw(math.prod(shape), stack, generator)
        length = self._length(extent, rows, interval, stack)
        return Draw(
            rows.reshape(shape),
            length=length.reshape(shape),
            horizon=interval,
            all_steps=self.correction == "tree-backup",
        )

    def _length(self, extent: Extent, rows: Array, interval: int, stack: int) -> Array:
        """[n] steps from each row that one target may span."""
        later = extent.shift(rows[:, None], np.arange(1, interval))
        # the last row of an episode, and the newest of a ring, are no steps: no span goes beyond them
        goes_on = extent.timeline.is_step[later]
        if self.guarded:
            goes_on = goes_on & ~(extent.timeline.margin[later] < 0)
        goes_on = np.logical_and.accumulate(goes_on, axis=1)
        if self.probability is not None and goes_on.any():
            steps = later[goes_on]
            likely = self.probability(
                extent.observation(steps, stack),
                extent.timeline.executed_action[steps],
                extent.timeline.safe_set[steps],
            )
            goes_on[goes_on] = likely >= self.threshold
            goes_on = np.logical_and.accumulate(goes_on, axis=1)
        return 1 + np.count_nonzero(goes_on, axis=1)
