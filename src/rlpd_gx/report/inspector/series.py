"""Numbers over steps in bounded memory, however many are added."""

import math
from array import array

from rlpd_gx.trees import Json

BUCKETS = 400  # of a series; where it has more points, neighbours share one


class Series:
    """A curve. Each bucket holds the mean, least and largest of equally many neighbouring values."""

    def __init__(self) -> None:
        self.steps, self.totals, self.counts, self.low, self.high = (array("d") for _ in range(5))
        self.per_bucket = 1

    def add(self, step: float, value: float) -> None:
        """Append a value; steps must not fall."""
        if self.counts and self.counts[-1] < self.per_bucket:
            self.steps[-1], self.totals[-1] = step, self.totals[-1] + value
            self.low[-1], self.high[-1] = min(self.low[-1], value), max(self.high[-1], value)
            self.counts[-1] += 1
            return
        for column, first in zip(self._columns(), (step, value, 1, value, value), strict=True):
            column.append(first)
        if len(self.steps) > BUCKETS:
            self._halve()

    def as_json(self) -> Json:
        """x and the means y; low and high where a bucket holds more than one value."""
        means = [total / count for total, count in zip(self.totals, self.counts, strict=True)]
        values: Json = {"x": list(self.steps), "y": rounded(means)}
        if self.per_bucket > 1:
            values |= {"low": rounded(self.low), "high": rounded(self.high), "per": self.per_bucket}
        return values

    def _columns(self) -> tuple["array[float]", ...]:
        return self.steps, self.totals, self.counts, self.low, self.high

    def _halve(self) -> None:
        self.per_bucket *= 2
        pairs = range(0, len(self.steps), 2)
        last = len(self.steps) - 1
        self.steps = array("d", (self.steps[min(i + 1, last)] for i in pairs))
        self.totals = array("d", (math.fsum(self.totals[i : i + 2]) for i in pairs))
        self.counts = array("d", (sum(self.counts[i : i + 2]) for i in pairs))
        self.low = array("d", (min(self.low[i : i + 2]) for i in pairs))
        self.high = array("d", (max(self.high[i : i + 2]) for i in pairs))


class Histogram:
    """Counts by name in equally wide bins from 0 on; the bins become wider when a value lies beyond them."""

    def __init__(self, bins: int, width: float) -> None:
        self.bins, self.width = bins, width
        self.counts: dict[str, array[float]] = {}

    def add(self, value: float, *names: str) -> None:
        """Count a value that is at least 0 under each name."""
        while value >= self.width * self.bins:
            self.width *= 2
            for name, counts in self.counts.items():
                merged = [counts[i] + counts[i + 1] for i in range(0, self.bins, 2)]
                self.counts[name] = array("d", merged + [0.0] * (self.bins - len(merged)))
        place = int(value / self.width)
        for name in names:
            if name not in self.counts:
                self.counts[name] = array("d", [0.0] * self.bins)
            self.counts[name][place] += 1

    def as_json(self) -> Json:
        """Width of a bin, and the counts of each name up to the last bin that is not empty."""
        used = max((i + 1 for counts in self.counts.values() for i, n in enumerate(counts) if n), default=0)
        return {"width": self.width, "counts": {k: list(map(int, v[:used])) for k, v in self.counts.items()}}


def rounded(values: "array[float] | list[float]") -> list[float | None]:
    """Numbers with six digits, as many as a page needs; null where one is not finite."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
