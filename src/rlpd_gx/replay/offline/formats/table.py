"""CSV and Parquet logs: a small mapping names the columns."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.replay.offline import flat
from rlpd_gx.replay.offline.episode import Source, first_bytes, problem
from rlpd_gx.types import Array
from rlpd_gx.untrusted import check_size, reading

name = "table"
description = "CSV or Parquet with a mapping of columns"
meaning = flat.meaning
_HEADER_BYTES, _BLOCK_BYTES = 1 << 16, 1 << 30
_WRONG_LENGTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_READ_WITH_GAPS = (
    "observations",
    "next_observations",
    "actions",
    "rewards",
)  # an audit reports all texts in these
_SHOWN_ROWS = 5
_HEADER_ROWS = 2  # pyarrow counts from 1, with the header; we count from 0, without


def detect(path: Path) -> bool:
    """Parquet by its magic bytes, CSV by its name: plain text has no other mark."""
    return first_bytes(path, 4) == b"PAR1" or (path.is_file() and path.suffix.lower() == ".csv")


def read(path: Path, mapping: Mapping[str, str | Sequence[str]] | None = None) -> Source:
    """`mapping` says `{"observations": ["x", "v"], "actions": "force", "rewards": "r", ...}`.

    `episode` may name a column whose change starts a new episode. Columns not named are kept as extras
    where they hold numbers.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise missing_extra("pyarrow", "data") from None
    flat.check_mapping(mapping, path)
    with reading(path, "repair it or export it again"):
        table = _parquet_table(path) if first_bytes(path, 4) == b"PAR1" else _csv_table(path)
        found = table.column_names
        if len(set(found)) < len(found):
            raise GxError(f"{path}: two columns have one name (found: {', '.join(found)}); rename one")
        if not table.num_rows:
            raise GxError(f"{path}: has no rows below its header; give a file with data")
    names = {name: [part] if isinstance(part, str) else part for name, part in (mapping or {}).items()}
    columns: dict[str, Array] = {}
    texts: list[GxError] = []
    for name, parts in names.items():
        if not (isinstance(parts, Sequence) and parts and all(isinstance(part, str) for part in parts)):
            raise GxError(
                f"the mapping of {name!r} is {parts!r}; give the name of a column, or a list of names"
            )
        faults = texts if name in _READ_WITH_GAPS else None
        column = [_column(table, part, path, ids=name == "episode", faults=faults) for part in parts]
        if isinstance((mapping or {})[name], str):
            columns[name] = column[0]
        elif all(part.ndim == 1 for part in column):
            columns[name] = np.stack(column, axis=-1)
        else:
            raise problem(path, ", ".join(parts), None, "holds lists", "map a column of lists on its own")
    used = {part for parts in names.values() for part in parts}
    others = [name for name in found if name not in used and name not in columns]
    left_out = [
        name for name in others if name not in flat.KNOWN and not _is_number(table.schema.field(name).type)
    ]
    columns |= {name: _column(table, name, path) for name in others if name not in left_out}
    if "episode" in names and _is_number(table.schema.field(label := names["episode"][0]).type):
        columns.setdefault(label, columns["episode"])  # to select by
    source = flat.source(columns, path, left_out, names=names)
    source.faults += texts
    if not columns.keys() & {*flat.CLOCKS, "next_observations"}:
        source.notes.append(
            "no column is named or mapped as step or time, so rows that are missing inside an episode cannot be seen; "
            "map one if the file has it"
        )
    return source


