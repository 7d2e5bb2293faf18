"""The files of a run: what was asked, what happened, what came out. No file is ever left half-written."""

import hashlib
import json
import os
import platform
import sys
import weakref
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from rlpd_gx import settings
from rlpd_gx.config import Config
from rlpd_gx.errors import GxError
from rlpd_gx.files import append_line, write_json
from rlpd_gx.replay.offline.cache import is_dataset

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: a folder is not locked there
    fcntl = None

PACKAGES = ("rlpd-gx", "torch", "numpy", "gymnasium", "mujoco", "ale-py", "gymnasium-robotics", "highway-env")

ORIGIN = ("command", "forked_from")  # in config.json beside the settings


def audit_names(num_envs: int) -> list[str]:
    """The audit file of each environment of a run."""
    return ["audit.jsonl"] if num_envs == 1 else [f"audit-{i}.jsonl" for i in range(num_envs)]


class RunFolder:
    """A folder with config.json, versions.json, metrics.jsonl, result.json, audit files and checkpoints.

    The process that writes into it holds its lock: `create` and `resume` take it, `release` gives it back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.segments = path / "checkpoints", path / "replay"
        self._lock: Lock | None = None

    @classmethod
    def create(cls, path: Path, config: Config, command: str, forked_from: str = "") -> "RunFolder":
        """A new folder; one that holds a run already is refused."""
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GxError(f"{path}: cannot be made: {error.strerror}") from None
        folder._lock = Lock.take(path)
        cls.refuse_another(path)
        folder.write("versions.json", _versions())
        origin = {"forked_from": forked_from} if forked_from else {}
        folder.write("config.json", settings.flat(config) | {"command": command} | origin)
        return folder

    @staticmethod
    def refuse_another(path: Path) -> None:
        """Raise if the folder holds a run, or a dataset."""
        if (path / "config.json").exists():
            raise GxError(f"{path}: holds a run already; go on with --resume, or choose another --out")
        if is_dataset(path):
            raise GxError(f"{path}: holds a dataset; choose another --out")

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", Config]:
        """A folder that holds a run, to be read, and its config."""
        folder = cls(path)
        values = {name: value for name, value in folder.asked().items() if name not in ORIGIN}
        return folder, settings.from_flat(values, str(path / "config.json"))

    @classmethod
    def resume(cls, path: Path) -> tuple["RunFolder", Config]:
        """A folder that holds a run, to resume it, and its config."""
        folder, config = cls.open(path)
        folder._lock = Lock.take(path)
        for leftover in path.glob(".*.writing*"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        return folder, config

    def release(self) -> None:
        """Let other processes write."""
        self._lock = None

    def asked(self) -> dict[str, Any]:
        """What config.json says: every setting, the command, and what the run was forked from."""
        return self.read("config.json")

    @property
    def command(self) -> str:
        """What was typed to begin the run."""
        return str(self.asked().get("command", ""))

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the run."""
        try:
            value = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise GxError(f"{self.path}: holds no run ({name} is missing)") from None
        except OSError as error:
            raise GxError(f"{self.path / name}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise GxError(f"{self.path / name}: cannot be read as JSON: {error}") from None
        if not isinstance(value, dict):
            raise GxError(f"{self.path / name}: is damaged (it is no JSON object)")
        return value

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file, or leave what was there."""
        write_json(self.path / name, value)

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Append a row of metrics. Nothing in it depends on the clock."""
        row = {"kind": kind, "step": step, **values}
        append_line(self.path / "metrics.jsonl", json.dumps(row))


class Logs:
    """The files of a run that only grow: how long they are, and what was in them."""

    def __init__(self, folder: Path, num_envs: int) -> None:
        self.files = {name: folder / name for name in ("metrics.jsonl", *audit_names(num_envs))}
        self._read = {name: (0, hashlib.sha256()) for name in self.files}

    def state(self) -> dict[str, Any]:
        """Length and sha256 of each now; only what is new is read."""
        for name, path in self.files.items():
            start, digest = self._read[name]
            if path.exists():
                with path.open("rb") as file:
                    file.seek(start)
                    new = file.read()
                digest.update(new)
                self._read[name] = (start + len(new), digest)
        return {n: {"bytes": size, "sha256": digest.hexdigest()} for n, (size, digest) in self._read.items()}

    def check(self, state: dict[str, Any]) -> list[str]:
        """A sentence for each that no longer holds what it did when this was its state."""
        notes = []
        for name, path in self.files.items():
            size = state[name]["bytes"]
            content = path.read_bytes()[:size] if path.exists() else b""
            digest = hashlib.sha256(content)
            if digest.hexdigest() != state[name]["sha256"]:
                lost = f"lost {size - len(content):,} of its" if len(content) < size else "was changed in its"
                notes.append(
                    f"{path}: {lost} first {size:,} bytes; it goes on as it is, without what is damaged"
                )
            self._read[name] = (len(content), digest)
        return notes

    def cut(self, state: dict[str, Any] | None) -> None:
        """Take back what was written after a checkpoint, so that it can happen again."""
        for name, path in self.files.items():
            if path.exists():
                size = 0 if state is None else state[name]["bytes"]
                os.truncate(path, min(size, path.stat().st_size))


class Busy(GxError):
    """Another process is writing a run folder."""


class Lock:
    """The right to write into a run folder; a process that ends, however it ends, gives it back."""

    _held: ClassVar[weakref.WeakValueDictionary[str, "Lock"]] = weakref.WeakValueDictionary()

    def __init__(self, handle: int) -> None:
        self._close = weakref.finalize(self, os.close, handle)

    @classmethod
    def take(cls, folder: Path) -> "Lock":
        """The lock of a folder. This process may take it again; another one gets one sentence."""
        name = os.path.realpath(folder)
        if (held := cls._held.get(name)) is not None:
            return held
        path = folder / ".lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise GxError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise Busy(
                f"{folder}: process {holder} is writing this run; wait until it ends, or stop it first"
            ) from None
        except OSError as error:
            os.close(handle)
            raise GxError(f"{path}: cannot be written: {error.strerror}") from None
        lock = cls(handle)
        cls._held[name] = lock
        return lock


def _versions() -> dict[str, Any]:
    found = {"python": sys.version.split()[0], "machine": platform.machine(), "system": platform.system()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
