"""What judging a batch of proposals yields, before fallbacks are applied."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rlpd_gx.guardian.reading import States
from rlpd_gx.rules import Rule
from rlpd_gx.safe_sets import SafeSet
from rlpd_gx.types import Action, Status

STATUSES = tuple(Status)
ALLOWED, PROJECTED, FALLBACK, INEVITABLE = range(4)
ACTION_SPACE = "action space"  # binds like a rule where a proposal is outside it


@dataclass
class Judgement:
    """Arrays over the batch; rows with an entry in `failures` have no action yet."""

    action: np.ndarray  # [B, ...] in the space's dtype
    status: np.ndarray  # [B] index into STATUSES
    distance: np.ndarray  # [B]
    margins: np.ndarray  # [R, B] of each rule at the proposed action
    binding: np.ndarray  # [R + 1, B] bool; the last row is the action space itself
    exact: np.ndarray  # [B]
    safe_set: SafeSet | None
    failures: dict[int, str] = field(default_factory=dict)
    # (row, action) -> [R], for checking fallbacks
    margin_at: Callable[[int, Action], np.ndarray] | None = None
    executed_margins: np.ndarray | None = None  # [R, B] of each rule at `action`; `margins` if not given

    def __post_init__(self) -> None:
        if self.executed_margins is None:
            self.executed_margins = self.margins.copy()


def least(margins: np.ndarray) -> np.ndarray:
    """The least of the margins [R, B] that are known -> [B]; NaN where none is."""
    known = ~np.isnan(margins)
    return np.where(known.any(axis=0), np.where(known, margins, np.inf).min(axis=0), np.nan)


class Judge(Protocol):
    """Finds the nearest allowed action for one kind of action space."""

    rules: Sequence[Rule]

    def distance(self, proposed: Action, action: Action) -> float:
        """From a proposal to another action, in the units of corrections; both are actions of the space."""
        ...

    def judge(
        self, states: States, proposed: np.ndarray, preference: np.ndarray | None, complete: bool = False
    ) -> Judgement:
        """Judge proposals [B, ...], already checked to be of the space's shape.

        `complete`: the safe set is wanted, not the action: test every action of a finite space, even if the
        proposal does not need it.
        """
        ...

    def margins_at(self, states: States, action: Action) -> np.ndarray:
        """Margins [R] at one action in one state, without looking for another; NaN for rules that fail."""
        ...

    def well_formed(self, proposed: Action) -> tuple[np.ndarray, dict[int, str]]:
        """Proposals as an array [B, ...] the judge can work with, and why some cannot be used at all."""
        ...
