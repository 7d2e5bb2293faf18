"""The audit: what was proposed, what was blocked, by which rule and by how much.

The file is JSON lines, only ever appended to: a `start` line, a line for each intervention, and one with the
running counts at the end of each episode. A killed process loses nothing that was written before.
"""

import json
import os
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.types import Status, Verdict

if TYPE_CHECKING:
    from rich.table import Table

    from rlpd_gx.guardian.guardian import VerdictBatch

MOST_REASONS = 20  # different reasons kept apart in the summary


@dataclass
class RuleCounts:
    """One rule's part in what happened."""

    blocked: int = 0  # proposals that broke it
    near_misses: int = 0  # proposals it allowed by less than the near-miss margin
    deepest: float = 0.0  # the worst a proposal broke it, in its own units
    depth: float = 0.0  # all of that added up


@dataclass
class Counts:
    """Everything that is counted."""

    proposals: int = 0
    allowed: int = 0
    projected: int = 0
    fallback: int = 0
    inevitable: int = 0
    stopped: int = 0  # nothing could be executed, the episode had to end
    not_exact: int = 0  # moved, but not provably to the nearest allowed action
    near_misses: int = 0  # proposals that some rule allowed only just
    near_misses_executed: int = 0  # those of them that ran as proposed
    distance: float = 0.0
    largest_distance: float = 0.0
    episodes: int = 0
    episodes_with_interventions: int = 0
    episodes_watched: int = 0  # those in which somebody looked for unsafe events
    episodes_with_unsafe_event: int = 0
    rules: dict[str, RuleCounts] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def interventions(self) -> int:
        """Proposals that were not simply allowed."""
        return self.proposals - self.allowed


