"""What a page of results is made of: plain records that experiments fill and pages draw."""

from dataclasses import dataclass, field
from enum import StrEnum

from rlpd_gx.report.charts import Bars, Series


class Word(StrEnum):
    """What the runs say about a claim."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    UNDECIDED = "undecided"
    IMPOSSIBLE = "impossible as stated"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, of the paper or our own, and what our runs say."""

    word: Word
    claim: str
    reason: str


@dataclass(frozen=True)
class Table:
    """Heads and rows of text; the first column names the rows."""

    caption: str
    heads: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """Curves over a common x axis, or groups of bars."""

    title: str
    caption: str
    curves: list[Series] = field(default_factory=list)
    bars: Bars | None = None
    x_label: str = "environment steps"
    percent: bool = False


@dataclass(frozen=True)
class Chapter:
    """One table or figure of the paper beside our runs."""

    name: str
    title: str
    about: str
    """What the paper shows there, and how ours differs."""
    verdicts: list[ClaimVerdict]
    tables: list[Table]
    figures: list[Figure] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Runs, seeds, violations, machine, versions, dates, time."""
    commands: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
