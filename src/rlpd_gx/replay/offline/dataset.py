"""`OfflineDataset`: rows of offline data, whatever file they came from (`loading.py` reads the files)."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium
import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import cache
from rlpd_gx.replay.offline.episode import ActionRange
from rlpd_gx.replay.offline.numbers import cast
from rlpd_gx.replay.timeline import Layout, Timeline
from rlpd_gx.safe_sets import Spec
from rlpd_gx.types import Array

_COMPARISONS: dict[str, Callable[[Array, float], Array]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
FACTS = ("name", "format", "env_id", "rules_fingerprint", "knows_unsafe_events")
LATER_FACTS = ("safe_set_spec", "state_fingerprint", "knows_proposals")  # older versions did not write them
ASSUMED = "assumed:"  # before the fingerprint, where some safe sets are an assumption
KNOWN = "safe_set_known"  # extra column, where the safe sets of some rows are not known
_CHUNK_ROWS = 1 << 12  # written or summed at once
HISTORY_ROWS = 3  # before a piece, as a stack of 4 frames needs


@dataclass(frozen=True, eq=False)
class OfflineDataset:
    """A timeline and where it came from. Columns may be memory-mapped and are read-only."""

    timeline: Timeline
    name: str
    format: str
    env_id: str | None = None
    actions: ActionRange | None = None
    rules_fingerprint: str | None = None
    """Fingerprint of the rules that made the `safe_set` column, None where unknown."""
    safe_set_spec: Spec | None = None
    """What `rlpd_gx.decode` needs to read the `safe_set` column."""
    state_fingerprint: str | None = None
    """Fingerprint of the function from stored observations to the rules' state, None where they read observations."""
    knows_unsafe_events: bool = False
    knows_proposals: bool | None = None
    """Whether proposed actions were recorded; elsewhere the column repeats the executed ones."""
    findings: tuple[str, ...] = ()
    folder: Path | None = None
    """The converted columns on disk; None once rows were left out."""

    def __repr__(self) -> str:
        return (
            f"OfflineDataset({self.name}, {self.format}, env_id={self.env_id}, {self.steps} steps, "
            f"{self.episodes} episodes)"
        )

    @property
    def steps(self) -> int:
        """Rows from which a step was taken."""
        return int(np.count_nonzero(self.timeline.is_step))

    @property
    def episodes(self) -> int:
        """Pieces of consecutive steps."""
        return int(np.count_nonzero(self.timeline.episode_step == 0))

    @property
    def needs_safe_set(self) -> Array:
        """[n] bool: rows that are s or s' of a step; others only fill frame stacks."""
        needed: Array = self.timeline.is_step.copy()
        needed[1:] |= self.timeline.is_step[:-1]
        return needed

    @property
    def has_safe_set(self) -> Array:
        """[n] bool: rows whose safe set is known."""
        line = self.timeline
        if not line.safe_set.shape[1]:
            return np.zeros(len(line), bool)
        return np.asarray(line.extras.get(KNOWN, np.ones(len(line), bool)))

    def where(self, condition: str) -> OfflineDataset:
        """Only the steps where a condition on an extra column holds: `"behaviour_iteration <= 20"`."""
        match = re.fullmatch(r"\s*(\S+?)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*", condition)
        if not match:
            raise GxError(f"cannot read the condition {condition!r}; write it as: name <= number")
        name, comparison, text = match.groups()
        columns = {**self.timeline.extras, "reward": self.timeline.reward}
        if name not in columns:
            raise GxError(
                f"{self.name}: no column {name!r} to select by; there are: {', '.join(sorted(columns))}"
            )
        try:
            value = {"true": 1.0, "false": 0.0}.get(text.lower()) if text.isalpha() else float(text)
        except ValueError:
            value = None
        if value is None:
            raise GxError(f"cannot read {text!r} in the condition {condition!r} as a number, true or false")
        return self.keep(np.asarray(_COMPARISONS[comparison](columns[name], value)))

    def keep(self, wanted: Array) -> OfflineDataset:
        """Only the steps where `wanted` [n] holds, in pieces that still end with an observation.

        A piece that begins inside an episode keeps a few rows before it, which are no steps, so that its frame stacks
        and previous action do not change. `extras["step_in_episode"]` is its position in the episode.
        """
        line = self.timeline
        kept = wanted & line.is_step
        if not kept.any():
            raise GxError(f"{self.name}: no step is left; choose a wider condition")
        border = np.diff(kept.astype(np.int8), prepend=0, append=0)
        first, final = np.flatnonzero(border == 1), np.flatnonzero(border == -1)
        start = first - np.minimum(line.episode_step[first], HISTORY_ROWS)
        length = final - start + 1  # the row after the last step holds its next observation
        episode_step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        index = np.repeat(start, length) + episode_step
        columns = {name: column[index] for name, column in line.columns().items()}
        columns["episode_step"] = episode_step.astype(np.int32)
        columns["is_step"] = (index >= np.repeat(first, length)) & (index < np.repeat(final, length))
        columns.setdefault("extras/step_in_episode", line.episode_step[index])
        ends = np.cumsum(length) - 1
        columns["truncated"][ends - 1] |= line.is_step[final]  # the episode continues in the file
        for name in ("reward", "terminated", "truncated", "margin", "unsafe_event"):
            columns[name][~columns["is_step"]] = 0
        return replace(self, timeline=Timeline.from_columns(columns), folder=None)

    def check_environment(
        self, env_id: str | None, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> None:
        """Raise unless this data can have come from that environment."""
        if env_id and self.env_id and env_id != self.env_id:
            raise GxError(
                f"{self.name}: 'env_id' is {self.env_id}, not {env_id}; give the data of that environment"
            )
        parts, theirs = trees.named_leaves(self.timeline.observation), trees.named_leaves(observation_space)
        if parts.keys() != theirs.keys():
            raise GxError(
                f"{self.name}: 'observations' has parts {sorted(parts)}, the environment {sorted(theirs)}"
            )
        for name, part in parts.items():
            if part.shape[1:] != theirs[name].shape:
                raise GxError(
                    f"{self.name}: 'observations' {name} has shape {part.shape[1:]} in every row, "
                    f"the environment {env_id or ''} gives {theirs[name].shape}; "
                    "give the data of that environment"
                )
        shape = self.timeline.executed_action.shape[1:]
        if shape != (action_space.shape or ()):
            raise GxError(
                f"{self.name}: 'actions' has shape {shape} in every row, the environment {env_id or ''} "
                f"takes {action_space.shape or ()}; give the data of that environment"
            )

    def with_actions(self, numbered: Callable[[Array], Array]) -> OfflineDataset:
        """With the actions as the Learner numbers them (`ActionView.chosen`)."""
        columns = self.timeline.columns()
        actions = {name: numbered(columns[name]) for name in ("proposed_action", "executed_action")}
        if all(actions[name] is columns[name] for name in actions):
            return self
        return replace(self, timeline=Timeline.from_columns(columns | actions), folder=None)

    def in_layout(self, layout: Layout) -> OfflineDataset:
        """With the dtypes of another timeline (a ring's), so that both can be sampled together."""
        columns, wanted = self.timeline.columns(), layout.columns()
        for name in wanted.keys() | {name for name in columns if name.startswith("observation")}:
            here, there = columns.get(name), wanted.get(name)
            if here is None or there is None or here.shape[1:] != there.shape:
                found = "absent" if here is None else here.shape[1:]
                needed = "absent" if there is None else there.shape
                raise GxError(
                    f"{self.name}: {name!r} is {found} in every row, not {needed}; "
                    "give the data of that environment"
                )
            columns[name] = cast(self.name, name, here, there.base)
        # Safe sets computed from rounded states must not be cached as those of the file.
        return replace(self, timeline=Timeline.from_columns(columns), folder=None)

    def digest(self) -> str:
        """SHA-256 over every number of every column, their types, and what the codes of safe sets mean."""
        columns = self.timeline.columns()
        kinds = {name: (column.dtype.str, column.shape) for name, column in columns.items()}
        about = {"columns": kinds, "spec": self.safe_set_spec, "rules": self.rules_fingerprint}
        total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for _, column in sorted(columns.items()):
            for start in range(0, len(column) if column.size else 0, _CHUNK_ROWS):
                total.update(np.ascontiguousarray(column[start : start + _CHUNK_ROWS]).data.cast("B"))
        return total.hexdigest()

    def save(self, folder: Path) -> Path:
        """Write the columns into a new folder that `load` opens at once."""
        if folder.exists():
            raise GxError(f"{folder}: exists already; name a new folder")
        with cache.new_folder(folder) as writer:
            columns = self.timeline.columns()
            for start in range(0, len(self.timeline), _CHUNK_ROWS):
                writer.append(trees.index(columns, np.s_[start : start + _CHUNK_ROWS]), self.name)
            facts = {name: getattr(self, name) for name in FACTS + LATER_FACTS}
            actions = self.actions.as_json() if self.actions else None
            writer.finish({**facts, "actions": actions, "findings": list(self.findings)})
        return folder
