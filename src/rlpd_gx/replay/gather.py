"""From drawn rows to a batch: records and frames are copied once, and the batch consists of views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlpd_gx.replay.extent import Extent
from rlpd_gx.replay.samplers import Draw
from rlpd_gx.replay.timeline import nested_observation
from rlpd_gx.trees import Json
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
    """A batch of `shape` [U, B]; position i gets row `order[i]` of the concatenated parts."""
    reader = _Reader(parts, order, shape)
    rows = [part.draw.rows for part in parts]
    lengths = [part.draw.length for part in parts if part.draw.length is not None]
    if lengths:
        after = [part.extent.shift(part.draw.rows, n) for part, n in zip(parts, lengths, strict=True)]
        stacks = zip(reader.stacks(rows, stack), reader.stacks(after, stack), strict=True)
        frames = [np.hstack(pair) for pair in stacks]
    else:
        # s and s' share all frames but one: [n, stack + 1]
        frames = [part.extent.stack_rows(part.draw.rows, stack, ahead=1) for part in parts]
    # the newest frames of both stacks: s itself and s', the last of all
    records = reader.records([index[:, stack - 1 :: index.shape[1] - stack] for index in frames])
    here, there = records[:, :, 0], records[:, :, 1]
    target = _span_target(reader, lengths, stack, gamma) if lengths else _step_target(here, gamma)
    block = reader.observations(frames, records if stack == 1 else None)
    first, last = (slice(stack), slice(-stack, None)) if stack > 1 else (0, 1)
    return Batch(
        observation=nested_observation({name: part[:, :, first] for name, part in block.items()}),
        next_observation=nested_observation({name: part[:, :, last] for name, part in block.items()}),
        executed_action=here["executed_action"],
        proposed_action=here["proposed_action"],
        safe_set=here["safe_set"],
        next_safe_set=there["safe_set"],
        margin=here["margin"],
        is_online=reader.join([np.full(len(part.draw.rows), part.is_online) for part in parts]),
        row=reader.join(rows),
        **target,
    )


def _step_target(here: Array, gamma: float) -> Json:
    return {
        "reward": here["reward"],
        "discount": np.float32(gamma) * ~here["terminated"],
        "terminated": here["terminated"],
        "truncated": here["truncated"],
        "unsafe_event": here["unsafe_event"],
        "span_length": np.ones(here.shape, np.int64),
    }


def _span_target(reader: _Reader, lengths: Sequence[Array], stack: int, gamma: float) -> Json:
    draw, length = reader.parts[0].draw, reader.join(lengths)
    places = np.arange(draw.horizon)
    # [n, horizon] the rows of each span, its last one repeated where it is shorter
    steps = [
        part.extent.shift(part.draw.rows[:, None], np.minimum(places, n[:, None] - 1))
        for part, n in zip(reader.parts, lengths, strict=True)
    ]
    records = reader.records(steps)
    inside = places < length[..., None]
    reward, last = records["reward"] * inside, records[..., -1]
    target: Json = {
        "reward": (reward @ gamma**places).astype(np.float32),
        "discount": (gamma**length * ~last["terminated"]).astype(np.float32),
        "terminated": last["terminated"],
        "truncated": last["truncated"],
        "unsafe_event": records["unsafe_event"].any(axis=-1),
        "span_length": length,
    }
    if draw.all_steps:
        if stack == 1:
            block = reader.observations(steps, records)
        else:
            stacks = reader.stacks([index.ravel() for index in steps], stack)
            block = reader.observations([index.reshape(-1, draw.horizon, stack) for index in stacks])
        target["span_steps"] = SpanSteps(
            observation=nested_observation(block),
            safe_set=records["safe_set"],
            executed_action=records["executed_action"],
            reward=reward,
            discount=(gamma * (inside & ~records["terminated"])).astype(np.float32),
        )
    return target


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads rows [n, ...], given for each part, into arrays [U, B, ...]."""

    parts: Sequence[Part]
    order: Array | None
    shape: tuple[int, int]

    def records(self, rows: Sequence[Array]) -> Array:
        """[U, B, ...] whole records."""
        return self._take([part.extent.storage.records for part in self.parts], rows)

    def observations(self, rows: Sequence[Array], records: Array | None = None) -> dict[str, Array]:
        """[U, B, ...] observations by flat name; `records` are those at the same rows, if already read."""
        block = {}
        for name in self.parts[0].extent.observation_columns:
            if name in self.parts[0].extent.storage.large:
                block[name] = self._take([part.extent.storage.large[name] for part in self.parts], rows)
            else:
                records = self.records(rows) if records is None else records
                block[name] = records[name]
        return block

    def stacks(self, rows: Sequence[Array], stack: int) -> list[Array]:
        """[n, stack] rows of the stacks at rows [n] of each part."""
        return [p.extent.stack_rows(index, stack) for p, index in zip(self.parts, rows, strict=True)]

    def join(self, values: Sequence[Array]) -> Array:
        """[U, B] of values [n] of each part."""
        return self._in_order(values[0] if len(values) == 1 else np.concatenate(values))

    def _take(self, columns: Sequence[Array], rows: Sequence[Array]) -> Array:
        # The rows exist: any mode but "raise" lets numpy write into `out` without a second copy.
        if len(rows) == 1:
            return self._in_order(columns[0].take(rows[0], 0, mode="clip"))
        out = np.empty((sum(map(len, rows)), *rows[0].shape[1:], *columns[0].shape[1:]), columns[0].dtype)
        start = 0
        for column, index in zip(columns, rows, strict=True):
            column.take(index, 0, out[start : start + len(index)], "clip")
            start += len(index)
        return self._in_order(out)

    def _in_order(self, flat: Array) -> Array:
        if self.order is not None:
            flat = flat.take(self.order, 0)
        return flat.reshape(*self.shape, *flat.shape[1:])
