"""The files of a run as a report reads them: whatever is missing or damaged becomes a sentence."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from rlpd_gx.errors import GxError

Points = tuple[list[float], list[float]]
"""Steps, and the values there."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds."""

    folder: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    result: dict[str, Any]
    rows: list[dict[str, Any]]
    """Of metrics.jsonl, by step."""
    notes: list[str]
    """What is missing."""

    @property
    def last_step(self) -> float:
        """Of all rows."""
        return float(self.rows[-1]["step"]) if self.rows else 0.0

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The rows of one kind."""
        return [row for row in self.rows if row["kind"] == kind]

    def points(self, kind: str, *names: str) -> Points:
        """The steps and finite values of the first of these names that the rows of a kind have."""
        rows = self.of(kind)
        for name in names:
            found = [(float(row["step"]), float(row[name])) for row in rows if is_number(row.get(name))]
            if found:
                return [step for step, _ in found], [value for _, value in found]
        return [], []


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_run(folder: Path) -> Run:
    """Read a run folder; only one that holds no file of a run at all is refused."""
    names = ("config.json", "versions.json", "result.json", "metrics.jsonl")
    if not any((folder / name).is_file() for name in names):
        raise GxError(f"{folder} holds no run (none of {', '.join(names)} is there); give the folder of one")
    notes: list[str] = []
    config, versions, result = (_json(folder / name, notes) for name in names[:3])
    return Run(folder, config, versions, result, _rows(folder / names[3], notes), notes)


def _json(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{path.name} is not there" + _MEANING.get(path.name, "."))
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read: {error}.")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{path.name} holds no table.")
        return {}
    return value


_MEANING = {"result.json": ": the run has not ended yet, or was stopped. Figures are those so far."}


def _rows(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        notes.append(f"{path.name} is not there: nothing was measured yet.")
        return []
    rows, unreadable = [], 0
    for line in _lines(path):
        try:
            row = json.loads(line)
        except ValueError:
            unreadable += 1
            continue
        if isinstance(row, dict) and isinstance(row.get("kind"), str) and is_number(row.get("step")):
            rows.append(row)
        else:
            unreadable += 1
    if unreadable:
        notes.append(
            f"{unreadable} of {len(rows) + unreadable} lines of {path.name} cannot be read, and were left out."
        )
    return sorted(rows, key=lambda row: row["step"])


def _lines(path: Path) -> Iterable[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line for line in file if line.strip())
