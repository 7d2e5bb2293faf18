"""Hybrid data: every minibatch holds an exact number of online rows, the rest is offline."""

import math
from dataclasses import asdict, dataclass

import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay import compiled
from rlpd_gx.replay.extent import Extent
from rlpd_gx.replay.gather import Part, assemble
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.samplers import Draw, Sampler
from rlpd_gx.replay.timeline import Timeline
from rlpd_gx.trees import Json, JsonMapping, Tree
from rlpd_gx.types import Array, Batch

_ROW = 1 << 32  # the carried remainder is counted in this fraction of a row: integers do not drift


@dataclass
class Counts:
    """Rows handed out so far."""

    online: int = 0
    offline: int = 0
    missing_online: int = 0
    """Online rows that did not exist yet and were drawn offline instead."""
    filled: int = 0
    """Rows drawn at random because an episode was too short for its window."""


class Hybrid:
    """Samples [updates, batch_size] blocks from an online ring and offline data; either may be left out.

    `gamma` is the discount of one step. `stack` frames make an observation (1: no stacking).
    The generator must not be used elsewhere; it is saved with the rest.
    """

    def __init__(
        self,
        *,
        online: Ring | None,
        offline: Timeline | None,
        sampler: Sampler,
        generator: np.random.Generator,
        batch_size: int = 256,
        updates: int = 1,
        stack: int = 1,
        gamma: float = 0.99,
    ) -> None:
        if online is None and offline is None:
            raise GxError("there is nothing to sample from: give an online ring, offline data, or both")
        if online is not None and offline is not None and online.layout != offline.layout:
            raise GxError(f"online rows are {online.layout}, but offline rows are {offline.layout}")
        if min(batch_size, updates, stack) < 1:
            raise GxError(
                f"batch_size, updates and stack must be 1 or more, got {batch_size}, {updates}, {stack}"
            )
        self.online = online
        self.counts = Counts()
        self._offline = None if offline is None else Extent.whole(offline)
        self._sampler, self._generator = sampler, generator
        self._batch_size, self._updates, self.stack, self._gamma = batch_size, updates, stack, gamma
        self._carry = 0
        self._placed_for: list[int] = []  # the counts that `_placed` was computed for: they change rarely
        compiled.kernel()  # so that no sample waits for it

    def sample(self, online_ratio: float, interval: int = 1) -> Batch:
        """A block [updates, batch_size, ...] with a fraction `online_ratio` of online rows in each minibatch.

        Where that is not a whole number, the remainder is carried to the next minibatch.
        """
        if not 0.0 <= online_ratio <= 1.0:
            raise GxError(
                f"online_ratio is the fraction of online rows and must be in [0, 1], got {online_ratio}"
            )
        if interval < 1:
            raise GxError(f"interval must be 1 step or more, got {interval}")
        available = self._available(online_ratio)
        wanted = self._wanted(online_ratio)
        # without offline data to replace them, the existing rows are drawn more than once
        online = wanted if self._offline is None else [min(count, available) for count in wanted]
        offline = [self._batch_size - count for count in online]
        of_online, of_offline = self._places(online)
        parts = []
        if self.online is not None and any(online):
            draw = self._draw(self.online.extent, online, interval)
            parts.append(Part(self.online.extent, True, draw, of_online))
        if self._offline is not None and any(offline):
            draw = self._draw(self._offline, offline, interval)
            parts.append(Part(self._offline, False, draw, of_offline))
        shape, of_them_online = (self._updates, self._batch_size), sum(online)
        self.counts.online += of_them_online
        self.counts.offline += math.prod(shape) - of_them_online
        self.counts.missing_online += sum(wanted) - of_them_online
        return assemble(parts, shape, stack=self.stack, gamma=self._gamma)

    def state(self) -> Json:
        """Carried remainder, counts and generator as JSON values; the ring is saved separately."""
        return {
            "carry": self._carry,
            "counts": asdict(self.counts),
            "generator": trees.map_leaves(_plain, self._generator.bit_generator.state),
        }

    def load_state(self, state: JsonMapping) -> None:
        """Restore what `state` returned."""
        if (kind := state["generator"]["bit_generator"]) != type(self._generator.bit_generator).__name__:
            raise GxError(f"the generator saved is a {kind}; pass np.random.Generator of one")
        self._generator.bit_generator.state = state["generator"]
        self._carry, self.counts = state["carry"], Counts(**state["counts"])

    def _wanted(self, online_ratio: float) -> list[int]:
        """[updates] online rows of each minibatch, by rounding to the nearest and carrying the rest."""
        exact = round(online_ratio * self._batch_size * _ROW)
        wanted = []
        for _ in range(self._updates):
            rows = (exact + self._carry + _ROW // 2) // _ROW
            self._carry += exact - rows * _ROW
            wanted.append(rows)
        return wanted

    def _available(self, online_ratio: float) -> int:
        """The number of online rows; raises if this ratio cannot be sampled."""
        if self.online is None:
            if online_ratio > 0:
                raise GxError(f"online_ratio is {online_ratio}, but there is no online ring to sample from")
            return 0
        available = self.online.extent.available(self.stack, enough=self._batch_size)
        if self._offline is None:
            if online_ratio < 1:
                raise GxError(f"online_ratio is {online_ratio}, but there is no offline data for the rest")
            if not available:
                raise GxError("the online ring holds no step yet, and there is no offline data to begin with")
        return available

    def _draw(self, extent: Extent, counts: list[int], interval: int) -> Draw:
        """Rows of one source, `counts` [updates] of them for each minibatch."""
        most = max(counts)
        draw = self._sampler.draw(extent, (self._updates, most), interval, self.stack, self._generator)
        draw = draw.flat(None if min(counts) == most else np.arange(most) < np.array(counts)[:, None])
        if draw.filled is not None:
            self.counts.filled += int(np.count_nonzero(draw.filled))
        return draw

    def _places(self, online: list[int]) -> tuple[Array, Array]:
        """Where the online and the offline rows of all minibatches go in the flat batch [updates * batch_size]."""
        if online != self._placed_for:
            is_online = np.arange(self._batch_size) < np.array(online)[:, None]
            self._placed_for, self._placed = online, (np.flatnonzero(is_online), np.flatnonzero(~is_online))
        return self._placed


def _plain(part: Tree) -> Tree:
    """A part of a generator's state as JSON values; some kinds hold arrays."""
    return part.tolist() if isinstance(part, np.ndarray) else part
