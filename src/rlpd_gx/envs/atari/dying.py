"""Dying flags: conditions on RAM that hold only between the fatal moment and the event being counted."""

import itertools
from dataclasses import dataclass

import numpy as np

from rlpd_gx.envs.atari.games import Flag
from rlpd_gx.envs.atari.recording import Recording
from rlpd_gx.types import Array

NEVER = 1 << 30  # steps to an event that does not come
GOOD = 0.97  # precision wanted of a value, recall wanted of all flags
PURE = 0.95  # precision below which a flag is no use: it would forbid what is safe
LEAST_RUN = 0.1  # share of flagged steps an unbroken run of values must have
SUPPORT = 0.04  # share of events a value must be seen before, or it may be chance


@dataclass(frozen=True)
class Validation:
    """How a flag did: shares of flagged steps followed by the event and of events announced, and how early."""

    precision: float
    recall: float
    lead_steps: float  # median from the first flagged step to the step that counts the event
    events: int
    steps: int


Judged = tuple[tuple[Flag, ...], Validation]


def steps_to_event(recording: Recording) -> Array:
    """[T]: steps until the next event of the same game, 0 where it is counted, NEVER where none follows."""
    ahead = np.full(len(recording.event), NEVER)
    for t in range(len(ahead) - 1, -1, -1):
        if recording.event[t]:
            ahead[t] = 0
        elif t + 1 < len(ahead) and recording.game[t + 1] == recording.game[t] and ahead[t + 1] < NEVER:
            ahead[t] = ahead[t + 1] + 1
    return ahead


def holds(flags: tuple[Flag, ...], ram: Array) -> Array:
    """[T]: whether any of the flags holds in RAM [T, 128]."""
    return np.any([np.isin(ram[:, flag.address], flag.values) for flag in flags], axis=0)


def validate(flags: tuple[Flag, ...], recording: Recording, window: int) -> Validation:
    """Precision, recall and lead of flags, right only where an event follows within `window` steps."""
    ahead = steps_to_event(recording)[: _known(recording, window)]
    return _score(holds(flags, recording.ram[: len(ahead)]), ahead, window)


def search(recording: Recording, window: int, escapes: Array) -> Judged | None:
    """The best flags on a recording: for each address, the values that only the dying show.

    Never a value seen in `escapes` [S, 128]: what a bad player's end always shows, a good one may survive.
    Values are chosen on the first half and judged on the second, so that chance does not look like knowledge.
    A second and third flag is added where it announces events that the first ones miss.
    """
    ahead = steps_to_event(recording)[: _known(recording, window)]
    half = len(ahead) // 2
    ram, ahead_later = recording.ram[half : len(ahead)], ahead[half:]

    def judge(flags: tuple[Flag, ...]) -> Validation:
        return _score(holds(flags, ram), ahead_later, window)

    singles = []
    for address in range(recording.ram.shape[1]):
        values = _telling_values(recording.ram[:half, address], ahead[:half], window, escapes[:, address])
        if values and judge((Flag(address, values),)).precision >= PURE:
            singles.append(Flag(address, values))
    if not singles:
        return None
    best: Judged = max((((flag,), judge((flag,))) for flag in singles), key=rank)
    for _ in range(2):
        if best[1].recall >= GOOD:
            break
        wider: list[Judged] = [
            ((*best[0], flag), judge((*best[0], flag))) for flag in singles if flag not in best[0]
        ]
        wider = [pair for pair in wider if pair[1].precision >= PURE]
        if not wider or max(wider, key=rank)[1].recall < best[1].recall + SUPPORT:
            break
        best = max(wider, key=rank)
    return best


def _score(flagged: Array, ahead: Array, window: int) -> Validation:
    before = (ahead >= 1) & (ahead <= window)
    flagged = flagged & (ahead > 0)  # the step that counts the event announces nothing
    leads = [_lead(flagged[life]) for life in _last_steps(ahead, window)]
    found = [lead for lead in leads if lead]
    return Validation(
        precision=float(before[flagged].mean()) if flagged.any() else 0.0,
        recall=len(found) / max(len(leads), 1),
        lead_steps=float(np.median(found)) if found else 0.0,
        events=len(leads),
        steps=len(ahead),
    )


def _last_steps(ahead: Array, window: int) -> list[slice]:
    """The steps before each event, at most `window`, and none from before another event or of another game."""
    slices = []
    for event in np.flatnonzero(ahead == 0).tolist():
        steps = np.arange(max(event - window, 0), event)
        own = ahead[steps] == event - steps  # from some step on: those before it lead to an earlier event
        slices.append(slice(event - int(own.sum()), event))
    return slices


def _lead(flagged: Array) -> int:
    """Steps from the first flagged one to the end; 0 if there is none."""
    hits = np.flatnonzero(flagged)
    return len(flagged) - int(hits[0]) if len(hits) else 0


def _telling_values(byte: Array, ahead: Array, window: int, escaped: Array) -> tuple[int, ...]:
    """Values of a byte [T] that are followed by an event nearly always, and seen before several events.

    Values between two such that were never seen at all are taken in: a counter that skipped them would not.
    Runs of values that make up little of what was seen are left out: chance among many positions.
    """
    before = (ahead >= 1) & (ahead <= window)
    seen_before = np.bincount(byte[before], minlength=256)
    seen_else = np.bincount(byte[ahead > window], minlength=256)
    lives = _last_steps(ahead, window)
    support = np.zeros(256, int)
    for life in lives:
        support[np.unique(byte[life])] += 1
    saved = np.bincount(escaped, minlength=256) > 0
    pure = ~saved & (seen_before > 0) & (seen_before >= GOOD * (seen_before + seen_else))
    telling = pure & (support >= max(2, SUPPORT * len(lives)))
    unseen = ~saved & (seen_before + seen_else == 0)
    values = np.flatnonzero(telling)
    for first, last in itertools.pairwise(values):
        between = slice(first + 1, last)
        if (unseen | pure)[between].all():
            telling[between] = True
    runs = Flag(0, tuple(np.flatnonzero(telling).tolist())).spans
    weights = [seen_before[first : last + 1].sum() for first, last in runs]
    kept = [run for run, weight in zip(runs, weights, strict=True) if weight >= LEAST_RUN * sum(weights)]
    return tuple(value for first, last in kept for value in range(first, last + 1))


def rank(pair: Judged) -> tuple[float, float, float, int, int]:
    """Those that announce nearly all events first, the others by recall in tenths; then lead, then the simplest."""
    flags, judged = pair
    announced = 2.0 if judged.recall >= GOOD else round(judged.recall, 1)
    runs = sum(len(flag.spans) for flag in flags)
    values = sum(len(flag.values) for flag in flags)
    return announced, judged.lead_steps, judged.precision, -runs, -values


def _known(recording: Recording, window: int) -> int:
    """Steps whose future was seen: the last game may have been left in the middle."""
    return len(recording.event) if recording.event[-1] else max(len(recording.event) - window, 0)
