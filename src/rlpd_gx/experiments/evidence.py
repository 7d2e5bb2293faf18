"""From rows to verdicts. A claim needs five seeds everywhere; its verdict follows from a 95% interval.

confirmed               the whole interval says so
not confirmed           the whole interval says the opposite
undecided               the interval holds both, or there are fewer than five seeds
impossible as stated    the paper's own figures contradict it
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlpd_gx.metrics.scores import SEEDS_FOR_A_CLAIM, central
from rlpd_gx.report.chapter import ClaimVerdict, Word
from rlpd_gx.trees import Json
from rlpd_gx.types import Array

GAMES_FOR_A_CLAIM = 4  # where the claim is about games in general, not about one
ASKED_LATER = (
    "Our own, asked after these runs"  # begins a claim that was thought of when the rows had been seen
)
RESAMPLES = 10_000
Points = Mapping[str, Sequence[float]]  # game -> the value of each seed
Value = Callable[[Json], float | None]  # a number of a row
Curve = Callable[[Json], list[list[float]]]  # pairs (x, y) of a row

Comparison = Callable[[str, Points, Points], ClaimVerdict]


class Rows:
    """The rows of an experiment: the newest for each scale, game, variant and seed."""

    def __init__(self, rows: Iterable[Json]) -> None:
        newest: dict[tuple[Any, ...], Json] = {}
        for row in rows:
            newest[tuple(row.get(name) for name in ("scale", "game", "variant", "seed", "table"))] = row
        self.rows = sorted(newest.values(), key=lambda row: row["seed"])

    def of(self, **labels: Any) -> "Rows":
        """Those with these labels."""
        return Rows(row for row in self.rows if all(row.get(name) == value for name, value in labels.items()))

    def labels(self, name: str) -> list[Any]:
        """The values of a label, in the order in which they first appear."""
        return list(dict.fromkeys(row[name] for row in self.rows if name in row))

    @property
    def games(self) -> list[str]:
        """The games, by name."""
        return sorted(self.labels("game"))

    def points(self, variant: str, value: Value) -> dict[str, list[float]]:
        """A value of each seed by game, where it was measured."""
        found: dict[str, list[float]] = {}
        for row in self.of(variant=variant).rows:
            if (number := value(row)) is not None and np.isfinite(number):
                found.setdefault(row["game"], []).append(float(number))
        return found


def score(row: Json) -> float:
    """Mean score of the final evaluation."""
    return row["score"]


def score_rate(row: Json) -> float | None:
    """Points in 1,000 steps of the final evaluation."""
    steps = row["evaluation"].get("steps")
    return 1_000 * sum(row["returns"]) / steps if steps else None


def event_rate(row: Json) -> float | None:
    """Unsafe events in 1,000 steps of the final evaluation, where the task reports them."""
    steps = row["evaluation"].get("steps")
    return (
        1_000 * row["evaluation"]["unsafe_events"] / steps if steps and row["unsafe_events_watched"] else None
    )


def measured(measurement: str, name: str) -> Value:
    """A number of a measurement, where it could be made; the last one of a curve."""

    def value(row: Json) -> float | None:
        found = row["measured"].get(measurement)
        number = found.get(name) if isinstance(found, dict) else None
        return (number[-1] if number else None) if isinstance(number, list) else number

    return value


def measured_curve(measurement: str, x: str, y: str) -> Curve:
    """A curve of a measurement, where it could be made."""

    def points(row: Json) -> list[list[float]]:
        found = row["measured"].get(measurement)
        return (
            [list(point) for point in zip(found[x], found[y], strict=True)] if isinstance(found, dict) else []
        )

    return points


def training_curve(name: str) -> Curve:
    """A curve of the training metrics."""
    return lambda row: row["curves"].get(name, [])


def evaluation_curve(row: Json) -> list[list[float]]:
    """Score of each evaluation."""
    return row["curve"]


def mean_height(curve: Curve) -> Value:
    """The mean of a curve."""

    def value(row: Json) -> float | None:
        heights = [height for _, height in curve(row)]
        return float(np.mean(heights)) if heights else None

    return value


def late(name: str, last: float = 0.25) -> Value:
    """The mean of a training curve over the last quarter of the run."""

    def value(row: Json) -> float | None:
        points = row["curves"].get(name) or []
        kept = [v for step, v in points if step >= (1 - last) * points[-1][0]]
        return float(np.mean(kept)) if kept else None

    return value


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval; without one where there are too few seeds."""

    value: float
    low: float = np.nan
    high: float = np.nan

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))


