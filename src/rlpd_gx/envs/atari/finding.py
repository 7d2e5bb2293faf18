"""The dying-flag finder: measure when events become certain, search RAM for signs of it, check them elsewhere."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlpd_gx.envs.atari.dying import Validation, holds, rank, search, validate
from rlpd_gx.envs.atari.env import make
from rlpd_gx.envs.atari.fatal import Fatality, fatalities
from rlpd_gx.envs.atari.games import Flag, find_game
from rlpd_gx.envs.atari.recording import record

LEAST_PRECISION, LEAST_RECALL = 0.95, 0.5  # on play the search has not seen; below, no flag is better
MOST_EARLY = 0.15  # share of events whose flag may show while they could still be prevented
USEFUL_LAG = 3  # steps; where events are counted sooner, a flag gains nothing
SLACK = 4  # steps added to the recommended depth: plans tried are fewer than plans there are


@dataclass(frozen=True)
class Finding:
    """What was measured of one game."""

    game: str
    event: str
    flags: tuple[Flag, ...]
    checked: Validation | None  # on fresh play; None if nothing was found to be checked
    lags: tuple[int, ...]  # steps from certain to counted, of each event looked at
    delays: tuple[int, ...]  # steps from certain to flagged, or to counted where no flag announced it
    events: int  # in both recordings
    steps: int

    @property
    def depth(self) -> int:
        """Steps a look-ahead needs to see nine of ten events coming, with some slack."""
        return math.ceil(np.quantile(self.delays, 0.9)) + SLACK if self.delays else 0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "event": self.event,
            "flags": [{"address": flag.address, "values": list(flag.values)} for flag in self.flags],
            "precision": round(self.checked.precision, 4) if self.checked and self.flags else None,
            "recall": round(self.checked.recall, 4) if self.checked and self.flags else None,
            "lead_steps": self.checked.lead_steps if self.checked and self.flags else None,
            "checked_events": self.checked.events if self.checked and self.flags else None,
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
        escapes = np.concatenate([death.escape for death in deaths])
        windows = {int(np.median(lags)) + 2, max(lags) + 2}
        candidates = [
            (best, window)
            for window in sorted(windows)
            if (best := search(seen, window, escapes)) is not None
            and _too_early(deaths, best[0]) <= MOST_EARLY
        ]
        if candidates:
            (flags, _), window = max(candidates, key=lambda pair: rank(pair[0]))
            checked = validate(flags, fresh, window)
            if checked.precision < LEAST_PRECISION or checked.recall < LEAST_RECALL:
                flags = ()
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


def _delay(death: Fatality, flags: tuple[Flag, ...]) -> int:
    """Steps from the fatal moment to the first sign of it."""
    if not flags or not death.lag:
        return death.lag
    shown = np.flatnonzero(holds(flags, death.ram[-death.lag :]))
    return int(shown[0]) if len(shown) else death.lag


def _too_early(deaths: list[Fatality], flags: tuple[Flag, ...]) -> float:
    """Share of events announced more than a step before they were certain."""
    return float(np.mean([holds(flags, death.ram[: -death.lag - 1]).any() for death in deaths]))
