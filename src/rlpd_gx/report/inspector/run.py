"""One run folder as the inspector sees it: read in steps, in bounded memory, without a model."""

import hashlib
import json
import os
from array import array
from pathlib import Path

from rlpd_gx.loop.run_folder import audit_names
from rlpd_gx.report.inspector.corrections import Corrections
from rlpd_gx.report.inspector.series import Series, rounded
from rlpd_gx.report.inspector.tail import JsonFile, Tail, inside
from rlpd_gx.report.records import is_number
from rlpd_gx.trees import Json

MOST_COLUMNS = 64
MOST_EPISODES = 200_000
MOST_EVALUATIONS = 400
LISTED = 3_000  # episodes that a page gets: the last ones
COUNTED = ("forbidden_executed", "inevitable", "corrections", "forbidden_proposals", "near_misses")
OVERLAYS = {  # what the overview can draw: name -> series
    "Evaluation return": "evaluation/mean",
    "Training return": "episode/return",
    "Corrections": "train/corrections_rate",
    "Forbidden proposals": "train/forbidden_proposals_rate",
    "Near misses": "train/near_misses_rate",
    "Unsafe events so far": "episode/unsafe_so_far",
}


EPISODE = ("step", "return", "length", "corrections", "unsafe", "env", "stopped")


