"""A committed table of results: one line of JSON for each finished run, made from the files of its folder."""

import json
import math
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlpd_gx import guards, settings
from rlpd_gx.config import Config
from rlpd_gx.experiments.outside import counted_outside
from rlpd_gx.experiments.plan import Planned, offline_name
from rlpd_gx.files import append_line
from rlpd_gx.loop.run_folder import RunFolder
from rlpd_gx.trees import Json

MEASURED = "measured.json"
MOST_POINTS = 25  # of each curve in a row
CURVES = (
    "probe_td_error_scaled", "probe_q_variance_scaled",  # on the probe set, at each evaluation
    "td_error", "q_spread", "q_mean", "forbidden_proposals_rate", "near_misses_rate",
)  # fmt: skip
COUNTS = (
    "steps", "proposals", "corrections", "forbidden_proposals", "forbidden_executed", "inevitable", "fallback",
    "stopped", "near_misses", "unsafe_events",
)  # fmt: skip


class Table:
    """The rows of one experiment, by the fingerprint of their settings. A later row replaces an earlier one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, Json]:
        """Every run that has finished; a line that was cut short is left out."""
        found: dict[str, Json] = {}
        if not self.path.exists():
            return found
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
                found.pop(row["fingerprint"], None)  # the newest comes last
                found[row["fingerprint"]] = row
            except (ValueError, TypeError, KeyError):
                continue
        return found

    def beside(self) -> list[dict[str, Json]]:
        """The rows of the other tables in its folder."""
        others = sorted(path for path in self.path.parent.glob("*.jsonl") if path != self.path)
        return [Table(path).rows() for path in others]

    def add(self, row: Json) -> None:
        """Append a row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, json.dumps(row))


def row_of(planned: Planned, path: Path, experiment: str) -> Json:
    """The row of a finished run. Returns and curves are rounded to six digits."""
    folder = RunFolder(path)
    result, metrics = folder.read("result.json"), _metrics(path)
    evaluation, run, found = result["evaluation"], planned.config.run, measured(path)
    enforces = bool(run.rules) and guards.find(run.guard).mode == "enforce"
    return {
        "experiment": experiment, "fingerprint": planned.fingerprint, **planned.labels,
        "preset": planned.preset, "settings": changed(planned.config), "command": planned.command,
        "score": evaluation["mean"], "returns": [_short(value) for value in evaluation["returns"]],
        "success_rate": evaluation.get("success_rate"),
        "curve": _thinned([(row["step"], row["mean"]) for row in metrics if row["kind"] == "evaluation"]),
        "curves": {name: points for name in CURVES if (points := _curve(metrics, name))},
        "training": {name: result["training"][name] for name in COUNTS if name in result["training"]},
        "evaluation": {name: evaluation[name] for name in COUNTS if name in evaluation},
        "enforces": enforces, "corrects": result.get("corrects", enforces),
        "unsafe_events_watched": result["unsafe_events_watched"], "outside": counted_outside(metrics),
        "simulated_steps": result["simulated_steps"],
        "measured": {name: found[name] for name in planned.measure if name in found},
        "measuring": planned.measuring,
        "rules_fingerprint": result["rules_fingerprint"], "seconds": round(_cost(result["seconds"]), 1),
        "commit": commit(), "versions": folder.read("versions.json"), "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def _cost(seconds: Json) -> float:
    """Processor time of a run; folders of earlier versions only have the time that passed."""
    return seconds["processor" if "processor" in seconds else "total"]


def measured(path: Path) -> Json:
    """The measurements of a run so far."""
    return json.loads((path / MEASURED).read_text()) if (path / MEASURED).exists() else {}


def relabelled(row: Json, planned: Planned, experiment: str) -> Json:
    """The row of a run as an experiment lists it that did not make it."""
    asked = {"preset": planned.preset, "command": planned.command, "experiment": experiment}
    return (
        row | planned.labels | asked | {"measured": {name: row["measured"][name] for name in planned.measure}}
    )


def finite(value: Any) -> Any:
    """Numbers that JSON can hold, short: what is infinite or not a number becomes None."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float):
        return _short(value) if math.isfinite(value) else None
    return value


def changed(config: Config) -> Json:
    """The settings that are not at their defaults; offline data by its name."""
    default, used = settings.flat(Config()), settings.flat(config)
    different = {name: value for name, value in used.items() if value != default[name]}
    if "offline" in different:
        different["offline"] = offline_name(different["offline"])
    return different


@lru_cache
def commit() -> str:
    """The commit of the code that runs, with a plus sign where files differ from it; empty outside git."""
    here = Path(__file__).parent
    try:
        git = ["git", "-C", str(here)]
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        changes = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True)
    except OSError:
        return ""
    return (found.stdout.strip() + "+" * bool(changes.stdout.strip())) if found.returncode == 0 else ""


@lru_cache
def machine() -> str:
    """Processor and number of cores."""
    model = platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"


def _metrics(path: Path) -> list[Json]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines() if line]


def _curve(metrics: list[Json], name: str) -> list[list[float]]:
    return _thinned([(row["step"], row[name]) for row in metrics if row.get(name) is not None])


def _thinned(points: list[tuple[int, float]]) -> list[list[float]]:
    """At most `MOST_POINTS`, each the mean of its neighbours; the last one keeps its step."""
    size = -(-len(points) // MOST_POINTS) or 1
    groups = [points[max(end - size, 0) : end] for end in range(len(points), 0, -size)][::-1]
    return [[group[-1][0], _short(sum(value for _, value in group) / len(group))] for group in groups]


def _short(value: Any) -> float:
    return float(f"{value:.6g}")
