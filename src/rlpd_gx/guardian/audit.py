"""The audit: what was proposed, what was corrected, by which rule and by how much.

The file is JSON lines, only ever appended to: a `start` line, a line for each correction, stop and takeover by a
person, and one with the running tally at the end of each episode. A killed process loses nothing that was written
before.
"""

import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.trees import Json, JsonMapping, Tree
from rlpd_gx.types import RuleTally, Status, Tally, Verdict

if TYPE_CHECKING:
    from rich.table import Table

    from rlpd_gx.guardian.verdicts import VerdictBatch


class Audit:
    """Counts verdicts; appends corrections to a file if it has one. Read a file back with `Audit.read`.

    Threads may share it. A copy (`copy.deepcopy`, pickle) starts from the counts so far, counts for itself, and
    writes no file: two writers would mix their lines in one file.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.tally = Tally()
        self.fingerprint = ""
        self.near_miss = 0.0
        self.ungraded: frozenset[str] = frozenset()  # rules that have no near misses
        self.damaged_lines = 0  # of the file it was read from
        self.lock = threading.RLock()
        self._file: int | None = None
        self._torn = False  # the last line of the file has no end
        self._at_episode_start = 0  # corrections counted when the episode began

    def __getstate__(self) -> Json:
        with self.lock:
            return {k: v for k, v in vars(self).items() if k not in ("lock", "_file", "path", "_torn")}

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state, lock=threading.RLock(), path=None, _file=None, _torn=False)

    def begin(
        self,
        rules: Sequence[str],
        near_miss: float,
        fingerprint: str,
        ungraded: frozenset[str] = frozenset(),
    ) -> None:
        """Called by the Guardian that writes into this audit."""
        if not isinstance(near_miss, float | int | np.number):
            raise GxError(f"near_miss is {near_miss!r}; give a number, in the units of the rules' margins")
        if self.tally.rules:
            raise GxError("this audit already belongs to a Guardian; give each its own")
        self.fingerprint, self.near_miss, self.ungraded = fingerprint, near_miss, ungraded
        self.tally.rules = {name: RuleTally() for name in rules}
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                self._torn = _torn(self.path)
            except OSError as error:
                raise self._not_written(error) from None
            weakref.finalize(self, os.close, self._file)
            self._append(self._start())

    def state(self) -> Json:
        """The counts, as JSON can hold them; for `load_state`."""
        with self.lock:
            return {"tally": self.tally.as_dict(), "at_episode_start": self._at_episode_start}

    def load_state(self, state: JsonMapping) -> None:
        """Restore the counts of a state."""
        with self.lock:
            self.tally = Tally.from_dict(state["tally"])
            self._at_episode_start = state["at_episode_start"]

    # --- counting ----------------------------------------------------------------------------------------

    def record(self, verdict: Verdict, times: int = 1) -> None:
        """Count a verdict that was given `times` times."""
        with self.lock:
            self.tally.add(verdict, self.near_miss, times)
            if verdict.corrected and self._file is not None:
                for _ in range(times):
                    self._write(self._correction(verdict))

    def record_batch(self, batch: "VerdictBatch") -> None:
        """Count a batch of verdicts."""
        with self.lock:
            self.tally.add_batch(batch, self.near_miss)
            if self._file is not None:
                for i in np.flatnonzero(batch.corrected).tolist():
                    self._write(self._correction(batch[i]))

    def record_stop(self, reasons: Mapping[int, str]) -> None:
        """Count proposals in place of which nothing could be executed."""
        with self.lock:
            for reason in reasons.values():
                self.tally.add_stop(reason)
                self._write({"event": "stop", "step": self.tally.proposals, "reason": reason})

    def record_takeover(self, verdict: Verdict, taken_over: Verdict) -> None:
        """A person acted instead of executing a verdict that has been counted: count what ran."""
        with self.lock:
            change = taken_over.executes_forbidden - verdict.executes_forbidden
            self.tally.forbidden_executed += change
            self._write(
                {
                    "event": "takeover",
                    "step": self.tally.proposals,
                    "episode": self.tally.episodes,
                    "executed": _plain(taken_over.action),
                    "executed_margin": _plain(taken_over.executed_margin),
                    "forbidden_executed": change,
                }
            )

    def end_episode(self, *, unsafe_event: int | None = None, corrected: bool | None = None) -> None:
        """Close an episode; `unsafe_event` (whether, or how often) is None where none was looked for."""
        with self.lock:
            tally = self.tally
            if corrected is None:
                corrected = tally.corrections > self._at_episode_start
            events = None if unsafe_event is None else int(unsafe_event)
            tally.end_episode(corrected=corrected, unsafe_events=events)
            tally.unsafe_events += events or 0
            self._at_episode_start = tally.corrections
            seen = None if events is None else bool(events)
            self._write({"event": "episode", "unsafe_event": seen, "tally": tally.as_dict()})

    # --- writing -----------------------------------------------------------------------------------------

    def _start(self) -> Json:
        return {
            "event": "start",
            "rules": list(self.tally.rules),
            "ungraded": sorted(self.ungraded),
            "fingerprint": self.fingerprint,
            "near_miss": self.near_miss,
        }

    def _correction(self, verdict: Verdict) -> Json:
        return {
            "event": "correction",
            "step": self.tally.proposals,
            "episode": self.tally.episodes,
            "status": str(verdict.status),
            "proposed": _plain(verdict.proposed),
            "executed": _plain(verdict.action),
            "suggestion": _plain(verdict.suggestion),
            "distance": _plain(verdict.distance),
            "margins": {name: _plain(m) for name, m in verdict.margins.items()},
            "executed_margin": _plain(verdict.executed_margin),
            "binding": list(verdict.binding),
            "exact": verdict.exact,
            **({"reason": verdict.reason} if verdict.reason else {}),
        }

    def _write(self, line: Json) -> None:
        if self._file is None:
            return
        if os.fstat(self._file).st_size == 0:  # a resumed run has truncated the file to nothing
            self._torn = False
            self._append(self._start())
        self._append(line)

    def _append(self, line: Json) -> None:
        assert self._file is not None
        # Written at once: a killed process can tear the last line at most.
        left = memoryview(b"\n" * self._torn + (json.dumps(line, default=str) + "\n").encode())
        try:
            while left:
                self._torn = True
                left = left[os.write(self._file, left) :]  # a full disk may take only a part
            self._torn = False
        except OSError as error:
            raise self._not_written(error) from None

    def _not_written(self, error: OSError) -> GxError:
        return GxError(f"the audit file {self.path} cannot be written: {error.strerror}")

    # --- summaries ---------------------------------------------------------------------------------------

    def upper_bound(self, confidence: float = 0.95) -> float:
        """Exact (Clopper-Pearson) upper bound on the share of episodes with an unsafe event.

        Valid for independent episodes of a policy that does not change. Zero seen is not zero rate.
        """
        from scipy.stats import beta

        n, k = self.tally.episodes_watched, self.tally.episodes_with_unsafe_event
        return 1.0 if k >= n else float(beta.ppf(confidence, k + 1, n - k))

    def as_dict(self) -> Json:
        """All counts, with the rates and bounds that follow from them."""
        tally = self.tally
        return {
            **tally.as_dict(),
            "correction_rate": tally.corrections / max(tally.proposals, 1),
            "near_miss_rate": tally.near_misses / max(tally.proposals, 1),
            "mean_distance": tally.mean_distance,
            "unsafe_episode_upper_bound_95": self.upper_bound(),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def total(cls, audits: "Sequence[Audit]") -> "Audit":
        """The audits of several Guardians under the same rules, added up."""
        total = cls()
        total.fingerprint, total.near_miss = audits[0].fingerprint, audits[0].near_miss
        total.tally = sum((audit.tally for audit in audits), Tally())
        return total

    def table(self, title: str = "Audit") -> "Table":
        """The audit for the terminal."""
        from rich.markup import escape
        from rich.table import Table

        tally, summary = self.tally, self.as_dict()
        table = Table(title=escape(title), title_justify="left", show_header=False)

        def row(*cells: str) -> None:
            table.add_row(*(escape(cell) for cell in cells))  # names of rules may hold brackets

        row("proposals", f"{tally.proposals:,}", f"{tally.episodes:,} episodes")
        row("corrections", f"{tally.corrections:,}", f"{summary['correction_rate']:.2%} of proposals")
        for status in (Status.PROJECTED, Status.FALLBACK, Status.INEVITABLE):
            if number := getattr(tally, status):
                row(f"  {status}", f"{number:,}")
        if tally.stopped:
            row("  stopped", f"{tally.stopped:,}", "nothing could be executed")
        row(
            "corrected by",
            f"{tally.mean_distance:.4g} on average",
            f"{tally.largest_distance:.4g} at most",
        )
        if tally.not_exact:
            row("not proven nearest", f"{tally.not_exact:,}")
        row("near misses", f"{tally.near_misses:,}", f"margin in [0, {self.near_miss:g})")
        for name, rule in tally.rules.items():
            mean = rule.depth / max(rule.blocked, 1)
            note = f"broken by {mean:.4g} on average, {rule.deepest:.4g} at most" if rule.blocked else ""
            row(f"blocked by {name}", f"{rule.blocked:,}", note)
        for reason, number in tally.reasons.items():
            row("failed", f"{number:,}", reason)
        if tally.episodes_watched:
            bound = (
                f"at most {summary['unsafe_episode_upper_bound_95']:.2%} of episodes (95%), if independent"
            )
            row("unsafe episodes", f"{tally.episodes_with_unsafe_event:,}", bound)
        if self.damaged_lines:
            row("damaged lines", f"{self.damaged_lines:,}", "of the file, not counted")
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()

    # --- reading -----------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> tuple["Audit", list[Json]]:
        """An audit and its corrections, stops and takeovers from a file; `damaged_lines` of it cannot be read.

        Runs that were appended to one file are added up. Of an episode that never ended, the file has the corrections
        and the number of allowed proposals before the last of them.
        """
        try:
            lines = Path(path).read_bytes().split(b"\n")
        except OSError as error:
            raise GxError(f"the audit file {path} cannot be read: {error.strerror}") from None
        past, audit, events, damaged, good = Tally(), cls(), [], 0, 0
        for line in filter(None, lines):
            try:
                event = json.loads(line)
                if event["event"] == "start":
                    fresh = cls()
                    ungraded = frozenset(event["ungraded"])
                    fresh.begin(event["rules"], event["near_miss"], event["fingerprint"], ungraded)
                    past, audit = past + audit.tally, fresh
                else:
                    audit._replay(event)
                    if event["event"] != "episode":
                        events.append(event)
                good += 1
            except (ValueError, KeyError, TypeError, AttributeError):
                damaged += 1
        if damaged and not good:
            raise GxError(f"{path} is not an audit file: none of its {damaged} lines can be read")
        audit.tally = past + audit.tally
        audit.damaged_lines = damaged
        return audit, events

    def _replay(self, event: Json) -> None:
        """Count one line of a file; a line that cannot be read changes nothing."""
        if event["event"] == "episode":
            self.tally = Tally.from_dict(event["tally"])
            return
        takeover = event["event"] == "takeover"  # its proposal was allowed, or has a line of its own before
        before = max(event["step"] - self.tally.proposals - (not takeover), 0)
        if takeover:
            self.tally.forbidden_executed += event["forbidden_executed"]
        elif event["event"] == "stop":
            self.tally.add_stop(event["reason"])
        else:
            self.tally.add(_verdict(event, self.ungraded), self.near_miss)
        self.tally.proposals += before
        self.tally.allowed += before


def _verdict(event: Json, ungraded: frozenset[str]) -> Verdict:
    """The verdict in a `correction` line, as far as it is counted."""

    def number(value: float | None) -> float:
        return float("nan") if value is None else float(value)

    return Verdict(
        event["proposed"],
        event["executed"],
        Status(event["status"]),
        number(event["distance"]),
        {name: number(margin) for name, margin in event["margins"].items()},
        exact=event["exact"],
        reason=event.get("reason", ""),
        suggestion=event["suggestion"],
        executed_margin=number(event["executed_margin"]),
        ungraded=ungraded,
    )


def _torn(path: Path) -> bool:
    """Whether a file ends in the middle of a line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _plain(value: Tree) -> Tree:
    """JSON-able, with null for what is not a finite number."""
    if value is None:
        return None
    listed = np.asarray(value).tolist()

    def finite(v: Tree) -> Tree:
        if isinstance(v, list):
            return [finite(x) for x in v]
        return None if isinstance(v, float) and not np.isfinite(v) else v

    return finite(listed)
