"""DQN-Replay: a folder of `$store$_<field>_ckpt.<n>.gz`, gzipped .npy files of what one run saw, in order.

Dopamine stores 3 blank rows before each episode (for its frame stacks) and never the observation after a
terminal; both are undone here.
"""

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source, pickled, problem
from rlpd_gx.types import Array

DESCRIPTION = "DQN-Replay folder of $store$_*_ckpt.N.gz"
FIELDS = ("observation", "action", "reward", "terminal")
BLANK_ROWS = 3
CHUNK_ROWS = 4096


def recognises(path: Path) -> bool:
    """A folder with observation checkpoints."""
    return bool(path.is_dir() and _checkpoints(path))


def read(path: Path, checkpoints: Sequence[int] | None = None) -> Source:
    """`checkpoints` picks some of the numbered files; one has a million rows in the published data."""
    found = _checkpoints(path)
    wanted = found if checkpoints is None else sorted(int(number) for number in checkpoints)
    for number in wanted:
        for field in FIELDS:
            if not _file(path, field, number).is_file():
                raise problem(
                    _file(path, field, number), field, None, "is missing", "copy or download it again"
                )
    notes: list[str] = []
    return Source(
        episodes=_episodes(path, wanted, notes),
        actions=ActionRange(count=18),
        notes=notes,
    )


def _checkpoints(path: Path) -> list[int]:
    names = [re.fullmatch(r"\$store\$_observation_ckpt\.(\d+)\.gz", file.name) for file in path.iterdir()]
    return sorted(int(match[1]) for match in names if match)


def _file(path: Path, field: str, number: int) -> Path:
    return path / f"$store$_{field}_ckpt.{number}.gz"


class _GzipRows:
    """A gzipped .npy read a few rows at a time: a published file unpacks to 7 GB."""

    def __init__(self, file: Path, field: str) -> None:
        self.file, self.field = file, field
        self.row = 0
        self._stream = gzip.open(file)  # noqa: SIM115  closed by `close`
        try:
            version = np.lib.format.read_magic(self._stream)
            header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            self.shape, fortran_order, self.dtype = header(self._stream)
        except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.close()
            raise problem(
                file, field, 0, f"is not a gzipped .npy ({error})", "copy or download it again"
            ) from None
        if self.dtype.hasobject:
            self.close()
            raise pickled(file)
        if fortran_order or not self.shape:
            self.close()
            raise problem(file, field, 0, "is not a list of rows in C order", "save it again")
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def take(self, rows: int) -> Array:
        """The next `rows` rows, `[rows, ...]`."""
        try:
            data = self._stream.read(rows * self._row_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._cut(self.row, str(error)) from None
        if len(data) < rows * self._row_bytes:
            raise self._cut(
                self.row + len(data) // max(self._row_bytes, 1), "fewer bytes than its header says"
            )
        self.row += rows
        return np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])

    def _cut(self, row: int, why: str) -> GxError:
        return problem(
            self.file,
            self.field,
            row,
            f"the gzip stream is cut short or damaged ({why})",
            "download it again",
        )

    def close(self) -> None:
        self._stream.close()


def _episodes(path: Path, numbers: list[int], notes: list[str]) -> Iterator[Episode]:
    """Rows of consecutive checkpoints are one stream: an episode may go on in the next file."""
    open_episode: list[dict[str, Array]] = []
    first_row = repeated = dropped = 0
    file = path
    for index, number in enumerate(numbers):
        if not open_episode:
            first_row, file = 0, _file(path, "*", number)
        for start, chunk in _chunks(path, number):
            begin = 0
            for end in (np.flatnonzero(chunk["terminal"]) + 1).tolist():
                open_episode.append(_rows(chunk, begin, end))
                yield from _finish(open_episode, file, first_row, terminated=True)
                repeated += 1
                open_episode, begin, first_row, file = [], end, start + end, _file(path, "*", number)
            if begin < len(chunk["terminal"]):
                open_episode.append(_rows(chunk, begin, None))
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            dropped += bool(open_episode)
            yield from _finish(open_episode, file, first_row, terminated=False)
            open_episode = []
    if repeated:
        notes.append(
            f"the final observation of {repeated} terminated episodes is not in the files: last one repeated"
        )
    if dropped:
        notes.append(f"{dropped} episodes are cut by the end of a file: their last step is left out")


def _chunks(path: Path, number: int) -> Iterator[tuple[int, dict[str, Array]]]:
    readers: dict[str, _GzipRows] = {}
    try:
        for field in FIELDS:
            readers[field] = _GzipRows(_file(path, field, number), field)
        rows = readers["observation"].shape[0]
        for field, reader in readers.items():
            if reader.shape[0] != rows:
                raise problem(
                    reader.file,
                    field,
                    min(rows, reader.shape[0]),
                    f"has {reader.shape[0]} rows where observation has {rows}",
                    "copy or download the folder again",
                )
        for start in range(0, rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, rows - start)
            yield start, {field: reader.take(count) for field, reader in readers.items()}
    finally:
        for reader in readers.values():
            reader.close()


def _rows(chunk: dict[str, Array], begin: int, end: int | None) -> dict[str, Array]:
    return {field: column[begin:end] for field, column in chunk.items()}


def _finish(parts: list[dict[str, Array]], file: Path, first_row: int, terminated: bool) -> Iterator[Episode]:
    if not parts:
        return
    rows: dict[str, Any] = {field: np.concatenate([part[field] for part in parts]) for field in FIELDS}
    blank = 0
    while blank < min(BLANK_ROWS, len(rows["reward"]) - 1) and not (
        rows["observation"][blank].any() or rows["action"][blank] or rows["reward"][blank]
    ):
        blank += 1
    frames = rows["observation"][blank:]
    steps = len(frames) if terminated else len(frames) - 1
    if steps < 1:
        return
    yield Episode(
        observations=np.concatenate([frames, frames[-1:]]) if terminated else frames,
        actions=rows["action"][blank : blank + steps],
        rewards=rows["reward"][blank : blank + steps],
        terminated=terminated,
        truncated=not terminated,
        first_row=first_row + blank,
        file=file,
    )
