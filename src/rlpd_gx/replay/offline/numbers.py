"""Columns of plain numbers and flags, and casts that change no value."""

from pathlib import Path

import numpy as np

from rlpd_gx.replay.offline.episode import problem
from rlpd_gx.trees import DType
from rlpd_gx.types import Array


def is_numeric(column: Array) -> bool:
    """Whether it holds booleans, integers or floats: no text, dates, complex numbers or records."""
    return column.dtype.kind in "biuf"


def numbers(file: Path | str, name: str, column: Array) -> Array:
    """The column in this machine's byte order, refused unless it is `[n, ...]` numbers."""
    if not is_numeric(column):
        raise problem(file, name, None, f"holds {column.dtype}, not numbers", "store numbers")
    if column.ndim == 0:
        raise problem(file, name, None, "is one number, not a column", "store one entry for each row")
    return column.astype(column.dtype.newbyteorder("="), copy=False)


def flags(file: Path | str, name: str, column: Array, first_row: int = 0) -> Array:
    """`[n]` bool from values that are exactly 0 or 1."""
    column = numbers(file, name, column)
    if column.size != len(column):
        raise problem(
            file, name, first_row, f"has shape {column.shape[1:]} in every row", "store one flag a row"
        )
    column = column.reshape(len(column))
    if (wrong := np.flatnonzero((column != 0) & (column != 1))).size:
        row = int(wrong[0])
        raise problem(file, name, first_row + row, f"is {column[row]}, not 0 or 1", "store flags")
    return column.astype(bool)


def first_changed(column: Array, dtype: DType) -> int | None:
    """The first row a cast would change: a float beyond the range, a number that is not whole or does not fit."""
    if np.can_cast(column.dtype, dtype, "safe"):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        there = column.astype(dtype)
        if dtype.kind == "f":
            changed = np.isfinite(column) & ~np.isfinite(there)
        else:
            changed = (there.astype(column.dtype) != column) | ((there < 0) != (column < 0))
    rows = np.flatnonzero(changed.reshape(len(column), -1).any(axis=1))
    return int(rows[0]) if rows.size else None


def cast(file: Path | str, name: str, column: Array, dtype: DType, first_row: int = 0) -> Array:
    """The column in another type, refused where that would change a value (except by rounding a float)."""
    if (row := first_changed(column, dtype)) is not None:
        value = column.reshape(len(column), -1)[row].tolist()
        raise problem(
            file,
            name,
            first_row + row,
            f"is {value[0] if len(value) == 1 else value}, which {dtype} cannot hold",
            "repair the file or leave that episode out",
        )
    return column.astype(dtype, copy=False)
