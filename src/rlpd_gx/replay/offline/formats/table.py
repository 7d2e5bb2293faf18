"""CSV and Parquet logs: a small mapping names the columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.replay.offline import flat
from rlpd_gx.replay.offline.episode import Source, first_bytes, problem
from rlpd_gx.types import Array

DESCRIPTION = "CSV or Parquet with a mapping of columns"


def recognises(path: Path) -> bool:
    """Parquet by its magic bytes, CSV by its name: plain text has no other mark."""
    return first_bytes(path, 4) == b"PAR1" or (path.is_file() and path.suffix.lower() == ".csv")


def read(path: Path, mapping: Mapping[str, str | Sequence[str]] | None = None) -> Source:
    """`mapping` says `{"observations": ["x", "v"], "actions": "force", "rewards": "r", ...}`.

    `episode` may name a column whose change starts a new episode. Columns not named are kept as extras
    where they hold numbers.
    """
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError:
        raise missing_extra("pyarrow", "data") from None
    try:
        table = parquet.read_table(path) if first_bytes(path, 4) == b"PAR1" else csv.read_csv(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise GxError(f"{path}: the table cannot be read ({reason}); repair it or export it again") from None
    mapping = dict(mapping or {})
    used: set[str] = set()
    columns: dict[str, Array] = {}
    for name, in_file in mapping.items():
        names = [in_file] if isinstance(in_file, str) else list(in_file)
        parts = [_column(table, part, path, ids=name == "episode") for part in names]
        columns[name] = parts[0] if isinstance(in_file, str) else np.stack(parts, axis=-1)
        used.update(names)
    left_out = []
    for name in table.column_names:
        if name not in used and name not in columns:
            if _is_number(table.schema.field(name).type):
                columns[name] = _column(table, name, path)
            else:
                left_out.append(name)
    rows = flat.check(columns, path)
    if columns["observations"].ndim == 1:
        columns["observations"] = columns["observations"][:, None]
    notes = [f"columns without numbers are left out: {', '.join(left_out)}"] if left_out else []
    return Source(episodes=flat.episodes(columns, path, notes), total_steps=rows, notes=notes)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _column(table: Any, name: str, path: Path, ids: bool = False) -> Array:
    """One column as `[N]`, or `[N, d]` for a column of equally long lists; `ids` may be names."""
    from pyarrow import types

    if name not in table.column_names:
        found = ", ".join(table.column_names)
        raise problem(path, name, None, f"is not a column (found: {found})", "fix the mapping")
    column = table.column(name).combine_chunks()
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise problem(path, name, row, "is empty", "fill the gap or leave that episode out")
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        values = column.to_pylist()
        width = len(values[0])
        for row, value in enumerate(values):
            if len(value) != width:
                raise problem(
                    path, name, row, f"has {len(value)} entries, not {width}", "make lists equally long"
                )
        return np.asarray(values)
    if ids and (types.is_string(kind) or types.is_large_string(kind)):
        return np.unique(column.to_pylist(), return_inverse=True)[1]
    if not _is_number(kind):
        raise problem(path, name, None, f"holds {kind}, not numbers", "store numbers")
    array: Array = column.to_numpy(zero_copy_only=False)
    return array