class WatchedRun:
    """The files of one run, and what has been read of them."""

    def __init__(self, name: str, folder: Path, root: Path) -> None:
        self.name, self.folder, self.root = name, folder, root
        self.config, self.result, self.versions = (
            JsonFile(folder / f"{file}.json", root) for file in ("config", "result", "versions")
        )
        self.metrics = Tail(folder / "metrics.jsonl", root)
        self.training = False
        self.version = 0
        self._audits: list[Corrections] | None = None
        self._forget()

    def _forget(self) -> None:
        self.series: dict[str, Series] = {}
        self.episodes = {n: array("d") for n in EPISODE}
        self.evaluations: list[Json] = []
        self.last_evaluation: Json = {}
        self.last_step = 0.0
        self.counts = dict.fromkeys((*COUNTED, "unsafe_events"), 0.0)
        self.counted_to = 0.0

    # --- reading -----------------------------------------------------------------------------------------

    def refresh(self, held: set[int] | None = None) -> bool:
        """Read what is new; returns whether anything is. `held`: see `held_locks`."""
        changed = [file.refresh() for file in (self.config, self.result, self.versions)]
        if self.metrics.changed():
            changed.append(True)
            if self.metrics.cut():
                self._forget()
            for _, row in self.metrics.read():
                if isinstance(row.get("kind"), str) and is_number(row.get("step")):
                    self._add(row)
                else:
                    self.metrics.damaged += 1
        training = is_locked(self.folder, held)
        changed.append(training != self.training)
        self.training = training
        self.version += any(changed)
        return any(changed)

    def _add(self, row: Json) -> None:
        kind, step = row["kind"], float(row["step"])
        self.last_step = max(self.last_step, step)
        if kind == "train":
            for name, value in row.items():
                if is_number(value) and name != "step":
                    self._point(f"train/{name}", step, value)
            for name in COUNTED:  # a rate is a count over the steps since the row before
                if is_number(rate := row.get(f"{name}_rate")):
                    self.counts[name] += round(rate * (step - self.counted_to))
            self.counted_to = step
        elif kind == "episode":
            unsafe = row.get("unsafe_events")
            self.counts["unsafe_events"] += unsafe if is_number(unsafe) else 0
            values = (
                step,
                *(row.get(n) for n in ("return", "length", "corrections", "unsafe_events", "env")),
                float(row.get("stopped") is True),
            )
            if len(self.episodes["step"]) < MOST_EPISODES:
                for column, value in zip(self.episodes.values(), values, strict=True):
                    column.append(value if is_number(value) else 0.0)
            if is_number(row.get("return")):
                self._point("episode/return", step, row["return"])
            self._point("episode/unsafe_so_far", step, self.counts["unsafe_events"])
        elif kind == "evaluation":
            self.last_evaluation = row
            if is_number(row.get("mean")):
                self._point("evaluation/mean", step, row["mean"])
            returns = row.get("returns")
            if isinstance(returns, list):
                found = [v for v in returns[:200] if is_number(v)]
                self.evaluations = [*self.evaluations[-MOST_EVALUATIONS:], {"step": step, "returns": found}]

    def _point(self, name: str, step: float, value: float) -> None:
        if name not in self.series:
            if len(self.series) >= MOST_COLUMNS:
                return
            self.series[name] = Series()
        self.series[name].add(step, value)

    @property
    def audits(self) -> list[Corrections]:
        """One for each environment; read when a run is opened, and from then on."""
        if self._audits is None:
            count = self.config.value.get("num_envs", 1)
            count = min(count, 256) if is_number(count) else 1
            self._audits = [Corrections(self.folder / name, self.root) for name in audit_names(int(count))]
        for audit in self._audits:
            audit.refresh()
        return self._audits

    # --- what pages show ---------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """training, finished, stopped or damaged."""
        steps = self.config.value.get("steps")
        if self.training:
            return "training"
        if self.config.problem or self.result.problem or not self.config:
            return "damaged"
        done = self.result.value.get("steps")
        return "finished" if is_number(done) and (not is_number(steps) or done >= steps) else "stopped"

    @property
    def notes(self) -> list[str]:
        """What is wrong or missing, in sentences."""
        notes = [file.problem for file in (self.config, self.result, self.versions) if file.problem]
        if not self.config and not self.config.problem:
            notes.append("config.json is missing: the settings of this run are not known.")
        if self.metrics.damaged:
            notes.append(f"{self.metrics.damaged} damaged lines of metrics.jsonl were left out.")
        if self.status == "stopped":
            notes.append("The run is not training and has not finished: it was stopped or killed.")
        return notes

    @property
    def guard(self) -> str:
        """`no rules` where there was nothing to guard with."""
        if self.config and not self.config.value.get("rules"):
            return "no rules"
        return str(self.result.value.get("guard") or self.config.value.get("guard") or "unknown")

    def summary(self) -> Json:
        """A row of the overview."""
        config, result = self.config.value, self.result.value
        training = result.get("training") if isinstance(result.get("training"), dict) else {}
        use = training if training and self.status == "finished" else self.counts
        watched = result.get("unsafe_events_watched")
        evaluation = self.last_evaluation or result.get("evaluation") or {}
        unsafe = use.get("unsafe_events")
        return {
            "name": self.name,
            "version": self.version,
            "status": self.status,
            "env": str(config.get("env") or result.get("env") or "unknown environment"),
            "preset": str(config.get("preset") or ""),
            "guard": self.guard,
            "seed": config.get("seed") if is_number(config.get("seed")) else None,
            "group": self._group(),
            "step": max(self.last_step, _number(result.get("steps")) or 0),
            "steps": _number(config.get("steps")),
            "score": _number(evaluation.get("mean")),
            "scored_at": _number(evaluation.get("step")),
            "episodes": len(self.episodes["step"]),
            **{name: _number(use.get(name)) for name in COUNTED},
            "unsafe_events": None if watched is False else _number(unsafe),
            "watched": bool(watched) if watched is not None else (True if unsafe else None),
            "spark": self._spark(),
            "notes": self.notes,
        }

    def overlay(self, name: str) -> Json:
        """One curve for the comparison of runs."""
        series = self.series.get(OVERLAYS[name])
        return Series().as_json() if series is None else series.as_json()

    def detail(self) -> Json:
        """Everything on a run's page."""
        firsts, first_proposals = self.firsts(), self.first_proposals()
        listed: Json = {n: rounded(self.episodes[n][-LISTED:]) for n in EPISODE}
        listed |= {"first": firsts[-LISTED:], "first_proposal": first_proposals[-LISTED:]}
        audits = [audit.as_json() for audit in self.audits]
        audit = result if isinstance(result := self.result.value.get("audit"), dict) else {}
        return {
            **self.summary(),
            "config": self.config.value,
            "versions": self.versions.value,
            "command": str(self.config.value.get("command", "")),
            "series": {name: series.as_json() for name, series in self.series.items()},
            "evaluations": self.evaluations,
            "last_evaluation": self.last_evaluation,
            "training": self.result.value.get("training") or {},
            "episode_list": {**listed, "total": len(firsts)},
            "audits": audits,
            "bound": _number(audit.get("unsafe_episode_upper_bound_95")),
            "seconds": self.result.value.get("seconds"),
            "replay": self.replay(),
        }

    def firsts(self) -> list[int]:
        """How many steps of its environment came before each episode."""
        return self._sums("length")

    def first_proposals(self) -> list[int]:
        """How many proposals came before each episode, as audits count them: a stop is one, and is no step."""
        return self._sums("length", "stopped")

    def _sums(self, *names: str) -> list[int]:
        """Sums of some columns over the episodes before, in the same environment."""
        before: dict[float, float] = {}
        firsts = []
        for env, *counts in zip(self.episodes["env"], *(self.episodes[n] for n in names), strict=True):
            firsts.append(int(before.get(env, 0)))
            before[env] = before.get(env, 0) + sum(counts)
        return firsts

    def recorded(self, env: int, first: int, length: int) -> list[Json]:
        """The corrections, and the stop, that the audit has recorded of the steps [first, first + length)."""
        before = own = 0.0
        columns = (self.episodes[name] for name in ("env", "length", "stopped"))
        for begins, of_env, steps, stopped in zip(self.firsts(), *columns, strict=True):
            if of_env == env:
                before += stopped if begins + steps <= first else 0
                own += stopped if (begins, steps) == (first, length) else 0
        return self.audits[env].recorded(int(first + before), int(length + own))

    def replay(self) -> Json:
        """What the replay buffer held at the newest checkpoint, from its state.json."""
        folders = sorted(self.folder.glob("checkpoints/*-step-*"), key=lambda path: path.name)
        for folder in reversed(folders):
            saved = JsonFile(folder / "state.json", self.root)
            saved.refresh()
            try:
                step, state = saved.value["step"], saved.value["state"]
                files = [self.folder / "replay" / str(entry["name"]) for entry in state["segments"]]
                return {
                    "step": step,
                    "steps": state["ring"]["steps"],
                    "rows": sum(state["ring"]["length"]),
                    "capacity": state["ring"]["rows"] * len(state["ring"]["written"]),
                    "drawn": state["hybrid"]["counts"],
                    "updates": state["updates"],
                    "files": len(files),
                    "bytes": sum(f.stat().st_size for f in files if inside(f, self.root) and f.is_file()),
                }
            except (KeyError, TypeError, OSError):
                continue
        return {}

    def _spark(self) -> list[float | None]:
        series = self.series.get("evaluation/mean")
        if series is None or len(series.steps) < 2:
            series = self.series.get("episode/return")
        values = [] if series is None else series.as_json()["y"]
        every = -(-len(values) // 48) or 1
        return values[::every]

    def _group(self) -> str:
        """The same for runs that differ only in their seed."""
        same = {k: v for k, v in self.config.value.items() if k not in ("seed", "command", "out")}
        return hashlib.sha256(json.dumps(same, sort_keys=True, default=str).encode()).hexdigest()[:12]


def held_locks() -> set[int] | None:
    """The inodes of all files that some process has locked; None where the system does not list them."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            fields = [line.split() for line in file]
    except OSError:
        return None
    return {
        int(inode) for f in fields if "FLOCK" in f for inode in [f[-3].rpartition(":")[2]] if inode.isdigit()
    }


def is_locked(folder: Path, held: set[int] | None) -> bool:
    """Whether a process holds the lock of a run folder. The lock is never taken: that could stop a run."""
    try:
        if held is not None:
            return os.stat(folder / ".lock").st_ino in held
        os.kill(int((folder / ".lock").read_text()[:32]), 0)  # not Linux: is the process alive that it names?
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _number(value: object) -> float | None:
    return value if is_number(value) else None
