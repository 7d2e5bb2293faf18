"""What every reader returns: episodes, one at a time, and a few facts about their source."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets import SafeSet, Spec
from rlpd_gx.trees import Json
from rlpd_gx.types import Array

Observations = Array | dict[str, Array]
_OF_STATES = ("safe_sets", "safe_sets_known")
_ROUNDING = 1e-6  # of a bound
_OPTIONAL = ("proposed_actions", "margins", "unsafe_events", *_OF_STATES)


@dataclass
class Episode:
    """T steps and the T + 1 observations around them.

    `lead_in` counts frames before the first step that exist only so that its frame stack can be rebuilt:
    `observations` then holds `[lead_in + T + 1, ...]`. `safe_sets` is `[T + 1, width]`, `safe_sets_known`
    is `[T + 1]` where some of them are unknown; other arrays are `[T, ...]`.
    """

    observations: Observations
    actions: Array
    rewards: Array
    terminated: bool
    truncated: bool
    first_row: int = 0  # of this episode in its file, so that an error can name the row
    file: Path | None = None  # where the source has several
    lead_in: int = 0
    final_observation_known: bool = True  # False: the one before it is repeated, which only a terminal allows
    final_safe_set_known: bool = True  # False: the one before it is repeated, which only a terminal allows
    proposed_actions: Array | None = None
    margins: Array | None = None
    unsafe_events: Array | None = None
    safe_sets: Array | None = None
    safe_sets_known: Array | None = None
    extras: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.actions = _action_column(self.actions)
        if self.proposed_actions is not None:
            self.proposed_actions = _action_column(self.proposed_actions)

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)

    def without_last_step(self) -> "Episode":
        """T - 1 steps, cut: the observation before the last step becomes the final one, and is known."""
        parts: Json = {
            name: None if (column := getattr(self, name)) is None else column[:-1]
            for name in ("actions", "rewards", *_OPTIONAL)
        }
        return replace(
            self,
            observations=trees.index(self.observations, np.s_[:-1]),
            terminated=False,
            truncated=True,
            final_observation_known=True,
            final_safe_set_known=True,
            extras=trees.index(self.extras, np.s_[:-1]),
            **parts,
        )

    def split(self, after: Array) -> "Iterator[Episode]":
        """Its parts, each but the last ending in a terminal step: those where `after` [T] is true."""
        ends = [int(i) + 1 for i in np.flatnonzero(after[:-1])]
        for start, end in pairwise([0, *ends, self.steps]):
            steps, states = np.s_[start:end], np.s_[start : end + 1]
            parts: Json = {
                name: None
                if (column := getattr(self, name)) is None
                else column[states if name in _OF_STATES else steps]
                for name in ("actions", "rewards", *_OPTIONAL)
            }
            lost = bool(after[end - 1])
            yield replace(
                self,
                observations=trees.index(self.observations, states),
                terminated=self.terminated or lost if end == self.steps else True,
                truncated=self.truncated and not lost if end == self.steps else False,
                first_row=self.first_row + start,
                extras=trees.index(self.extras, steps),
                **parts,
            )


@dataclass(frozen=True)
class ActionRange:
    """The actions an environment takes: `low` and `high` per component, or ids below `count`."""

    low: Array | None = None
    high: Array | None = None
    count: int | None = None

    @classmethod
    def of_space(cls, space: gymnasium.Space) -> "ActionRange | None":
        """From a Gymnasium Box or Discrete space; None for any other."""
        if isinstance(space, gymnasium.spaces.Box):
            return cls(low=np.asarray(space.low), high=np.asarray(space.high))
        if isinstance(space, gymnasium.spaces.Discrete) and space.start == 0:
            return cls(count=int(space.n))
        return None

    def outside(self, actions: Array) -> Array:
        """[n] bool: actions [n, ...] or ids [n] that the environment does not take, beyond rounding to float32."""
        if self.count is not None:
            return (actions < 0) | (actions >= self.count)
        low, high = (np.asarray(bound, np.float64) for bound in (self.low, self.high))
        low, high = low - _ROUNDING * np.abs(low), high + _ROUNDING * np.abs(high)
        outside = (actions < low) | (actions > high)
        return np.asarray(outside.reshape(len(actions), -1).any(axis=1))

    @classmethod
    def from_json(cls, value: Json | None) -> "ActionRange | None":
        """What `as_json` wrote."""
        if value is None:
            return None
        if "count" in value:
            return cls(count=value["count"])
        return cls(low=np.asarray(value["low"]), high=np.asarray(value["high"]))

    def as_json(self) -> Json:
        """Plain numbers for a file."""
        if self.count is not None:
            return {"count": self.count}
        return {"low": np.asarray(self.low).tolist(), "high": np.asarray(self.high).tolist()}


@dataclass
class Source:
    """A file opened by its reader. `episodes` is read once; `notes` and `faults` may grow while it is."""

    episodes: Iterator[Episode]
    env_id: str | None = None
    total_steps: int | None = None
    actions: ActionRange | None = None
    time_limit_steps: int | None = None
    rules_fingerprint: str | None = None
    safe_set_spec: Spec | None = None
    notes: list[str] = field(default_factory=list)
    faults: list[GxError] = field(default_factory=list)
    """What is wrong with the data as a whole: refused, or in an audit reported."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The file's names of the components of a field, where it has any."""


def same_spec(spec: Spec | None, another: Spec) -> Spec:
    """The one spec of all rows: a column of codes has one width."""
    if spec is not None and spec != another:
        raise GxError(
            f"safe sets of different sizes cannot be stored in one column: {another} after {spec}; let the rules "
            "return as many half-spaces in every state, with an infinite bound where one is not used"
        )
    return another


def encode_sets(
    sets: Sequence[SafeSet | None], spec: Spec | None
) -> tuple[Array | None, Array | None, Spec | None]:
    """Codes [n, width], which are known [n], and their spec, which must be `spec` if given; None where none is."""
    known = np.array([safe_set is not None for safe_set in sets])
    if not known.any():
        return None, None, spec
    for safe_set in sets:
        if safe_set is not None:
            spec = same_spec(spec, safe_set.spec)
    encoded = np.stack([safe_set.encode() for safe_set in sets if safe_set is not None])
    codes = np.zeros((len(sets), encoded.shape[1]), encoded.dtype)
    codes[known] = encoded
    return codes, known, spec


def problem(file: Path | str, field_name: str, row: int | str | None, what: str, remedy: str) -> GxError:
    """One sentence: which file, field and row, what is wrong there, what to do."""
    place = f"{field_name!r}" if row is None else f"{field_name!r}, row {row}"
    return GxError(f"{file}: {place}: {what}; {remedy}")


def _action_column(actions: Array) -> Array:
    """Ids as int64 [T], numbers as [T, d]; anything else is left for the checks to refuse."""
    if actions.ndim == 0 or not actions.size:
        return actions
    if np.can_cast(actions.dtype, np.int64) and actions.dtype.kind != "b" and actions.size == len(actions):
        return actions.reshape(len(actions)).astype(np.int64)
    return actions if actions.ndim > 1 else actions[:, None]


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file, empty for a folder: formats are recognised by them, not by file names."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(count)
