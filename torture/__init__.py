"""Attacks on the promises of the README, counted from outside the code under test.

Each module beside this one attacks one promise and has `run(seconds, seed) -> list[Row]`. `python -m torture` runs
them all and prints one table; `make test` runs a short slice.
"""

from dataclasses import dataclass, field


@dataclass
class Row:
    """One promise under attack."""

    promise: str
    tried: int = 0
    held: int = 0
    broken: list[str] = field(default_factory=list)
    """One line for each break: enough to repeat it."""
    note: str = ""

    def record(self, holds: bool, what: str = "") -> None:
        """Count one attempt."""
        self.tried += 1
        self.held += holds
        if not holds:
            self.broken.append(what)