def mean(points: Sequence[float]) -> Interval:
    """The mean over seeds, with Student's interval."""
    values = np.asarray(points, np.float64)
    if len(values) < SEEDS_FOR_A_CLAIM:
        return Interval(float(values.mean()))
    reach = _student(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(float(values.mean()), values.mean() - reach, values.mean() + reach)


def paired(a: Points, b: Points) -> list[tuple[Sequence[float], Sequence[float]]]:
    """The seeds of both in each game that both have."""
    return [(a[game], b[game]) for game in a if game in b]


def improvement(a: Points, b: Points) -> Interval:
    """Probability that a seed of `a` is above one of `b`, mean over the games of both (ties count half)."""
    pairs = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in paired(a, b)]
    if not pairs:
        return Interval(np.nan)
    value = float(np.mean([_above(x[None], y[None]) for x, y in pairs]))
    fewest = min(min(len(x), len(y)) for x, y in pairs)
    if fewest < SEEDS_FOR_A_CLAIM:
        return Interval(value)
    chance = np.random.default_rng(0)
    drawn = [
        _above(chance.choice(x, (RESAMPLES, len(x))), chance.choice(y, (RESAMPLES, len(y)))) for x, y in pairs
    ]
    return Interval(value, *central(np.mean(drawn, axis=0), fewest, _freedom(pairs)))


def ratio(a: Points, b: Points) -> Interval:
    """Mean over seeds of `a` divided by that of `b`, geometric mean over the games of both.

    The interval is Student's, for the logarithm of the ratio.
    """
    pairs = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in paired(a, b)]
    if not pairs or min(min(x.mean(), y.mean()) for x, y in pairs) <= 0:
        return Interval(np.nan)
    logs = float(np.mean([np.log(x.mean() / y.mean()) for x, y in pairs]))
    if min(min(len(x), len(y)) for x, y in pairs) < SEEDS_FOR_A_CLAIM:
        return Interval(float(np.exp(logs)))
    spread = sum(v.var(ddof=1) / len(v) / v.mean() ** 2 for pair in pairs for v in pair)
    reach = _student(_freedom(pairs)) * np.sqrt(spread) / len(pairs)
    return Interval(float(np.exp(logs)), float(np.exp(logs - reach)), float(np.exp(logs + reach)))


def judged(claim: str, interval: Interval, threshold: float, what: str) -> ClaimVerdict:
    """The verdict on "above the threshold"."""
    if not np.isfinite(interval.value):
        return ClaimVerdict(Word.UNDECIDED, claim, f"{what}: not measured, or a mean of 0 or less")
    if not interval.is_known:
        return ClaimVerdict(
            Word.UNDECIDED, claim, f"{what} {interval.value:.3g}, from fewer than {SEEDS_FOR_A_CLAIM} seeds"
        )
    word = (
        Word.CONFIRMED if interval.low > threshold
        else Word.NOT_CONFIRMED if interval.high < threshold
        else Word.UNDECIDED
    )  # fmt: skip
    known = f"95% interval {interval.low:.3g} to {interval.high:.3g}; threshold {threshold:.3g}"
    return ClaimVerdict(word, claim, f"{what} {interval.value:.3g} ({known})")


def better(claim: str, a: Points, b: Points, *, least_games: int = 1) -> ClaimVerdict:
    """The verdict on "a is above b"."""
    return _compared(claim, a, b, improvement(a, b), "probability of improvement", least_games)


def lower(claim: str, a: Points, b: Points, *, least_games: int = 1) -> ClaimVerdict:
    """The verdict on "a is below b"."""
    return _compared(claim, a, b, improvement(b, a), "probability of a lower value", least_games)


def _compared(claim: str, a: Points, b: Points, found: Interval, what: str, least_games: int) -> ClaimVerdict:
    games = [game for game in a if game in b]
    where = f" over {len(games)} games" if len(games) > 1 else f" in {games[0]}" if games else ""
    return of_enough_games(judged(claim, found, 0.5, what + where), len(games), least_games)


def of_enough_games(verdict: ClaimVerdict, games: int, least: int) -> ClaimVerdict:
    """The verdict, or that it is undecided where it rests on fewer games."""
    if games >= least or verdict.word not in (Word.CONFIRMED, Word.NOT_CONFIRMED):
        return verdict
    return ClaimVerdict(
        Word.UNDECIDED, verdict.claim, f"a claim needs {least} games; so far {verdict.reason}"
    )


def against_each(
    claim: str, rows: Rows, ours: str, others: Iterable[str], value: Value, how: Comparison
) -> ClaimVerdict:
    """A claim about one variant against several."""
    mine = rows.points(ours, value)
    return together(claim, [how(f"against {other}", mine, rows.points(other, value)) for other in others])


def together(claim: str, parts: Sequence[ClaimVerdict]) -> ClaimVerdict:
    """A claim of several parts: confirmed if all are, not confirmed if one is not."""
    words = [part.word for part in parts]
    reason = "; ".join(f"{part.claim}: {part.word}, {part.reason}" for part in parts)
    if not parts:
        return ClaimVerdict(Word.UNDECIDED, claim, "nothing was measured")
    for word in (Word.IMPOSSIBLE, Word.NOT_CONFIRMED, Word.UNDECIDED):
        if word in words:
            return ClaimVerdict(word, claim, reason)
    return ClaimVerdict(Word.CONFIRMED, claim, reason)


def _above(x: Array, y: Array) -> Array:
    """The share of pairs with x above y, [R] from [R, n] and [R, m]."""
    left, right = x[:, :, None], y[:, None, :]
    return np.mean((left > right) + 0.5 * (left == right), axis=(1, 2))


def _freedom(pairs: Sequence[tuple[Array, Array]]) -> int:
    return sum(len(x) + len(y) - 2 for x, y in pairs)


def _student(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))
