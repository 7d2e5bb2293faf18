"""Files and folders that are written whole or not at all, and their checksums."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rlpd_gx.errors import GxError, first_line


def user_cache(name: str) -> Path:
    """A folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rlpd-gx" / name


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """An open file that takes the place of `path` when the block ends; an error leaves what was there."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=f".writing{path.suffix}", dir=path.parent
        )
    except OSError as error:
        raise _not_written(path, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # mkstemp's files are private
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder that is renamed to `path`, which must not exist, when the block ends; an error leaves nothing."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".writing", dir=path.parent))
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        for entry in (temporary, *temporary.rglob("*")):
            sync_folder(entry) if entry.is_dir() else _sync_file(entry)
        temporary.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole, or leave what was there."""
    with whole_file(path) as file:
        file.write(content)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file whole, or leave what was there."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    """Append a line to a file; one before it that was cut short stays apart."""
    try:
        with Path(path).open("ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")
            file.write((line + "\n").encode())
    except OSError as error:
        raise _not_written(path, error) from None


def sha256(path: Path) -> str:
    """The checksum of a file, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _not_written(path: Path, error: OSError) -> GxError:
    return GxError(f"{path}: cannot be written: {error.strerror or first_line(error)}")
