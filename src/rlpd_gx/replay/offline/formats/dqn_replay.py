"""DQN-Replay: a folder of `$store$_<field>_ckpt.<n>.gz`, gzipped .npy files of one run's transitions, in order.

Dopamine stores 3 blank rows before each episode (for its frame stacks) and never the observation after a
terminal; both are undone here.
"""

import gzip
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source, problem
from rlpd_gx.replay.offline.numbers import flags, numbers
from rlpd_gx.trees import Json
from rlpd_gx.types import Array
from rlpd_gx.untrusted import npy_header

name = "dqn_replay"
description = "DQN-Replay folder of $store$_*_ckpt.N.gz"
FIELDS = ("observation", "action", "reward", "terminal")
KINDS = {"observation": "biuf", "action": "iu", "reward": "iuf", "terminal": "biuf"}
BLANK_ROWS = 3
CHUNK_ROWS = 4096
CHUNK_BYTES = 1 << 26  # at once, and at most for one row
EPISODE_BYTES = 1 << 30  # 150,000 frames, five times the longest game


def detect(path: Path) -> bool:
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
            place = f"{file}: {field!r}: as a gzipped .npy"
            self.shape, fortran_order, self.dtype = npy_header(self._stream, place)
            if fortran_order or not self.shape:
                raise problem(file, field, 0, "is not a list of rows in C order", "save it again")
            self.row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
            if not 0 < self.row_bytes <= CHUNK_BYTES:
                what = f"declares rows of {self.row_bytes} bytes, not 1 to {CHUNK_BYTES}"
                raise problem(file, field, 0, what, "copy or download it again")
        except BaseException:
            self.close()
            raise

    def take(self, rows: int) -> Array:
        """The next `rows` rows, `[rows, ...]`."""
        data = self._read(rows * self.row_bytes)
        if len(data) < rows * self.row_bytes:
            raise self._cut(self.row + len(data) // self.row_bytes, "fewer bytes than its header says")
        self.row += rows
        column = np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])
        return numbers(self.file, self.field, column)

    def finish(self) -> None:
        """Check that the stream ends here: its last bytes hold the checksum of all of it."""
        if self._read(1):
            raise self._cut(self.row, "more bytes than its header says")

    def _read(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except Exception as error:  # damaged bytes raise anything
            raise self._cut(self.row, str(error)) from None

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


def _episodes(path: Path, checkpoints: list[int], notes: list[str]) -> Iterator[Episode]:
    """Rows of consecutive checkpoints are one stream: an episode may continue in the next file."""
    open_episode: list[dict[str, Array]] = []
    first_row = repeated = dropped = 0
    file = path
    for index, number in enumerate(checkpoints):
        if not open_episode:
            first_row, file = 0, _file(path, "*", number)
        for start, chunk in _chunks(path, number):
            begin = 0
            for end in (np.flatnonzero(chunk["terminal"]) + 1).tolist():
                open_episode.append(trees.index(chunk, np.s_[begin:end]))
                yield from _finish(open_episode, file, first_row, terminated=True)
                repeated += 1
                open_episode, begin, first_row, file = [], end, start + end, _file(path, "*", number)
            if begin < len(chunk["terminal"]):
                open_episode.append(trees.index(chunk, np.s_[begin:]))
                if sum(part["observation"].nbytes for part in open_episode) > EPISODE_BYTES:
                    what = f"begins an episode of more than {EPISODE_BYTES} bytes"
                    raise problem(file, "terminal", first_row, what, "copy or download the folder again")
        if index + 1 == len(checkpoints) or checkpoints[index + 1] != number + 1:
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
            if (field != "observation" and len(reader.shape) > 1) or reader.dtype.kind not in KINDS[field]:
                what = f"holds {reader.dtype} {reader.shape[1:]} in every row"
                raise problem(reader.file, field, 0, what, "copy or download the folder again")
        most = min(CHUNK_ROWS, CHUNK_BYTES // readers["observation"].row_bytes)
        for start in range(0, rows, most):
            chunk = {field: reader.take(min(most, rows - start)) for field, reader in readers.items()}
            chunk["terminal"] = flags(readers["terminal"].file, "terminal", chunk["terminal"], start)
            yield start, chunk
        for reader in readers.values():
            reader.finish()
    finally:
        for reader in readers.values():
            reader.close()


def _finish(parts: list[dict[str, Array]], file: Path, first_row: int, terminated: bool) -> Iterator[Episode]:
    if not parts:
        return
    rows: Json = {field: np.concatenate([part[field] for part in parts]) for field in FIELDS}
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
        final_observation_known=not terminated,
    )
