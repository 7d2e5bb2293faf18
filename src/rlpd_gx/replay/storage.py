"""Rows in memory: all that a transition needs of a row is in one place, not one in each column."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay.timeline import Layout, Timeline
from rlpd_gx.trees import DType
from rlpd_gx.types import Array

_ALIGNMENT = 64  # one cache line
_LARGE = 1024  # bytes; an observation above this stays a column of its own


@dataclass(frozen=True, eq=False)
class Storage:
    """A timeline whose columns are views of one record for each row; only large observations are separate.

    Sampling is bound by memory latency: a record costs one cache miss where ten columns cost ten.
    """

    timeline: Timeline
    records: Array
    """[n] of `record_dtype`."""
    large: Mapping[str, Array]
    """Columns [n, ...] of large observations, by flat name."""

    @cached_property
    def record_bytes(self) -> Array:
        """[n, bytes] the records."""
        return as_bytes(self.records)

    @cached_property
    def large_bytes(self) -> dict[str, Array]:
        """[n, bytes] the columns of large observations."""
        return {name: as_bytes(column) for name, column in self.large.items()}

    @classmethod
    def allocate(cls, layout: Layout, rows: int, path: str | os.PathLike[str] | None = None) -> Storage:
        """Zeroed rows in one allocation, or in one new memory-mapped file (replaced if it exists)."""
        size = nbytes(layout, rows)
        # a plain view of the mapped file: indexing numpy's own memmap class is slow
        buffer = (
            np.zeros(size, np.uint8) if path is None else np.asarray(np.memmap(path, np.uint8, "w+", 0, size))
        )
        large, start = {}, 0
        for name, dtype in _large(layout).items():
            stop = start + rows * dtype.itemsize
            large[name] = buffer[start:stop].view(dtype.base).reshape(rows, *dtype.shape)
            start = _aligned(stop)
        record = record_dtype(layout)
        return cls._of(layout, buffer[start : start + rows * record.itemsize].view(record), large)

    @classmethod
    def of(cls, timeline: Timeline) -> Storage:
        """Finished data: small columns are copied into records, large observations stay where they are."""
        columns, layout = timeline.columns(), timeline.layout
        large = {name: columns[name] for name in _large(layout)}
        for name, column in large.items():
            if not column.flags.c_contiguous:  # numpy would copy all of it at every sample
                raise GxError(f"column {name} is not contiguous; pass np.ascontiguousarray of it")
        storage = cls._of(layout, np.zeros(len(timeline), record_dtype(layout)), large)
        for name in storage.records.dtype.names or ():
            storage.records[name] = columns[name]
        return storage

    @classmethod
    def _of(cls, layout: Layout, records: Array, large: Mapping[str, Array]) -> Storage:
        columns = {name: large[name] if name in large else records[name] for name in layout.columns()}
        return cls(Timeline.from_columns(columns), records, large)


def as_bytes(rows: Array) -> Array:
    """The memory of contiguous rows [n, ...] as [n, bytes]."""
    return rows.view(np.uint8).reshape(len(rows), -1)


def record_dtype(layout: Layout) -> DType:
    """All small columns of a row, each aligned."""
    small = [item for item in layout.columns().items() if item[0] not in _large(layout)]
    small.sort(key=lambda item: -item[1].base.itemsize)  # so that alignment needs no padding in between
    return np.dtype(small, align=True)


def nbytes(layout: Layout, rows: int) -> int:
    """Bytes that `Storage.allocate` takes."""
    large = sum(_aligned(rows * dtype.itemsize) for dtype in _large(layout).values())
    return large + rows * record_dtype(layout).itemsize


def _large(layout: Layout) -> dict[str, DType]:
    return {name: dtype for name, dtype in layout.columns().items() if dtype.itemsize > _LARGE}


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
