"""Converted datasets as folders of raw columns: memory-mapped when read, never half written.

`<root>/<key>/` holds `meta.json` and one `.bin` per column. The key covers the content of the source and
every choice made while reading it. A folder appears under its name only when it is complete. Every file in it
has a checksum, and all are verified whenever it is opened.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote

import numpy as np

from rlpd_gx import files
from rlpd_gx.errors import GxError
from rlpd_gx.files import user_cache
from rlpd_gx.replay.offline.numbers import cast
from rlpd_gx.safe_sets import Spec
from rlpd_gx.trees import DType, Json, JsonMapping
from rlpd_gx.types import Array
from rlpd_gx.untrusted import pickled, reading

LAYOUT_VERSION = 4  # raised also where a reader makes other rows of the same file
MARK = "rlpd_gx_dataset"
SEAL = "sha256"


def cache_root() -> Path:
    """`RLPD_GX_CACHE`, or the user's cache folder."""
    if chosen := os.environ.get("RLPD_GX_CACHE"):
        return Path(chosen)
    return user_cache("datasets")


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of all files under a folder.

    Of the content, since size and time of a file can stay the same while it changes.
    """
    inside = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path)}\0{files.sha256(file)}\n" for file in inside]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def key_of(choices: JsonMapping) -> str:
    """A short name for a set of choices that can be written as JSON."""
    text = json.dumps({"layout": LAYOUT_VERSION, **choices}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ColumnWriter:
    """Appends rows to one file per column; the first rows fix type and shape."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self._files: dict[str, IO[bytes]] = {}
        self._kinds: dict[str, tuple[DType, tuple[int, ...]]] = {}
        self._sums: Json = {}

    def append(self, columns: Mapping[str, Array], where: str) -> None:
        """`[k, ...]` rows of every column; `where` names them in an error."""
        if not self._kinds:
            for name, column in columns.items():
                self._kinds[name] = (column.dtype, column.shape[1:])
                self._files[name] = (self.folder / _file_name(name)).open("wb")
                self._sums[name] = hashlib.sha256()
        if columns.keys() != self._kinds.keys():
            odd = ", ".join(sorted(columns.keys() ^ self._kinds.keys()))
            raise GxError(
                f"{where}: not every episode has the fields {odd}; make them the same in all episodes"
            )
        for name, column in columns.items():
            dtype, shape = self._kinds[name]
            if column.shape[1:] != shape or not np.can_cast(column.dtype, dtype, "same_kind"):
                raise GxError(
                    f"{where}: {name!r} is {column.dtype} {column.shape[1:]}, but was {dtype} {shape} "
                    "before; make it the same in all episodes"
                )
            data = np.ascontiguousarray(cast(where, name, column, dtype))
            self._sums[name].update(data.data.cast("B") if data.size else b"")
            data.tofile(self._files[name])
        self.rows += len(next(iter(columns.values())))

    def finish(self, meta: JsonMapping) -> None:
        """Write `meta.json`, with the checksum of every column, last."""
        self.close()
        kinds = {
            name: {"dtype": dtype.str, "shape": list(shape), "sha256": self._sums[name].hexdigest()}
            for name, (dtype, shape) in self._kinds.items()
        }
        _write_sealed(
            self.folder / "meta.json", {MARK: LAYOUT_VERSION, "rows": self.rows, "columns": kinds, **meta}
        )

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


@contextmanager
def new_folder(target: Path) -> Iterator[ColumnWriter]:
    """A writer into a hidden folder that becomes `target` only if the block succeeds."""
    written = False
    try:
        with files.whole_folder(target) as hidden:
            writer = ColumnWriter(hidden)
            try:
                yield writer
            finally:
                writer.close()
            written = True
    except GxError:
        if not (written and is_dataset(target)):  # otherwise another process was faster with the same data
            raise


def is_dataset(folder: Path) -> bool:
    """Whether this folder is a complete converted dataset."""
    meta = folder / "meta.json"
    return meta.is_file() and f'"{MARK}"'.encode() in meta.read_bytes()


def read_meta(folder: Path) -> Json:
    """`meta.json`, refused if another version wrote it or its checksum is wrong."""
    return _read_sealed(folder / "meta.json", LAYOUT_VERSION)


def open_columns(folder: Path, meta: JsonMapping) -> dict[str, Array]:
    """The columns, memory-mapped and read-only, once their checksums are verified."""
    columns = {}
    for name, kind in meta["columns"].items():
        dtype, shape = np.dtype(kind["dtype"]), (meta["rows"], *kind["shape"])
        file = folder / _file_name(name)
        if dtype.hasobject:
            raise pickled(file)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if not file.is_file() or file.stat().st_size != size:
            raise _damaged(file, f"column {name!r} should have {size} bytes")
        if files.sha256(file) != kind["sha256"]:
            raise _damaged(file, f"the checksum (SHA-256) of column {name!r} is wrong")
        # A plain array over the mapping: numpy's own memmap class is slow to index.
        columns[name] = (
            np.asarray(np.memmap(file, dtype, "r", shape=shape)) if size else np.zeros(shape, dtype)
        )
    return columns


def read_safe_sets(folder: Path, key: str) -> tuple[Array, Spec | None] | None:
    """The codes and spec that some rules made for a converted dataset, if cached."""
    file = _safe_set_file(folder, key)
    if not (file.is_file() and file.with_suffix(".json").is_file()):
        return None
    kept = _read_sealed(file.with_suffix(".json"))
    if files.sha256(file) != kept["codes"]:
        raise _damaged(file, "the checksum (SHA-256) of its safe sets is wrong")
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)), kept["spec"]


def write_safe_sets(folder: Path, key: str, codes: Array, spec: Spec | None) -> None:
    """Cache the codes that some rules made; the file is written whole or not at all."""
    file = _safe_set_file(folder, key)
    with files.whole_file(file) as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(codes), allow_pickle=False)
    _write_sealed(file.with_suffix(".json"), {"spec": spec, "codes": files.sha256(file)})


def _safe_set_file(folder: Path, key: str) -> Path:
    return folder / f"safe_set-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"


def _write_sealed(file: Path, content: JsonMapping) -> None:
    """JSON that carries its own checksum."""
    plain = json.loads(json.dumps(content))
    files.write_json(file, {**plain, SEAL: _sum_of(plain)})


def _read_sealed(file: Path, version: int | None = None) -> Json:
    with reading(file, "delete the folder and convert again"):
        content = json.loads(file.read_bytes())
        if content.get(MARK) != version:  # before its checksum, which older versions did not write
            raise GxError(
                f"{file}: written in layout {content.get(MARK)}, this version reads {version}; convert it again"
            )
        seal = content.pop(SEAL, None)
    if _sum_of(content) != seal:
        raise _damaged(file, "its own checksum (SHA-256) is wrong")
    return dict(content)


def _sum_of(content: JsonMapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(file: Path, what: str) -> GxError:
    return GxError(f"{file}: {what}; delete the folder and convert again")


def _file_name(column: str) -> str:
    return quote(column, safe="") + ".bin"