def _csv_table(path: Path) -> Any:
    """A CSV file; a row with too many or too few values is named."""
    import pyarrow
    from pyarrow import csv

    with path.open("rb") as file:
        header = file.readline(_HEADER_BYTES).decode(errors="replace")
    for separator, called in ((";", "semicolons"), ("\t", "tabs")):
        if separator in header and "," not in header:
            raise GxError(
                f"{path}: is separated by {called}; export it with commas between values and points in numbers"
            )
    # The type of a column is inferred from one block, so a block is the whole file where that is possible.
    block = min(path.stat().st_size + 1, _BLOCK_BYTES)
    try:
        return csv.read_csv(path, csv.ReadOptions(block_size=block))
    except pyarrow.ArrowInvalid:
        pass  # read again with one thread, whose errors name the row
    try:
        return csv.read_csv(path, csv.ReadOptions(block_size=block, use_threads=False))
    except pyarrow.ArrowInvalid as error:
        if (found := _WRONG_LENGTH.search(str(error))) is None:
            raise
        row, columns, values = map(int, found.groups())
        raise GxError(
            f"{path}: row {row - _HEADER_ROWS}: has {values} values where the header names {columns} columns; repair "
            "that row or leave it out"
        ) from None


def _parquet_table(path: Path) -> Any:
    """A Parquet file, its page checksums verified where it has any."""
    from pyarrow import parquet

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        facts, stored = file.metadata, path.stat().st_size
        groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
        packed = sum(group.total_byte_size for group in groups)
        check_size(path, max(packed, 8 * facts.num_rows * facts.num_columns), stored, packed=True)
        return file.read()


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _column(
    table: Any, name: str, path: Path, ids: bool = False, faults: list[GxError] | None = None
) -> Array:
    """One column as `[N]`, or `[N, d]` for a column of equally long lists; `ids` may be names.

    Texts among numbers are refused, or become NaN and a fault in `faults`.
    """
    from pyarrow import types

    if name not in table.column_names:
        found = ", ".join(table.column_names)
        raise problem(path, name, None, f"is not a column (found: {found})", "fix the mapping")
    column = table.column(name).combine_chunks()
    kind = column.type
    if ids and (types.is_string(kind) or types.is_large_string(kind)) and not column.null_count:
        return np.unique(column.to_pylist(), return_inverse=True)[1]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        values = column.to_pylist()
        width = len(values[0] or ()) if values else 0
        for row, value in enumerate(values):
            if value is None or len(value) != width or None in value:
                found = (
                    "is empty" if value is None or None in value else f"has {len(value)} entries, not {width}"
                )
                raise problem(path, name, row, found, "make lists equally long, without gaps")
        if not (_is_number(kind.value_type) and width):
            raise problem(path, name, None, f"holds {kind}, not numbers", "store numbers")
        return np.asarray(values)
    if types.is_null(kind) and len(column):
        raise problem(path, name, 0, "is empty", "fill the gap or leave the column out")
    if types.is_string(kind):
        values, texts = _numbers(column)
        if texts:
            what = f"is {column[texts[0]].as_py()!r:.40}, not a number"
            if len(texts) > 1:
                shown = ", ".join(map(str, texts[:_SHOWN_ROWS])) + (
                    ", ..." if len(texts) > _SHOWN_ROWS else ""
                )
                what += f" ({len(texts)} such cells, in rows {shown})"
            fault = problem(path, name, texts[0], what, "store numbers, with a decimal point")
            if faults is None or np.isnan(values).all():
                raise fault
            faults.append(fault)
            return values
    if not _is_number(kind):
        raise problem(path, name, None, f"holds {kind}, not numbers", "store numbers")
    with reading(f"{path}: {name!r}", "repair it or export it again"):
        # A gap becomes NaN, which is refused where it matters, and reported by an audit.
        array: Array = (
            column.cast("double").to_numpy(zero_copy_only=False)
            if column.null_count
            else (column.to_numpy(zero_copy_only=False))
        )
    return array


def _numbers(column: Any) -> tuple[Array, list[int]]:
    """A column of strings as numbers, NaN where there is none, and the rows that hold neither a number nor a gap."""
    from pyarrow import csv

    gaps = {None, *csv.ConvertOptions().null_values}
    values, texts = np.full(len(column), np.nan), []
    for row, value in enumerate(column.to_pylist()):
        try:
            values[row] = np.nan if value in gaps else float(value)
        except ValueError:
            texts.append(row)
    return values, texts
