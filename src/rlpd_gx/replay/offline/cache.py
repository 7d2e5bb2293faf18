"""Converted datasets as folders of raw columns: memory-mapped when read, never half written.

`<root>/<key>/` holds `meta.json` and one `.bin` per column. The key covers the content of the source and
every choice made while reading it. A folder appears under its name only when it is complete.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline.episode import pickled
from rlpd_gx.safe_sets import Spec
from rlpd_gx.types import Array

LAYOUT_VERSION = 2
MARK = "rlpd_gx_dataset"


def cache_root() -> Path:
    """`RLPD_GX_CACHE`, or the user's cache folder."""
    if chosen := os.environ.get("RLPD_GX_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rlpd-gx" / "datasets"


def content_hash(path: Path, root: Path) -> str:
    """SHA-256 of a file, or of all files under a folder; remembered while size and time stay the same."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    stamp = hashlib.sha256()
    for file in files:
        status = file.stat()
        stamp.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\n".encode())
    memory = root / "hashes" / stamp.hexdigest()
    if memory.is_file():
        return memory.read_text()
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{file.relative_to(path)}\0{digest}\n".encode())
    _write_whole(memory, total.hexdigest().encode())
    return total.hexdigest()


def key_of(choices: Mapping[str, Any]) -> str:
    """A short name for a set of choices that can be written as JSON."""
    text = json.dumps({"layout": LAYOUT_VERSION, **choices}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ColumnWriter:
    """Appends rows to one file per column; the first rows fix type and shape."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self._files: dict[str, IO[bytes]] = {}
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def append(self, columns: Mapping[str, Array], where: str) -> None:
        """`[k, ...]` rows of every column; `where` names them in an error."""
        if not self._kinds:
            for name, column in columns.items():
                self._kinds[name] = (column.dtype, column.shape[1:])
                self._files[name] = (self.folder / _file_name(name)).open("wb")
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
            np.ascontiguousarray(column, dtype).tofile(self._files[name])
        self.rows += len(next(iter(columns.values())))

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Write `meta.json` last and see everything to the disk."""
        self.close(sync=True)
        kinds = {name: {"dtype": dtype.str, "shape": shape} for name, (dtype, shape) in self._kinds.items()}
        content = {MARK: LAYOUT_VERSION, "rows": self.rows, "columns": kinds, **meta}
        _write_whole(self.folder / "meta.json", json.dumps(content, indent=1).encode())

    def close(self, sync: bool = False) -> None:
        """Close the files."""
        for file in self._files.values():
            if sync:
                file.flush()
                os.fsync(file.fileno())
            file.close()


@contextmanager
def new_folder(target: Path) -> Iterator[ColumnWriter]:
    """A writer into a hidden folder that becomes `target` only if the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    writer = ColumnWriter(hidden)
    try:
        yield writer
        try:
            hidden.rename(target)
        except OSError:
            if not is_dataset(target):  # otherwise another process was quicker with the same data
                raise
    finally:
        writer.close()
        shutil.rmtree(hidden, ignore_errors=True)


def is_dataset(folder: Path) -> bool:
    """Whether this folder is a complete converted dataset."""
    meta = folder / "meta.json"
    return meta.is_file() and f'"{MARK}"' in meta.read_text()


def read_meta(folder: Path) -> dict[str, Any]:
    """`meta.json`, refused if another version wrote it."""
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    if meta[MARK] != LAYOUT_VERSION:
        raise GxError(
            f"{folder}: written in layout {meta[MARK]}, this version reads {LAYOUT_VERSION}; convert it again"
        )
    return meta


def open_columns(folder: Path, meta: Mapping[str, Any]) -> dict[str, Array]:
    """The columns, memory-mapped and read-only."""
    columns = {}
    for name, kind in meta["columns"].items():
        dtype, shape = np.dtype(kind["dtype"]), (meta["rows"], *kind["shape"])
        file = folder / _file_name(name)
        if dtype.hasobject:
            raise pickled(file)
        expected = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if not file.is_file() or file.stat().st_size != expected:
            raise GxError(
                f"{file}: column {name!r} should have {expected} bytes; delete the folder and convert again"
            )
        # A plain array over the mapping: numpy's own memmap class is slow to index.
        columns[name] = (
            np.asarray(np.memmap(file, dtype, "r", shape=shape)) if expected else np.zeros(shape, dtype)
        )
    return columns


def read_safe_sets(folder: Path, key: str) -> tuple[Array, Spec | None] | None:
    """The codes and their spec that some rules made for a converted dataset, if they are kept."""
    file = _safe_set_file(folder, key)
    if not (file.is_file() and file.with_suffix(".json").is_file()):
        return None
    spec = json.loads(file.with_suffix(".json").read_text())
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)), spec


def write_safe_sets(folder: Path, key: str, codes: Array, spec: Spec | None) -> None:
    """Keep the codes that some rules made; what is there is there completely."""
    file = _safe_set_file(folder, key)
    _write_whole(file.with_suffix(".json"), json.dumps(spec).encode())  # first: the codes stand for both
    with _replacing(file) as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(codes), allow_pickle=False)


def _safe_set_file(folder: Path, key: str) -> Path:
    return folder / f"safe_set-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"


def _write_whole(file: Path, content: bytes) -> None:
    with _replacing(file) as stream:
        stream.write(content)


@contextmanager
def _replacing(file: Path) -> Iterator[IO[bytes]]:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, hidden = tempfile.mkstemp(prefix=".partial-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(hidden, file)
    except BaseException:
        Path(hidden).unlink(missing_ok=True)
        raise


def _file_name(column: str) -> str:
    return quote(column, safe="") + ".bin"
