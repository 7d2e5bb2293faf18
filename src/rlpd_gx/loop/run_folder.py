"""The files of a run: what was asked, what happened, what came out. No file is ever left half-written."""

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from rlpd_gx import settings
from rlpd_gx.config import Config
from rlpd_gx.errors import GxError
from rlpd_gx.files import write_json

PACKAGES = ("rlpd-gx", "torch", "numpy", "gymnasium", "mujoco", "ale-py", "gymnasium-robotics", "highway-env")


class RunFolder:
    """A folder with config.json, versions.json, metrics.jsonl, result.json, audit files and checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints, self.segments = path / "checkpoints", path / "replay"

    @classmethod
    def create(cls, path: Path, config: Config, command: str) -> "RunFolder":
        """A new folder; one that holds a run already is refused."""
        if (path / "config.json").exists():
            raise GxError(f"{path}: holds a run already; go on with --resume, or choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GxError(f"{path}: cannot be made: {error.strerror}") from None
        folder = cls(path)
        folder.write("versions.json", _versions())
        folder.write("config.json", settings.flat(config) | {"command": command})
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple["RunFolder", Config]:
        """A folder that holds a run, and its config."""
        folder = cls(path)
        values = folder.read("config.json")
        values.pop("command", None)
        return folder, settings.from_flat(values, str(path / "config.json"))

    @property
    def command(self) -> str:
        """What was typed to begin the run."""
        return str(self.read("config.json").get("command", ""))

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the run."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise GxError(f"{self.path}: holds no run ({name} is missing)") from None
        except ValueError as error:
            raise GxError(f"{self.path / name}: cannot be read as JSON: {error}") from None

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file, or leave what was there."""
        write_json(self.path / name, value)

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Append a row of metrics. Nothing in it depends on the clock."""
        row = {"kind": kind, "step": step, **values}
        try:
            with (self.path / "metrics.jsonl").open("ab") as file:
                file.write((json.dumps(row) + "\n").encode())
        except OSError as error:
            raise GxError(f"{self.path / 'metrics.jsonl'}: cannot be written: {error.strerror}") from None

    def offsets(self) -> dict[str, int]:
        """How long each file that only grows is now."""
        return {file.name: file.stat().st_size for file in sorted(self.path.glob("*.jsonl"))}

    def cut(self, offsets: dict[str, int]) -> None:
        """Take back what was written after a checkpoint, so that it can happen again."""
        for file in self.path.glob("*.jsonl"):
            os.truncate(file, min(offsets.get(file.name, 0), file.stat().st_size))


def _versions() -> dict[str, Any]:
    found = {"python": sys.version.split()[0], "machine": platform.machine(), "system": platform.system()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
