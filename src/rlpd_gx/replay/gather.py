"""From drawn rows to a batch: each column is read once, straight from the timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlpd_gx.replay.extent import Extent
from rlpd_gx.replay.samplers import Draw
from rlpd_gx.replay.timeline import nested_observation
from rlpd_gx.types import Array, Batch, SpanSteps


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of a batch that come from one source, minibatch after minibatch; its draw is flat, [n]."""

    extent: Extent
    is_online: bool
    draw: Draw


def assemble(
    parts: Sequence[Part], order: Array | None, shape: tuple[int, int], *, stack: int, gamma: float
) -> Batch:
    """A batch of `shape` [U, B]; its place i gets row `order[i]` of all parts, laid one after the other."""
    gather = _Gatherer(parts, order, shape)
    rows = [part.draw.rows for part in parts]
    lengths = [part.draw.length for part in parts if part.draw.length is not None]
    if not lengths:
        # s and s' share all frames but one: [n, stack + 1]
        frames = [part.extent.stack_rows(part.draw.rows, stack, ahead=1) for part in parts]
        ends = [frame_rows[:, -2:] for frame_rows in frames]
        target = _step_target(gather, rows, gamma)
    else:
        after = [part.extent.shift(part.draw.rows, n) for part, n in zip(parts, lengths, strict=True)]
        ends = [np.stack(pair, axis=1) for pair in zip(rows, after, strict=True)]
        frames = [stacks.reshape(-1, 2 * stack) for stacks in gather.stacks(ends, stack)]
        target = _span_target(gather, rows, lengths, stack, gamma)
    block = gather.observations(frames)
    here, there = (slice(stack), slice(-stack, None)) if stack > 1 else (0, 1)
    safe_sets = gather.take("safe_set", ends)
    return Batch(
        observation=nested_observation({name: part[:, :, here] for name, part in block.items()}),
        next_observation=nested_observation({name: part[:, :, there] for name, part in block.items()}),
        executed_action=gather.take("executed_action", rows),
        proposed_action=gather.take("proposed_action", rows),
        safe_set=safe_sets[:, :, 0],
        next_safe_set=safe_sets[:, :, 1],
        margin=gather.take("margin", rows),
        is_online=gather.join([np.full(len(part.draw.rows), part.is_online) for part in parts]),
        row=gather.join(rows),
        **target,
    )


def _step_target(gather: "_Gatherer", rows: Sequence[Array], gamma: float) -> dict[str, Any]:
    terminated = gather.take("terminated", rows)
    return {
        "reward": gather.take("reward", rows),
        "discount": np.float32(gamma) * ~terminated,
        "terminated": terminated,
        "truncated": gather.take("truncated", rows),
        "unsafe_event": gather.take("unsafe_event", rows),
        "span_length": np.ones(gather.shape, np.int64),
    }


def _span_target(
    gather: "_Gatherer", rows: Sequence[Array], lengths: Sequence[Array], stack: int, gamma: float
) -> dict[str, Any]:
    draw, length = gather.parts[0].draw, gather.join(lengths)
    horizon = draw.horizon
    # [n, horizon] the rows of each span, its last one repeated where it is shorter
    steps = [
        part.extent.shift(first[:, None], np.minimum(np.arange(horizon), n[:, None] - 1))
        for part, first, n in zip(gather.parts, rows, lengths, strict=True)
    ]
    inside = np.arange(horizon) < length[..., None]
    reward, terminated = gather.take("reward", steps) * inside, gather.take("terminated", steps)
    target = {
        "reward": (reward @ gamma ** np.arange(horizon)).astype(np.float32),
        "discount": (gamma**length * ~terminated[..., -1]).astype(np.float32),
        "terminated": terminated[..., -1],
        "truncated": gather.take("truncated", steps)[..., -1],
        "unsafe_event": gather.take("unsafe_event", steps).any(axis=-1),
        "span_length": length,
    }
    if draw.all_steps:
        frames = gather.stacks(steps, stack) if stack > 1 else steps
        target["span_steps"] = SpanSteps(
            observation=nested_observation(gather.observations(frames)),
            safe_set=gather.take("safe_set", steps),
            executed_action=gather.take("executed_action", steps),
            reward=reward,
            discount=(gamma * (inside & ~terminated)).astype(np.float32),
        )
    return target


@dataclass(frozen=True, eq=False)
class _Gatherer:
    """Reads rows, given for each part, into arrays [U, B, ...]."""

    parts: Sequence[Part]
    order: Array | None
    shape: tuple[int, int]

    def take(self, name: str, rows: Sequence[Array]) -> Array:
        """[U, B, ...] of one column at rows [n, ...] of each part."""
        # The rows are known to exist: any mode but "raise" lets numpy write into `out` without a second copy.
        if len(rows) == 1:
            return self._in_order(self.parts[0].extent.columns[name].take(rows[0], 0, mode="clip"))
        column = self.parts[0].extent.columns[name]
        out = np.empty((sum(map(len, rows)), *rows[0].shape[1:], *column.shape[1:]), column.dtype)
        start = 0
        for part, index in zip(self.parts, rows, strict=True):
            part.extent.columns[name].take(index, 0, out[start : start + len(index)], "clip")
            start += len(index)
        return self._in_order(out)

    def join(self, values: Sequence[Array]) -> Array:
        """[U, B] of values [n] of each part."""
        return self._in_order(values[0] if len(values) == 1 else np.concatenate(values))

    def observations(self, rows: Sequence[Array]) -> dict[str, Array]:
        """[U, B, ...] of each column of the observation, at rows [n, ...] of each part."""
        return {name: self.take(name, rows) for name in self.parts[0].extent.observation_names}

    def stacks(self, rows: Sequence[Array], stack: int) -> list[Array]:
        """[n, m, stack] rows of the stacks at rows [n, m] of each part."""
        return [
            part.extent.stack_rows(index.ravel(), stack).reshape(*index.shape, stack)
            for part, index in zip(self.parts, rows, strict=True)
        ]

    def _in_order(self, flat: Array) -> Array:
        if self.order is not None:
            flat = flat.take(self.order, 0)
        return flat.reshape(*self.shape, *flat.shape[1:])
