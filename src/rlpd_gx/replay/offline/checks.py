"""What every episode must satisfy before it may enter a dataset."""

from pathlib import Path

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Observations, problem
from rlpd_gx.types import Array

REPAIR = "repair the file or leave that episode out"
CLIP = "allowed as recorded; ask for clipping (--clip-actions) to bring them inside"
SUSPICIOUS_ENDS, SHORT_STEPS = 3, 10


class Checks:
    """Checks episodes one after another; `close` gives what is reported but not refused.

    `time_limit_steps` turns terminals at that length into time limits; `usual_limit_steps` only reports them.
    With `strict` off, bad values are reported as well: that is how an audit sees all of them.
    """

    def __init__(
        self,
        file: Path,
        actions: ActionRange | None = None,
        clip_actions: bool = False,
        time_limit_steps: int | None = None,
        usual_limit_steps: int | None = None,
        strict: bool = True,
    ) -> None:
        self.file, self.actions, self.clip_actions = file, actions, clip_actions
        self.time_limit_steps, self.usual_limit_steps = time_limit_steps, usual_limit_steps
        self.strict = strict
        self._bad_fields: dict[str, tuple[str, int]] = {}  # first sentence, how many episodes
        self._outside_steps = self._longest_steps = 0
        self._outside_first: GxError | None = None
        self._terminals: dict[int, tuple[int, int]] = {}  # episode length -> how many, row of the first
        if clip_actions and (actions is None or actions.low is None):
            raise GxError(
                f"{file}: 'actions' can only be clipped where their range is known and continuous; "
                "name the environment"
            )

    def __call__(self, episode: Episode) -> Episode:
        """The episode, with actions clipped or a time limit corrected where that was asked for."""
        self._lengths(episode)
        self._finite("rewards", episode.rewards, episode)
        self._finite("actions", episode.actions, episode)
        for name, column in parts_of(episode.observations).items():
            self._finite(name, column, episode)
        self._action_range(episode)
        self._time_limit(episode)
        return episode

    def close(self) -> list[str]:
        """All findings, after the last episode."""
        findings = [f"{first} ({count} such episodes)" for first, count in self._bad_fields.values()]
        if self._outside_first is not None:
            done = "clipped as asked" if self.clip_actions else CLIP
            findings.append(f"{self._outside_first} ({self._outside_steps} steps in all); {done}")
        return findings + self._time_limit_finding()

    def _bad(self, field: str, error: GxError) -> None:
        if self.strict:
            raise error
        first, count = self._bad_fields.get(field, (str(error), 0))
        self._bad_fields[field] = (first, count + 1)

    def _lengths(self, episode: Episode) -> None:
        """Lengths are refused even in an audit: nothing can be lined up without them."""
        steps, row, file = episode.steps, episode.first_row, episode.file or self.file
        expected = {"actions": steps, "proposed_actions": steps, "margins": steps, "unsafe_events": steps}
        expected |= {"safe_sets": steps + 1, "safe_sets_known": steps + 1}
        columns = {name: (getattr(episode, name), length) for name, length in expected.items()}
        for name, part in parts_of(episode.observations).items():
            columns[name] = part, episode.lead_in + steps + 1
        for name, (column, length) in columns.items():
            if column is not None and len(column) != length:
                raise problem(file, name, row, f"an episode has {len(column)} entries, not {length}", REPAIR)

    def _finite(self, name: str, column: Array, episode: Episode) -> None:
        if column.dtype.kind != "f" or np.isfinite(column).all():
            return
        bad = int(np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))[0])
        value = "NaN" if np.isnan(column[bad]).any() else "infinite"
        if bad == episode.lead_in + episode.steps:  # the observation after the last step
            name, bad = f"next_{name}", bad - 1
        row = episode.first_row + bad
        self._bad(name, problem(episode.file or self.file, name, row, f"is {value}", REPAIR))

    def _action_range(self, episode: Episode) -> None:
        actions, allowed = episode.actions, self.actions
        if allowed is None:
            return
        if allowed.count is not None:
            wrong = np.flatnonzero((actions < 0) | (actions >= allowed.count))
            if wrong.size:
                value = actions.reshape(-1)[wrong[0]]
                where = episode.first_row + int(wrong[0])
                what = f"is {value}, but the environment has actions 0 to {allowed.count - 1}"
                self._bad("actions", problem(episode.file or self.file, "actions", where, what, REPAIR))
            return
        low, high = np.asarray(allowed.low), np.asarray(allowed.high)
        if actions.shape[1:] != low.shape:
            raise problem(
                episode.file or self.file,
                "actions",
                episode.first_row,
                f"has shape {actions.shape[1:]}, but the environment takes {low.shape}",
                "give the data of that environment",
            )
        outside = ((actions < low) | (actions > high)).reshape(len(actions), -1).any(axis=1)
        if outside.any():
            self._outside_steps += int(outside.sum())
            if self._outside_first is None:
                row = int(np.argmax(outside))
                self._outside_first = GxError(
                    f"{episode.file or self.file}: 'actions', row {episode.first_row + row}: "
                    "outside the environment's range"
                )
            if self.clip_actions:
                episode.actions = np.clip(actions, low, high).astype(actions.dtype)

    def _time_limit(self, episode: Episode) -> None:
        self._longest_steps = max(self._longest_steps, episode.steps)
        if not episode.terminated or episode.truncated:
            return
        count, first_row = self._terminals.get(episode.steps, (0, episode.first_row + episode.steps - 1))
        self._terminals[episode.steps] = (count + 1, first_row)
        if episode.steps == self.time_limit_steps:
            episode.terminated, episode.truncated = False, True

    def _time_limit_finding(self) -> list[str]:
        """Terminals at a known limit, or several at the very length no episode exceeds, are hardly real."""
        limit = self.time_limit_steps or self.usual_limit_steps
        count, row = self._terminals.get(limit or self._longest_steps, (0, 0))
        if not count or (limit is None and (count < SUSPICIOUS_ENDS or self._longest_steps < SHORT_STEPS)):
            return []
        steps = limit or self._longest_steps
        if self.time_limit_steps:
            done = "taken as a time limit, as asked"
        else:
            done = f"if so, say --time-limit {steps}, or values will not be bootstrapped there"
        return [
            f"{self.file}: 'terminals', row {row}: {count} episodes end as terminal at exactly {steps} "
            f"steps, which looks like a time limit; {done}"
        ]


def parts_of(observations: Observations) -> dict[str, Array]:
    """Parts by the name a message uses."""
    if isinstance(observations, dict):
        return {f"observations/{name}": part for name, part in observations.items()}
    return {"observations": observations}
