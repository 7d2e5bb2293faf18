"""Files that grow while they are read: only what is new is read, and a file that was cut starts over."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from rlpd_gx.errors import first_line
from rlpd_gx.trees import Json

CHUNK = 1 << 22  # bytes read at once; a longer line counts as damaged
_MARK = 64  # bytes before the offset, which show whether the file is still the same


def inside(path: Path, root: Path) -> bool:
    """Whether a path, with all links followed, lies in a folder; `root` must be resolved."""
    return path.resolve().is_relative_to(root)


class Tail:
    """The lines of a JSON lines file that are new since the last `read`."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self.damaged = 0
        self._offset, self._mark, self._seen = 0, b"", (-1, -1)

    def changed(self) -> bool:
        """Whether the file differs from what was read."""
        return self._seen != _stamp(self.path)

    def cut(self) -> bool:
        """Whether the file no longer begins with what was read: then everything is read again."""
        if not self._offset:
            return False
        same = self._bytes(self._offset - len(self._mark), len(self._mark)) == self._mark
        if not same:
            self._offset, self._mark, self.damaged = 0, b"", 0
        return not same

    def read(self) -> Iterator[tuple[int, Json]]:
        """New complete lines as (offset in the file, object); those that cannot be read are counted as damaged."""
        self._seen = _stamp(self.path)
        while block := self._bytes(self._offset, CHUNK):
            end = block.rfind(b"\n") + 1
            if not end:
                if len(block) < CHUNK:
                    return  # a line that is still being written
                end = len(block)
            start = self._offset
            self._offset += end
            self._mark = block[max(end - _MARK, 0) : end]
            for line in block[:end].split(b"\n"):
                if line.strip():
                    value = _object(line)
                    if value is None:
                        self.damaged += 1
                    else:
                        yield start, value
                start += len(line) + 1

    def line(self, offset: int) -> Json | None:
        """The object in the line that begins at an offset."""
        block = self._bytes(offset, 1 << 16)
        return None if block is None else _object(block.partition(b"\n")[0])

    def _bytes(self, start: int, count: int) -> bytes | None:
        try:
            if not inside(self.path, self.root):
                return None
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read(count)
        except OSError:
            return None


class JsonFile:
    """A small JSON file that is written whole: its value, or why there is none."""

    MOST = 1 << 24  # bytes

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self.value: Json = {}
        self.problem = ""
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> bool:
        """Read it again if it has changed; returns whether it has."""
        seen = _stamp(self.path)
        if seen == self._seen:
            return False
        self._seen, self.value, self.problem = seen, {}, ""
        if seen[0] < 0:
            return True
        if seen[0] > self.MOST or not inside(self.path, self.root):
            self.problem = (
                f"{self.path.name} is not read: it is too large, or a link that leads out of the folder."
            )
            return True
        try:
            value = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            self.problem = f"{self.path.name} cannot be read: {first_line(error)}."
            return True
        if isinstance(value, dict):
            self.value = value
        else:
            self.problem = f"{self.path.name} holds no JSON object."
        return True

    def __bool__(self) -> bool:
        return bool(self.value)


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of a file; -1 where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return (-1, -1)
    return (found.st_size, found.st_mtime_ns)


def _object(line: bytes) -> Json | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