class Audit:
    """Counts verdicts; appends interventions to a file if it has one. Read a file back with `Audit.read`."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.counts = Counts()
        self.fingerprint = ""
        self.near_miss = 0.0
        self._file: int | None = None
        self._at_episode_start = 0  # interventions counted when the episode began

    def begin(self, rules: tuple[str, ...], near_miss: float, fingerprint: str) -> None:
        """Called by the Guardian that writes into this audit."""
        if self.counts.rules:
            raise GxError("this audit already belongs to a Guardian; give each its own")
        self.fingerprint, self.near_miss = fingerprint, near_miss
        self.counts.rules = {name: RuleCounts() for name in rules}
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                weakref.finalize(self, os.close, self._file)
                if _torn(self.path):
                    os.write(self._file, b"\n")
            except OSError as error:
                raise GxError(f"the audit file {self.path} cannot be written: {error.strerror}") from None
            self._write(
                {"event": "start", "rules": list(rules), "fingerprint": fingerprint, "near_miss": near_miss}
            )

    def state(self) -> dict[str, Any]:
        """The counts, as JSON can hold them; for `load_state`."""
        return {"counts": asdict(self.counts), "at_episode_start": self._at_episode_start}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on counting from a state."""
        self.counts = _counts(state["counts"])
        self._at_episode_start = state["at_episode_start"]

    # --- counting ----------------------------------------------------------------------------------------

    def record(self, verdict: Verdict, times: int = 1) -> None:
        """Count a verdict that was given `times` times."""
        counts, close = self.counts, False
        counts.proposals += times
        for rule, margin in zip(counts.rules.values(), verdict.margins.values(), strict=True):
            if margin < 0:
                rule.blocked += times
                rule.deepest = max(rule.deepest, -margin)
                rule.depth -= times * margin
            elif margin < self.near_miss:
                rule.near_misses += times
                close = True
        counts.near_misses += times * close
        if verdict.status is Status.ALLOWED:
            counts.allowed += times
            counts.near_misses_executed += times * close
            return
        setattr(counts, verdict.status, getattr(counts, verdict.status) + times)
        counts.not_exact += times * (not verdict.exact)
        if np.isfinite(verdict.distance):
            counts.distance += times * verdict.distance
            counts.largest_distance = max(counts.largest_distance, verdict.distance)
        self._note(verdict, times)

    def record_batch(self, batch: "VerdictBatch") -> None:
        """Count a batch of verdicts."""
        judgement, counts = batch.judgement, self.counts
        status, margins, moved = np.array(batch.status), judgement.margins, batch.intervened
        counts.proposals += len(status)
        for name, number in Counter(status.tolist()).items():
            setattr(counts, name, getattr(counts, name) + number)
        distance = judgement.distance[moved & np.isfinite(judgement.distance)]
        counts.distance += float(distance.sum())
        counts.largest_distance = max(counts.largest_distance, float(distance.max(initial=0.0)))
        counts.not_exact += int((~judgement.exact & moved).sum())
        near = (margins >= 0) & (margins < self.near_miss)
        counts.near_misses += int(near.any(axis=0).sum())
        counts.near_misses_executed += int((near.any(axis=0) & ~moved).sum())
        for rule, row, close in zip(counts.rules.values(), margins, near, strict=True):
            broken = -row[row < 0]
            rule.blocked += len(broken)
            rule.near_misses += int(close.sum())
            rule.deepest = max(rule.deepest, float(broken.max(initial=0.0)))
            rule.depth += float(broken.sum())
        for i in np.flatnonzero(batch.intervened).tolist():
            if self._file is not None or batch.reasons[i]:
                self._note(batch[i], 1)
        counts.stopped += len(batch.stopped)  # monitor mode: it would have

    def record_stop(self, reasons: Mapping[int, str]) -> None:
        """Count proposals to which there was no answer at all."""
        self.counts.proposals += len(reasons)
        self.counts.stopped += len(reasons)
        for reason in reasons.values():
            self._count_reason(reason)
            self._write({"event": "stop", "step": self.counts.proposals, "reason": reason})

    def end_episode(self, *, unsafe_event: bool | None = None, intervened: bool | None = None) -> None:
        """Close an episode; `unsafe_event` is None where nobody looked for one."""
        counts = self.counts
        counts.episodes += 1
        if intervened is None:
            intervened = counts.interventions > self._at_episode_start
        counts.episodes_with_interventions += intervened
        counts.episodes_watched += unsafe_event is not None
        counts.episodes_with_unsafe_event += bool(unsafe_event)
        self._at_episode_start = counts.interventions
        self._write({"event": "episode", "unsafe_event": unsafe_event, "counts": asdict(counts)})

    def _note(self, verdict: Verdict, times: int) -> None:
        """Write down an intervention."""
        if verdict.reason:
            self._count_reason(verdict.reason, times)
        for _ in range(times if self._file is not None else 0):
            line = {
                "event": "intervention",
                "step": self.counts.proposals,
                "episode": self.counts.episodes,
                "status": str(verdict.status),
                "proposed": _plain(verdict.proposed),
                "executed": _plain(verdict.action),
                "suggestion": _plain(verdict.suggestion),
                "distance": _plain(verdict.distance),
                "margins": {name: _plain(m) for name, m in verdict.margins.items()},
                "binding": list(verdict.binding),
                "exact": verdict.exact,
                **({"reason": verdict.reason} if verdict.reason else {}),
            }
            self._write(line)

    def _count_reason(self, reason: str, times: int = 1) -> None:
        reasons = self.counts.reasons
        key = reason if reason in reasons or len(reasons) < MOST_REASONS else "other reasons"
        reasons[key] = reasons.get(key, 0) + times

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            # One call a line, with nothing held back: a kill can tear the last line at most.
            try:
                os.write(self._file, (json.dumps(line, default=str) + "\n").encode())
            except OSError as error:
                raise GxError(f"the audit file {self.path} cannot be written: {error.strerror}") from None

    # --- answering ---------------------------------------------------------------------------------------

    def upper_bound(self, confidence: float = 0.95) -> float:
        """Exact (Clopper-Pearson) upper bound on the share of episodes with an unsafe event.

        Valid for independent episodes of a policy that does not change. Zero seen is not zero rate.
        """
        from scipy.stats import beta

        n, k = self.counts.episodes_watched, self.counts.episodes_with_unsafe_event
        return 1.0 if k >= n else float(beta.ppf(confidence, k + 1, n - k))

    def as_dict(self) -> dict[str, Any]:
        """All counts, with the rates and bounds that follow from them."""
        counts = self.counts
        n, moved = max(counts.proposals, 1), max(counts.projected + counts.fallback + counts.inevitable, 1)
        return {
            **asdict(counts),
            "interventions": counts.interventions,
            "intervention_rate": counts.interventions / n,
            "near_miss_rate": counts.near_misses / n,
            "mean_distance": counts.distance / moved,
            "unsafe_episode_upper_bound_95": self.upper_bound(),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def total(cls, audits: "Sequence[Audit]") -> "Audit":
        """The audits of several Guardians under the same rules, added up."""
        total = cls()
        total.fingerprint, total.near_miss = audits[0].fingerprint, audits[0].near_miss
        for audit in audits:
            total.counts = _added(total.counts, audit.counts)
        return total

    def table(self, title: str = "Audit") -> "Table":
        """The audit for the terminal."""
        from rich.table import Table

        counts, summary = self.counts, self.as_dict()
        table = Table(title=title, title_justify="left", show_header=False)

        def row(name: str, value: str, note: str = "") -> None:
            table.add_row(name, value, note)

        row("proposals", f"{counts.proposals:,}", f"{counts.episodes:,} episodes")
        row("interventions", f"{counts.interventions:,}", f"{summary['intervention_rate']:.2%} of proposals")
        for status in (Status.PROJECTED, Status.FALLBACK, Status.INEVITABLE):
            if number := getattr(counts, status):
                row(f"  {status}", f"{number:,}")
        if counts.stopped:
            row("  stopped", f"{counts.stopped:,}", "nothing could be executed")
        row(
            "moved by", f"{summary['mean_distance']:.4g} on average", f"{counts.largest_distance:.4g} at most"
        )
        if counts.not_exact:
            row("not proven nearest", f"{counts.not_exact:,}")
        row("near misses", f"{counts.near_misses:,}", f"margin in [0, {self.near_miss:g})")
        for name, rule in counts.rules.items():
            mean = rule.depth / max(rule.blocked, 1)
            note = f"broken by {mean:.4g} on average, {rule.deepest:.4g} at most" if rule.blocked else ""
            row(f"blocked by {name}", f"{rule.blocked:,}", note)
        for reason, number in counts.reasons.items():
            row("failed", f"{number:,}", reason)
        if counts.episodes_watched:
            bound = (
                f"at most {summary['unsafe_episode_upper_bound_95']:.2%} of episodes (95%), if independent"
            )
            row("unsafe episodes", f"{counts.episodes_with_unsafe_event:,}", bound)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> tuple["Audit", list[dict[str, Any]]]:
        """An audit and its interventions from a file; lines torn by a kill are passed over.

        Runs that were appended to one file are added up. Of an episode that never ended, the interventions are
        known, and the allowed proposals before the last of them.
        """
        past, audit, events = Counts(), cls(), []
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if event["event"] == "start":
                past = _added(past, audit.counts)
                audit = cls()
                audit.begin(tuple(event["rules"]), event["near_miss"], event["fingerprint"])
            else:
                audit._replay(event)
                if event["event"] in ("intervention", "stop"):
                    events.append(event)
        audit.counts = _added(past, audit.counts)
        return audit, events

    def _replay(self, event: dict[str, Any]) -> None:
        """Count what a line of a file says."""
        if event["event"] == "episode":
            self.counts = _counts(event["counts"])
            return
        allowed = event["step"] - self.counts.proposals - 1
        self.counts.proposals += allowed
        self.counts.allowed += allowed
        if event["event"] == "stop":
            self.record_stop({0: event["reason"]})
            return
        numbers = {n: float("nan") if m is None else m for n, m in event["margins"].items()}
        distance = float("nan") if event["distance"] is None else event["distance"]
        reason, exact = event.get("reason", ""), event["exact"]
        self.record(
            Verdict(None, None, Status(event["status"]), distance, numbers, exact=exact, reason=reason)
        )


def _counts(values: Mapping[str, Any]) -> Counts:
    """Counts from the dict that `asdict` made of them."""
    return Counts(**{**values, "rules": {n: RuleCounts(**r) for n, r in values["rules"].items()}})


def _added(one: Counts, other: Counts) -> Counts:
    """The counts of two runs together."""
    total = Counts()
    for name, value in vars(one).items():
        if isinstance(value, dict):
            continue
        both = (value, getattr(other, name))
        setattr(total, name, max(both) if name == "largest_distance" else sum(both))
    for name in [*one.rules, *(n for n in other.rules if n not in one.rules)]:
        a, b = one.rules.get(name, RuleCounts()), other.rules.get(name, RuleCounts())
        total.rules[name] = RuleCounts(
            a.blocked + b.blocked, a.near_misses + b.near_misses, max(a.deepest, b.deepest), a.depth + b.depth
        )
    total.reasons = dict(Counter(one.reasons) + Counter(other.reasons))
    return total


def _torn(path: Path) -> bool:
    """Whether a file ends in the middle of a line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _plain(value: Any) -> Any:
    """JSON-able, with null for what is not a finite number."""
    if value is None:
        return None
    listed = np.asarray(value).tolist()

    def finite(v: Any) -> Any:
        if isinstance(v, list):
            return [finite(x) for x in v]
        return None if isinstance(v, float) and not np.isfinite(v) else v

    return finite(listed)
