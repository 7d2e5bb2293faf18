"""A ring saved in append-only segments: each save writes only what was added since the last one."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rlpd_gx import files, trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay import archive
from rlpd_gx.replay.ring import Ring
from rlpd_gx.trees import Json, JsonMapping
from rlpd_gx.types import Array


class Segments:
    """The files of one ring in a folder of their own.

        segments.append(ring)                                   writes what has changed since the last time
        checkpoint = {"segments": segments.names, "ring": ring.state()[1], ...}
        segments.restore(ring, checkpoint["segments"], checkpoint["ring"])
        segments.prune(files that some kept checkpoint needs)

    `names` lists the segments of the last append or restore in order, as JSON values: name, sha256,
    and the rows [first, stop) of each env, counted from the env's first row ever.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.names: list[Json] = []
        self._written: Array | None = None  # [envs] rows of the ring when it was last appended

    @property
    def files(self) -> dict[Path, str]:
        """The sha256 of each file in `names`."""
        return {self.folder / entry["name"]: entry["sha256"] for entry in self.names}

    def append(self, ring: Ring) -> None:
        """Write one new file with the rows that changed since the last append; or nothing, and raise."""
        arrays, state = ring.state()
        written, rows_per_env = np.array(state["written"]), ring.extent.rows_per_env
        # a row is completed by its step, and the one before it may be truncated: see `Ring.state`
        first = np.zeros_like(written) if self._written is None else np.maximum(self._written - 2, 0)
        first = np.maximum(first, written - rows_per_env)
        envs, places = _places(first, written, rows_per_env)
        path = self.folder / f"{self._last_number() + 1:06d}.zip"
        rows = {"first": first.tolist(), "stop": written.tolist()}
        for leftover in self.folder.glob(".*"):  # of a process that was killed while writing
            leftover.unlink()
        try:
            archive.write(path, trees.index(arrays, (envs, places)), rows)
        except GxError as error:
            raise GxError(f"{error}; make room for it, then resume the run") from error
        self.names = [old for old in self.names if (np.array(old["stop"]) > written - rows_per_env).any()]
        self.names.append({"name": path.name, "sha256": files.sha256(path)} | rows)
        self._written = written

    def restore(self, ring: Ring, names: Sequence[JsonMapping], state: JsonMapping) -> None:
        """Fill a ring of the same shape from these segments; `state` is the JSON part of `ring.state()`."""
        for entry in names:
            path = self.folder / entry["name"]
            if not path.is_file():
                raise GxError(f"{path} is missing; resume from a checkpoint that does not need it")
            if files.sha256(path) != entry["sha256"]:
                raise GxError(f"{path} is damaged (its sha256 differs from the one in the checkpoint)")

        def read(name: str, target: Array) -> None:
            target[...] = 0
            for entry in names:
                first, stop = np.array(entry["first"]), np.array(entry["stop"])
                envs, places = _places(first, stop, ring.extent.rows_per_env)
                part = np.empty((len(envs), *target.shape[2:]), target.dtype)
                with archive.Reader(self.folder / entry["name"]) as segment:
                    segment.read(name, part)
                target[envs, places] = part

        ring.restore(read, state)
        self.names = [dict(entry) for entry in names]
        self._written = np.array(state["written"])

    def prune(self, needed: Iterable[str | os.PathLike[str]]) -> None:
        """Remove the segments that neither `names` nor another checkpoint needs (`Checkpoints.files()`)."""
        kept = {Path(path).name for path in (*needed, *self.files)}
        for path in self._all():
            if path.name not in kept:
                path.unlink()

    def hold_steps(self) -> bool:
        """Whether any file holds more than the observations that the first episodes began with."""
        for path in self._all():
            with archive.Reader(path) as segment:
                if max(segment.state["stop"]) > 1:
                    return True
        return False

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.zip"))

    def _last_number(self) -> int:
        """The highest number in use; numbers of existing files are not reused, as older checkpoints may need them."""
        return max((int(path.stem) for path in self._all()), default=0)


def _places(first: Array, stop: Array, rows_per_env: int) -> tuple[Array, Array]:
    """[n] env and [n] position in it of the rows [first, stop) of every env."""
    counts = stop - first
    envs = np.repeat(np.arange(len(counts)), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return envs, (first[envs] + np.arange(len(envs)) - before) % rows_per_env
