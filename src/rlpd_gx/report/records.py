"""The files of a run as a report reads them: what is missing or damaged becomes a note."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from rlpd_gx.errors import GxError
from rlpd_gx.trees import Json

Points = tuple[list[float], list[float]]
"""Steps, and the values there."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds."""

    folder: Path
    config: Json
    versions: Json
    result: Json
    rows: list[Json]
    """Of metrics.jsonl, by step."""
    notes: list[str]
    """What is missing."""

    @property
    def title(self) -> str:
        """Environment, preset and seed."""
        known = self.config | self.result
        about = [f"seed {known['seed']}"] if "seed" in known else []
        return (
            ", ".join([str(known[name]) for name in ("env", "preset") if known.get(name)] + about)
            or self.folder.name
        )

    @property
    def guard(self) -> str:
        """Which guard the run had; `no rules` where there was nothing to guard with."""
        if "rules" in self.config and not self.config["rules"]:
            return "no rules"
        return str(self.result.get("guard") or self.config.get("guard") or "guardian")

    @property
    def corrects(self) -> bool:
        """Whether the guard may execute another action than the proposed one."""
        if isinstance(known := self.result.get("corrects"), bool):
            return known
        return self.guard not in ("none", "no rules")

    @property
    def watches_unsafe_events(self) -> bool:
        """Whether unsafe events were looked for."""
        if isinstance(watched := self.result.get("unsafe_events_watched"), bool):
            return watched
        return any(row.get("unsafe_events") for row in self.rows)

    @property
    def last_evaluation(self) -> Json:
        """The row of the last evaluation."""
        evaluations = self.of("evaluation")
        return evaluations[-1] if evaluations else self.result.get("evaluation") or {}

    @property
    def last_step(self) -> float:
        """The last step of any row."""
        return float(self.rows[-1]["step"]) if self.rows else 0.0

    def of(self, kind: str) -> list[Json]:
        """The rows of one kind."""
        return [row for row in self.rows if row["kind"] == kind]

    def points(self, kind: str, name: str) -> Points:
        """The steps and finite values of a column in the rows of a kind."""
        found = [(float(row["step"]), float(row[name])) for row in self.of(kind) if is_number(row.get(name))]
        return [step for step, _ in found], [value for _, value in found]


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number that a float can hold, not a boolean."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # JSON may hold integers of any size
        return False


def read_run(folder: Path) -> Run:
    """Read a run folder; only one that holds no file of a run at all is refused."""
    names = ("config.json", "versions.json", "result.json", "metrics.jsonl")
    if not any((folder / name).is_file() for name in names):
        raise GxError(f"{folder} holds no run (none of {', '.join(names)} is there); give the folder of one")
    notes: list[str] = []
    config, versions, result = (_json(folder / name, notes) for name in names[:3])
    rows = _rows(folder / names[3], notes)
    return Run(folder, config, versions, result, rows, notes)


def _json(path: Path, notes: list[str]) -> Json:
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


def _rows(path: Path, notes: list[str]) -> list[Json]:
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
