"""What every episode must satisfy before it may enter a dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline.episode import ActionRange, Episode, problem
from rlpd_gx.replay.offline.numbers import cast, first_changed, flags, numbers
from rlpd_gx.trees import Json
from rlpd_gx.types import Array

REPAIR = "repair the file or leave that episode out"
OUTSIDE = "outside the environment's range"
CLIP = "allowed as recorded; `rlpd-gx data convert --clip-actions` brings them inside"
SUSPICIOUS_ENDS, SHORT_STEPS = 3, 10
_SINGLE = np.dtype(np.float32)
# Array fields of an episode beside observations, and their dimensions where one number is right.
_DIMENSIONS: Json = {
    "rewards": 1,
    "margins": 1,
    "unsafe_events": 1,
    "safe_sets": 2,
    "safe_sets_known": 1,
}
_DIMENSIONS |= dict.fromkeys(("actions", "proposed_actions"))


class Checks:
    """Checks episodes one after another; `close` returns what is reported but not refused.

    `time_limit_steps` turns terminals at that length into time limits; `usual_limit_steps` only reports them.
    With `strict` off, bad values are reported as well, so that an audit lists all of them. `names` are the
    file's names of the components of a field.
    """

    def __init__(
        self,
        file: Path,
        actions: ActionRange | None = None,
        clip_actions: bool = False,
        time_limit_steps: int | None = None,
        usual_limit_steps: int | None = None,
        strict: bool = True,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.names = names or {}
        self.file, self.actions, self.clip_actions = file, actions, clip_actions
        self.time_limit_steps, self.usual_limit_steps = time_limit_steps, usual_limit_steps
        self.strict = strict
        self._bad_fields: dict[str, tuple[str, int]] = {}  # first sentence, how many episodes
        self._outside_steps = self._longest_steps = 0
        self._outside_first: GxError | None = None
        self._left_out = False
        self._too_long: tuple[GxError, int] | None = None  # the first sentence, how many episodes
        self._terminals: dict[int, tuple[int, int]] = {}  # episode length -> how many, row of the first
        if clip_actions and (actions is None or actions.low is None):
            raise GxError(
                f"{file}: 'actions' can only be clipped where their range is known and continuous; "
                "name the environment"
            )

    def __call__(self, episode: Episode) -> Episode | None:
        """The episode with plain numbers, actions clipped or a time limit corrected where that was asked for.

        None if no step is left: where the observation after a time limit is not known, that step is dropped.
        """
        self._shapes(episode)
        self._finite("actions", episode.actions, episode)
        for name, column in trees.named_leaves(episode.observations, "observations").items():
            self._finite(name, column, episode)
        self._finite("rewards", episode.rewards, episode)
        self._range_of_types(episode)
        self._action_range(episode)
        episode = self._time_limit(episode)
        return episode if episode.steps else None

    def close(self) -> list[str]:
        """All findings, after the last episode."""
        findings = [f"{first} ({count} such episodes)" for first, count in self._bad_fields.values()]
        if self._outside_first is not None:
            done = "clipped as asked" if self.clip_actions else CLIP
            findings.append(f"{self._outside_first} ({self._outside_steps} steps in all); {done}")
        if self._too_long is not None:
            first, count = self._too_long
            findings.append(f"{first} ({count} such episodes)")
        return findings + self._time_limit_finding()

    def _bad(self, field: str, error: GxError) -> None:
        if self.strict:
            raise error
        first, count = self._bad_fields.get(field, (str(error), 0))
        self._bad_fields[field] = (first, count + 1)

    def _shapes(self, episode: Episode) -> None:
        """Wrong shapes and types are refused even in an audit: columns cannot be aligned without them."""
        row, file = episode.first_row, episode.file or self.file
        episode.observations = trees.map_leaves(
            lambda part: numbers(file, "observations", part), episode.observations
        )
        for name in _DIMENSIONS:
            if (column := getattr(episode, name)) is not None:
                setattr(episode, name, numbers(file, name, column))
        episode.extras = {name: numbers(file, name, column) for name, column in episode.extras.items()}
        if not (steps := episode.steps):
            raise problem(file, "rewards", row, "an episode has no steps", REPAIR)
        expected = dict.fromkeys((*_DIMENSIONS, *episode.extras), steps)
        expected |= {"safe_sets": steps + 1, "safe_sets_known": steps + 1}
        columns = {name: getattr(episode, name) for name in _DIMENSIONS} | episode.extras
        for name, part in trees.named_leaves(episode.observations, "observations").items():
            columns[name], expected[name] = part, episode.lead_in + steps + 1
        for name, column in columns.items():
            if column is not None and len(column) != expected[name]:
                what = f"an episode has {len(column)} entries, not {expected[name]}"
                raise problem(file, name, row, what, REPAIR)
            if column is not None and (_DIMENSIONS.get(name) or column.ndim) != column.ndim:
                raise problem(file, name, row, f"has shape {column.shape[1:]} in every row", REPAIR)
        for name in ("unsafe_events", "safe_sets_known"):
            if (column := getattr(episode, name)) is not None:
                setattr(episode, name, flags(file, name, column, row))
        proposed, shape = episode.proposed_actions, episode.actions.shape
        if proposed is not None:
            if proposed.shape != shape:
                what = f"has shape {proposed.shape[1:]} in every row, 'actions' {shape[1:]}"
                raise problem(file, "proposed_actions", row, what, REPAIR)
            dtype = episode.actions.dtype
            episode.proposed_actions = cast(file, "proposed_actions", proposed, dtype, row)
        codes = episode.safe_sets  # an open bound is infinite, but nothing in a code is NaN
        if codes is not None and codes.dtype.kind == "f" and np.isnan(codes).any():
            raise problem(file, "safe_sets", row + int(np.argwhere(np.isnan(codes))[0][0]), "is NaN", REPAIR)

    def _finite(self, name: str, column: Array, episode: Episode) -> None:
        if column.dtype.kind != "f" or np.isfinite(column).all():
            return
        flat = column.reshape(len(column), -1)
        bad, component = (int(place[0]) for place in np.nonzero(~np.isfinite(flat)))
        value = "NaN" if np.isnan(flat[bad]).any() else "infinite"
        if len(names := self.names.get(name, ())) == flat.shape[1]:
            name, value = f"{name}/{names[component]}", value.replace("NaN", "empty or NaN")
        if bad == episode.lead_in + episode.steps:  # the observation after the last step
            name, bad = f"next_{name}", bad - 1
        row = episode.first_row + bad
        self._bad(name, problem(episode.file or self.file, name, row, f"is {value}", REPAIR))

    def _range_of_types(self, episode: Episode) -> None:
        """Rewards and margins are kept as float32: what that cannot hold would become infinite."""
        for name in ("rewards", "margins"):
            if (column := getattr(episode, name)) is None:
                continue
            if (row := first_changed(column, _SINGLE)) is not None:
                what = f"is {column[row]}, more than a float32 can hold"
                where = episode.first_row + row
                self._bad(name, problem(episode.file or self.file, name, where, what, REPAIR))
            with np.errstate(over="ignore"):
                setattr(episode, name, column.astype(_SINGLE))

    def _one_component(self, episode: Episode) -> None:
        """Whole numbers were read as ids [T]; where the environment takes one number, they are that: [T, 1]."""
        low = None if self.actions is None else self.actions.low
        if low is None or np.shape(low) != (1,) or episode.actions.ndim != 1:
            return
        for name in ("actions", "proposed_actions"):
            if (ids := getattr(episode, name)) is not None:
                column = cast(episode.file or self.file, name, ids, np.asarray(low).dtype, episode.first_row)
                setattr(episode, name, column[:, None])

    def _action_range(self, episode: Episode) -> None:
        self._one_component(episode)
        actions, allowed = episode.actions, self.actions
        file, row = episode.file or self.file, episode.first_row
        count = None if allowed is None else allowed.count
        if count is not None and actions.ndim > 1:
            what = f"holds {actions.dtype} {actions.shape[1:]} in every row, but the environment takes ids"
            raise problem(file, "actions", row, what, "give the data of that environment")
        if actions.ndim == 1:
            wrong = np.flatnonzero((actions < 0) | (actions >= (np.inf if count is None else count)))
            if wrong.size:
                what = f"is {actions[wrong[0]]}, but " + (
                    "ids begin at 0" if count is None else f"the environment has actions 0 to {count - 1}"
                )
                remedy = (
                    f"{REPAIR}, or name the environment if these are not ids" if count is None else REPAIR
                )
                self._bad("actions", problem(file, "actions", row + int(wrong[0]), what, remedy))
        if allowed is None or count is not None:
            return
        low, high = np.asarray(allowed.low), np.asarray(allowed.high)
        if actions.shape[1:] != low.shape:
            what = f"has shape {actions.shape[1:]}, but the environment takes {low.shape}"
            raise problem(file, "actions", row, what, "give the data of that environment")
        outside = allowed.outside(actions)
        if outside.any():
            self._outside_steps += int(outside.sum())
            if self._outside_first is None:
                self._outside_first = GxError(
                    f"{file}: 'actions', row {row + int(np.argmax(outside))}: {OUTSIDE}"
                )
        if self.clip_actions:
            episode.actions = np.clip(actions, low, high).astype(actions.dtype)

    def _time_limit(self, episode: Episode) -> Episode:
        self._longest_steps = max(self._longest_steps, episode.steps)
        if self.time_limit_steps and episode.steps > self.time_limit_steps:
            first, count = self._too_long or (self._exceeds(episode), 0)
            self._too_long = (first, count + 1)
        if not episode.terminated or episode.truncated:
            return episode
        count, first_row = self._terminals.get(episode.steps, (0, episode.first_row + episode.steps - 1))
        self._terminals[episode.steps] = (count + 1, first_row)
        if episode.steps != self.time_limit_steps:
            return episode
        if not episode.final_observation_known:
            self._left_out = True
            return episode.without_last_step()
        episode.terminated, episode.truncated = False, True
        if episode.safe_sets_known is not None and not episode.final_safe_set_known:
            episode.safe_sets_known[-1] = False
        return episode

    def _exceeds(self, episode: Episode) -> GxError:
        return problem(
            episode.file or self.file,
            "terminals",
            episode.first_row + int(self.time_limit_steps or 0),
            f"an episode goes on for {episode.steps} steps, beyond the time limit of {self.time_limit_steps}",
            "if episodes were joined there, add timeouts, episode or next_observations",
        )

    def _time_limit_finding(self) -> list[str]:
        """Terminals at a known limit, or several at the length no episode exceeds, are probably time limits."""
        limit = self.time_limit_steps or self.usual_limit_steps
        count, row = self._terminals.get(limit or self._longest_steps, (0, 0))
        if not count or (limit is None and (count < SUSPICIOUS_ENDS or self._longest_steps < SHORT_STEPS)):
            return []
        steps = limit or self._longest_steps
        if self.time_limit_steps:
            done = "taken as a time limit, as asked"
            if self._left_out:
                done += "; their last step is left out, as the observation after it is not in the file"
        else:
            done = f"if so, say --time-limit {steps}, or values will not be bootstrapped there"
        return [
            f"{self.file}: 'terminals', row {row}: {count} episodes end as terminal at exactly {steps} "
            f"steps, which looks like a time limit; {done}"
        ]
