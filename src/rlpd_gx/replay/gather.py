"""From drawn rows to a batch: records and frames are copied once, and the batch consists of views of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlpd_gx.replay import compiled
from rlpd_gx.replay.extent import Extent
from rlpd_gx.replay.samplers import Draw
from rlpd_gx.replay.storage import as_bytes
from rlpd_gx.replay.timeline import nested_observation
from rlpd_gx.trees import Json
from rlpd_gx.types import Array, Batch, SpanSteps


class Part(NamedTuple):
    """The rows of a batch that come from one source, minibatch after minibatch; its draw is flat, [n]."""

    extent: Extent
    is_online: bool
    draw: Draw
    places: Array
    """[n] where each row goes in the flat batch [U * B], ascending."""


def assemble(parts: Sequence[Part], shape: tuple[int, int], *, stack: int, gamma: float) -> Batch:
    """A batch of `shape` [U, B]; each place in it is that of one row of one part."""
    reader = _Reader(parts, shape)
    rows = [part.draw.rows for part in parts]
    lengths = [part.draw.length for part in parts if part.draw.length is not None]
    frames: Sequence[Array] = ()
    if lengths:
        after = [part.extent.shift(part.draw.rows, n) for part, n in zip(parts, lengths, strict=True)]
        records = reader.records([np.stack(pair, axis=1) for pair in zip(rows, after, strict=True)])
        target = _span_target(reader, lengths, stack, gamma)
        if reader.needs_frames(stack):
            stacks = zip(reader.stacks(rows, stack), reader.stacks(after, stack), strict=True)
            frames = [np.hstack(pair) for pair in stacks]
    else:
        records, target = _steps(reader, gamma)
        if reader.needs_frames(stack):
            # s and s' share all frames but one: [n, stack + 1]
            frames = [part.extent.stack_rows(part.draw.rows, stack, ahead=1) for part in parts]
    here, there = records[:, :, 0], records[:, :, 1]
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
        **target,
    )


def _steps(reader: _Reader, gamma: float) -> tuple[Array, Json]:
    """Records [U, B, 2] of s and s', and targets of one step."""
    if (kernel := compiled.kernel()) is not None:
        records, target = _copied_steps(kernel, reader, gamma)
    else:
        records = reader.records([p.extent.stack_rows(p.draw.rows, 1, ahead=1) for p in reader.parts])
        target = {
            "row": reader.rows(),
            "is_online": reader.is_online(),
            "discount": np.float32(gamma) * ~records[:, :, 0]["terminated"],
            "span_length": np.ones(reader.shape, np.int64),
        }
    here = records[:, :, 0]
    for name in ("reward", "terminated", "truncated", "unsafe_event"):
        target[name] = here[name]
    return records, target


def _copied_steps(kernel: ModuleType, reader: _Reader, gamma: float) -> tuple[Array, Json]:
    """Records [U, B, 2] of s and s', and what is not in them, by one compiled loop over the rows of each part."""
    shape, size = reader.shape, math.prod(reader.shape)
    records = np.empty((*shape, 2), reader.parts[0].extent.storage.records.dtype)
    row, span_length = np.empty(size, np.int64), np.empty(size, np.int64)
    is_online, discount = np.empty(size, np.bool_), np.empty(size, np.float32)
    outputs = (records.view(np.uint8).ravel(), row, is_online, discount, span_length)
    for extent, of_online, draw, places in reader.parts:
        source = (extent.storage.record_bytes, extent.timeline.terminated, extent.rows_per_env)
        kernel.copy_steps(*source, draw.rows, places, of_online, float(gamma), *outputs)
    return records, {
        "row": row.reshape(shape),
        "is_online": is_online.reshape(shape),
        "discount": discount.reshape(shape),
        "span_length": span_length.reshape(shape),
    }


def _span_target(reader: _Reader, lengths: Sequence[Array], stack: int, gamma: float) -> Json:
    draw, length = reader.parts[0].draw, reader.join(lengths, np.int64)
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
        "row": reader.rows(),
        "is_online": reader.is_online(),
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
    shape: tuple[int, int]

    def records(self, rows: Sequence[Array]) -> Array:
        """[U, B, ...] whole records."""
        out = self._empty(self.parts[0].extent.storage.records, rows)
        for part, index in zip(self.parts, rows, strict=True):
            _copy_rows(part.extent.storage.records, part.extent.storage.record_bytes, index, part.places, out)
        return self._shaped(out)

    def observations(self, rows: Sequence[Array], records: Array | None = None) -> dict[str, Array]:
        """[U, B, ...] observations by flat name; `records` are those at the same rows, if already read."""
        block = {}
        for name in self.parts[0].extent.observation_columns:
            if name in self.parts[0].extent.storage.large:
                out = self._empty(self.parts[0].extent.storage.large[name], rows)
                for part, index in zip(self.parts, rows, strict=True):
                    storage = part.extent.storage
                    _copy_rows(storage.large[name], storage.large_bytes[name], index, part.places, out)
                block[name] = self._shaped(out)
            else:
                records = self.records(rows) if records is None else records
                block[name] = records[name]
        return block

    def stacks(self, rows: Sequence[Array], stack: int) -> list[Array]:
        """[n, stack] rows of the stacks at rows [n] of each part."""
        return [p.extent.stack_rows(index, stack) for p, index in zip(self.parts, rows, strict=True)]

    def needs_frames(self, stack: int) -> bool:
        """Whether observations are not just a part of the records of s and s'."""
        return stack > 1 or bool(self.parts[0].extent.storage.large)

    def rows(self) -> Array:
        """[U, B] the number of each row in its timeline."""
        return self.join([part.draw.rows for part in self.parts], np.int64)

    def is_online(self) -> Array:
        """[U, B] where each row comes from."""
        return self.join([part.is_online for part in self.parts], np.bool_)

    def join(self, values: Sequence[npt.ArrayLike], dtype: npt.DTypeLike) -> Array:
        """[U, B] of values [n] of each part, or of one value for all its rows."""
        out = np.empty(math.prod(self.shape), dtype)
        for part, value in zip(self.parts, values, strict=True):
            out[part.places] = value
        return out.reshape(self.shape)

    def _empty(self, column: Array, rows: Sequence[Array]) -> Array:
        return np.empty((math.prod(self.shape), *rows[0].shape[1:], *column.shape[1:]), column.dtype)

    def _shaped(self, flat: Array) -> Array:
        return flat.reshape(*self.shape, *flat.shape[1:])


def _copy_rows(column: Array, column_bytes: Array, index: Array, places: Array, out: Array) -> None:
    """`out[places] = column[index]`, where the rows of index [n, ...] exist and the places ascend."""
    if (kernel := compiled.kernel()) is not None:
        index = np.ascontiguousarray(index).reshape(len(index), -1)
        kernel.copy_rows(column_bytes, index, places, out.view(np.uint8).ravel())
    elif places[-1] - places[0] == len(places) - 1:
        # any mode but "raise" lets numpy write into `out` without a second copy
        column.take(index, 0, out[places[0] : places[-1] + 1], "clip")
    else:
        # as bytes: numpy assigns records one by one
        as_bytes(out)[places] = as_bytes(column.take(index, 0, mode="clip"))
