"""The one layout of stored experience, shared by the online ring and offline data.

Rows are in time order, the rows of an episode contiguous. Row j holds one observation and the safe set
there and, if a step was taken from it, that step. An episode of T steps takes T + 1 rows: the last one holds
the observation after the last step and has `is_step` False. So s' is always row j + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.trees import DType, Json
from rlpd_gx.types import Array, Observation


@dataclass(frozen=True, eq=False)
class Timeline:
    """n rows of experience as plain arrays, possibly memory-mapped. Step fields of other rows are unused."""

    observation: Observation
    """[n, ...], or a dict of such arrays. One frame, never a stack."""
    is_step: Array
    """[n] bool. False in the last row of each episode."""
    episode_step: Array
    """[n] int32. Number of rows of the same episode before this one."""
    proposed_action: Array
    """[n, ...] what the policy proposed."""
    executed_action: Array
    """[n, ...] what was executed; same dtype and shape as proposed."""
    reward: Array
    """[n] float32."""
    terminated: Array
    """[n] bool."""
    truncated: Array
    """[n] bool."""
    safe_set: Array
    """[n, code_width] the encoded safe set at this row's observation."""
    margin: Array
    """[n] float32. Smallest margin of the executed action; below zero means forbidden, NaN means unknown."""
    unsafe_event: Array
    """[n] bool. Something the rules exist to prevent was seen after this step."""
    extras: Mapping[str, Array] = field(default_factory=dict)
    """Further columns [n, ...] kept with the data; never sampled."""

    def __post_init__(self) -> None:
        rows = len(self.is_step)
        for name, column in self.columns().items():
            if column.ndim == 0 or len(column) != rows:
                raise GxError(f"column {name} has shape {column.shape}, but is_step has {rows} rows")
        if self.safe_set.ndim != 2:
            raise GxError(f"column safe_set must be [n, code_width], got shape {self.safe_set.shape}")
        for name, expected in self.layout.columns().items():
            if (found := _row_dtype(self.columns()[name])) != expected:
                raise GxError(f"column {name} has rows of {found}, expected {expected}")

    def __len__(self) -> int:
        return len(self.is_step)

    def __repr__(self) -> str:
        return f"Timeline({len(self)} rows, {self.layout})"

    @property
    def layout(self) -> Layout:
        """Type and shape of a row."""
        return Layout(
            observation=trees.map_leaves(_row_dtype, self.observation),
            action=_row_dtype(self.executed_action),
            safe_set=_row_dtype(self.safe_set),
        )

    def columns(self) -> dict[str, Array]:
        """All arrays by flat name; parts of dicts are named like `observation/pixels` and `extras/x`."""
        return trees.named_leaves({entry.name: getattr(self, entry.name) for entry in fields(self)})

    @classmethod
    def from_columns(cls, flat: Mapping[str, Array]) -> Timeline:
        """The inverse of `columns`."""
        nested: Json = {}
        for name, column in flat.items():
            parent, _, key = name.partition("/")
            if key:
                nested.setdefault(parent, {})[key] = column
            else:
                nested[parent] = column
        missing = [entry.name for entry in fields(cls) if entry.name not in nested and entry.name != "extras"]
        unknown = sorted(nested.keys() - {entry.name for entry in fields(cls)})
        if missing or unknown:
            raise GxError(f"not the columns of a timeline: missing {missing}, unknown {unknown}")
        return cls(**nested)

    def check_episodes(self) -> None:
        """Raise unless the rows are whole episodes in time order (for finished data, not for a ring).

        Before its first step an episode may hold rows that are no steps: frames that only fill stacks.
        """
        if not len(self):
            return
        expected = np.zeros(len(self), self.episode_step.dtype)
        np.multiply(self.episode_step[:-1] + 1, self.is_step[:-1], out=expected[1:])
        steps_before = np.cumsum(self.is_step) - self.is_step
        start = np.maximum(np.arange(len(self)) - self.episode_step, 0)
        no_step_yet = (steps_before == steps_before[start])[1:]
        counts_on = self.episode_step[1:] == self.episode_step[:-1] + 1
        expected[1:] = np.where(no_step_yet & counts_on, self.episode_step[1:], expected[1:])
        if (wrong := np.flatnonzero(self.episode_step != expected)).size:
            j = wrong[0]
            raise GxError(f"row {j}: episode_step is {self.episode_step[j]}, expected {expected[j]}")
        if self.is_step[-1]:
            raise GxError(f"row {len(self) - 1}: a step without its next observation ends the data")
        ended = (self.terminated | self.truncated) & self.is_step
        if (wrong := np.flatnonzero(ended[:-1] & self.is_step[1:])).size:
            raise GxError(f"row {wrong[0] + 1}: a step follows the end of its episode")


@dataclass(frozen=True)
class Layout:
    """Type and shape of one row of each column that differs between environments.

    Each is a numpy dtype with a shape: `np.dtype((np.uint8, (84, 84)))`.
    """

    observation: DType | Mapping[str, DType]
    action: DType
    safe_set: DType

    def columns(self) -> dict[str, DType]:
        """Row dtype of every column, by flat name (see `Timeline.columns`)."""
        observation = trees.named_leaves(self.observation, "observation")
        single, whole, flag = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.bool_)
        return observation | {
            "is_step": flag,
            "episode_step": whole,
            "proposed_action": self.action,
            "executed_action": self.action,
            "reward": single,
            "terminated": flag,
            "truncated": flag,
            "safe_set": self.safe_set,
            "margin": single,
            "unsafe_event": flag,
        }


def nested_observation(flat: Mapping[str, Array]) -> Observation:
    """One array, or a dict of them, from arrays named `observation` or `observation/key`."""
    if "observation" in flat:
        return flat["observation"]
    return {name.removeprefix("observation/"): part for name, part in flat.items()}


def _row_dtype(column: Array) -> DType:
    return np.dtype((column.dtype, column.shape[1:]))
