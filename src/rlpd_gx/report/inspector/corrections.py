"""What the audit files of a run say: which rule, how often, how far, and where each correction is."""

import math
from array import array
from bisect import bisect_left
from pathlib import Path

from rlpd_gx.report.inspector.series import Histogram, rounded
from rlpd_gx.report.inspector.tail import Tail
from rlpd_gx.report.records import is_number
from rlpd_gx.trees import Json, Tree

MOST = 500_000  # corrections that are remembered; all are counted
MOST_RULES = 32
ACTION_SPACE = "action space"  # as audits name it where a proposal lies outside
SHOWN = ("status", "proposed", "executed", "distance", "margins", "reason")
STATUSES = ("allowed", "projected", "fallback", "inevitable", "stopped")


class Corrections:
    """The corrections in one audit file, as far as it has been read."""

    def __init__(self, path: Path, root: Path) -> None:
        self.tail = Tail(path, root)
        self._forget()

    def _forget(self) -> None:
        self.rules: dict[str, Json] = {}
        self.tally: Json = {}
        self.total = 0
        self.near_miss = 0.0
        self.reasons: dict[str, int] = {}
        self.timeline = Histogram(240, 1.0)
        self.distances = Histogram(48, 2.0**-16)
        self.steps, self.offsets, self.status = array("q"), array("q"), array("b")
        self.distance = array("d")

    def refresh(self) -> bool:
        """Read what is new; returns whether there was anything."""
        if not self.tail.changed():
            return False
        if self.tail.cut():
            self._forget()
        for offset, event in self.tail.read():
            try:
                self._add(offset, event)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                self.tail.damaged += 1
        return True

    def _add(self, offset: int, event: Json) -> None:
        kind = event["event"]
        if kind == "start":
            self.near_miss = float(event["near_miss"])
            for name in event["rules"][:MOST_RULES]:
                self._rule(str(name))
        elif kind == "episode":
            self.tally = {name: value for name, value in event["tally"].items() if name != "reasons"}
        elif kind in ("correction", "stop"):
            step = int(event["step"])
            status = "stopped" if kind == "stop" else str(event["status"])
            distance = event.get("distance")
            far = float(distance) if is_number(distance) else math.nan
            broken = {str(n): float(m) for n, m in event.get("margins", {}).items() if is_number(m) and m < 0}
            reason = str(event.get("reason", ""))[:200]
            names = list(dict.fromkeys(self._rule(name) for name in broken)) or [_without_rule(event, reason)]
            for name, margin in broken.items():
                rule = self.rules[self._rule(name)]
                rule["blocked"] += 1
                rule["depth"] -= margin
                rule["deepest"] = max(rule["deepest"], -margin)
            self.total += 1
            self.timeline.add(max(step - 1, 0), *names)
            if far >= 0:
                self.distances.add(far, *names)
            if reason:
                key = reason if reason in self.reasons or len(self.reasons) < 20 else "other reasons"
                self.reasons[key] = self.reasons.get(key, 0) + 1
            if len(self.steps) < MOST and (not self.steps or step > self.steps[-1]):
                self.steps.append(step - 1)
                self.offsets.append(offset)
                self.status.append(STATUSES.index(status))
                self.distance.append(far)

    def _rule(self, name: str) -> str:
        """The name under which a rule is counted."""
        if name not in self.rules and len(self.rules) >= MOST_RULES:
            name = "other rules"
        self.rules.setdefault(name, {"blocked": 0, "depth": 0.0, "deepest": 0.0})
        return name

    def as_json(self) -> Json:
        """The summary for a run's page."""
        near = self.tally.get("rules") or {}
        rules = [
            {
                "name": name,
                "blocked": rule["blocked"],
                "mean": rounded([rule["depth"] / rule["blocked"]])[0] if rule["blocked"] else None,
                "deepest": rounded([rule["deepest"]])[0],
                "near_misses": (near.get(name) or {}).get("near_misses"),
            }
            for name, rule in self.rules.items()
        ]
        return {
            "total": self.total,
            "rules": rules,
            "timeline": self.timeline.as_json(),
            "distances": self.distances.as_json(),
            "reasons": self.reasons,
            "near_miss": self.near_miss,
            "damaged": self.tail.damaged,
        }

    def recorded(self, first: int, length: int, most: int = 5_000) -> list[Json]:
        """The corrections among the proposals [first, first + length), each with its step `t` in the episode."""
        start, stop = bisect_left(self.steps, first), bisect_left(self.steps, first + length)
        found = []
        for place in range(start, min(stop, start + most)):
            event = self.tail.line(self.offsets[place])
            if event is not None:
                shown = {name: _short(event[name]) for name in SHOWN if name in event}
                found.append(shown | {"t": self.steps[place] - first})
        return found


def _without_rule(event: Json, reason: str) -> str:
    """What to count a correction under whose proposal broke no rule."""
    if reason or event["event"] == "stop":
        return "no rule could be asked"
    return ACTION_SPACE if ACTION_SPACE in event.get("binding", ()) else "chosen by the guard"


def _short(value: Tree) -> Tree:
    """With few digits."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    return rounded([value])[0] if isinstance(value, float) else value
