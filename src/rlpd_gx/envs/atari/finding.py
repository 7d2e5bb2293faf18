"""The dying-flag finder: measure when events become certain, search RAM for signs of it, check them elsewhere."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlpd_gx.envs.atari.dying import Validation, holds, rank, search, validate
from rlpd_gx.envs.atari.env import make
from rlpd_gx.envs.atari.fatal import Fatality, fatalities
from rlpd_gx.envs.atari.games import Flag, find_game
from rlpd_gx.envs.atari.recording import Recording, record

LEAST_PRECISION, LEAST_RECALL = 0.95, 0.5  # on play the search has not seen; below, no flag is better
MOST_EARLY = 0.15  # share of events whose flag may show while they could still be prevented
DEEPEST = 64  # steps; a longer lag says more of the plans tried than of the game
USEFUL_LAG = 3  # steps; where events are counted sooner, a flag gains nothing
SLACK = 4  # steps added to the recommended depth: plans tried are fewer than plans there are


@dataclass(frozen=True)
class Finding:
    """What was measured of one game."""

    game: str
    event: str
    flags: tuple[Flag, ...]
    checked: Validation | None  # on fresh play; None without a flag
    lags: tuple[int, ...]  # steps from certain to counted, of each event looked at
    delays: tuple[int, ...]  # steps from certain to flagged, or to counted where no flag announced it
    events: int  # in both recordings
    steps: int

    @property
    def depth(self) -> int:
        """Steps a look-ahead needs to see nine of ten events coming, with some slack."""
        return min(math.ceil(np.quantile(self.delays, 0.9)) + SLACK, DEEPEST) if self.delays else 0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "event": self.event,
            "flags": [{"address": flag.address, "values": list(flag.values)} for flag in self.flags],
            "precision": round(self.checked.precision, 4) if self.checked else None,
            "recall": round(self.checked.recall, 4) if self.checked else None,
            "lead_steps": self.checked.lead_steps if self.checked else None,
            "checked_events": self.checked.events if self.checked else None,
            "events": self.events,
            "steps": self.steps,
            "lag_steps": float(np.median(self.lags)) if self.lags else None,
            "lags": list(self.lags),
            "delays": list(self.delays),
            "depth": self.depth,
        }


def find(name: str, events: int = 100, steps: int = 25_000, lag_events: int = 10, seed: int = 0) -> Finding:
    """Play a game three times: for the lag, for the search, and to check what was found."""
    game = find_game(name)
    env = make(name)
    deaths = fatalities(env, lag_events, steps, seed)
    lags = tuple(death.lag for death in deaths)
    seen = record(env, events, steps, seed + 1)
    fresh = record(env, events, steps, seed + 2)
    flags: tuple[Flag, ...] = ()
    checked = None
    if lags and np.median(lags) >= USEFUL_LAG:
        typical, shortest = int(np.median(lags)), int(np.quantile(lags, 0.25))
        flags, checked = _search_and_check(seen, fresh, deaths, {typical + 2, max(lags) + 2})
        if not flags:  # where our plans are weak, lags are too long and every value looks like chance
            flags, checked = _search_and_check(seen, fresh, deaths, {shortest + 2})
    return Finding(
        game=game.name,
        event=game.event,
        flags=flags,
        checked=checked,
        lags=lags,
        delays=tuple(_delay(death, flags) for death in deaths),
        events=len(seen.events) + len(fresh.events),
        steps=len(seen.event) + len(fresh.event),
    )


def _search_and_check(
    seen: Recording, fresh: Recording, deaths: list[Fatality], windows: set[int]
) -> tuple[tuple[Flag, ...], Validation | None]:
    """The best flags over some windows, and how they did on fresh play; none if not well enough."""
    escapes = np.concatenate([death.escape for death in deaths])
    candidates = [
        (best, window)
        for window in sorted(windows)
        if (best := search(seen, window, escapes)) is not None and _too_early(deaths, best[0]) <= MOST_EARLY
    ]
    if not candidates:
        return (), None
    (flags, _), window = max(candidates, key=lambda pair: rank(pair[0]))
    checked = validate(flags, fresh, window)
    if checked.precision < LEAST_PRECISION or checked.recall < LEAST_RECALL:
        return (), None
    return flags, checked


def _delay(death: Fatality, flags: tuple[Flag, ...]) -> int:
    """Steps from the fatal moment to the first sign of it."""
    if not flags or not death.lag:
        return death.lag
    shown = np.flatnonzero(holds(flags, death.ram[-death.lag :]))
    return int(shown[0]) if len(shown) else death.lag


def _too_early(deaths: list[Fatality], flags: tuple[Flag, ...]) -> float:
    """Share of events announced more than a step before they were certain."""
    return float(np.mean([holds(flags, death.ram[: -death.lag - 1]).any() for death in deaths]))
