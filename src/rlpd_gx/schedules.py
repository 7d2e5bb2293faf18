"""Schedules: pure functions step -> value.

DSS schedules the online ratio: the fraction of each minibatch that is online. DTS schedules the interval: how many
steps apart samples are. A step is an online environment step; after `total_steps` a schedule keeps its last value.
"""

import math
from dataclasses import dataclass

from rlpd_gx.errors import GxError


@dataclass(frozen=True)
class Constant:
    """The same online ratio at every step (0.5 is symmetric sampling)."""

    value: float

    def __post_init__(self) -> None:
        _require_fractions(value=self.value)

    def __call__(self, step: int) -> float:
        """Online ratio at this step."""
        return self.value


@dataclass(frozen=True)
class Sigmoid:
    """DSS: lambda(t) = low + (high - low) * sigmoid(k * (t - T/2)), with k = steepness / T."""

    total_steps: int
    low: float = 0.05
    high: float = 0.5
    steepness: float = 10.0

    def __post_init__(self) -> None:
        _require_fractions(low=self.low, high=self.high)
        _require_positive(total_steps=self.total_steps, steepness=self.steepness)

    def __call__(self, step: int) -> float:
        """Online ratio at this step."""
        x = self.steepness * (min(step, self.total_steps) / self.total_steps - 0.5)
        # tanh is the sigmoid without an exponential that could overflow
        return self.low + (self.high - self.low) * 0.5 * (1.0 + math.tanh(x / 2))


@dataclass(frozen=True)
class Abrupt:
    """`before` until `switch_step`, `after` from then on."""

    switch_step: int
    before: float = 0.05
    after: float = 0.5

    def __post_init__(self) -> None:
        _require_fractions(before=self.before, after=self.after)

    def __call__(self, step: int) -> float:
        """Online ratio at this step."""
        return self.before if step < self.switch_step else self.after


@dataclass(frozen=True)
class Interval:
    """DTS: Delta(t) = low + (high - low) * (t/T)^exponent, rounded to the nearest whole step (halves up)."""

    total_steps: int
    low: int = 1
    high: int = 8
    exponent: float = 1.0

    def __post_init__(self) -> None:
        _require_positive(total_steps=self.total_steps, low=self.low, high=self.high, exponent=self.exponent)

    def __call__(self, step: int) -> int:
        """Interval at this step, in whole steps."""
        progress = min(step, self.total_steps) / self.total_steps
        return math.floor(self.low + (self.high - self.low) * progress**self.exponent + 0.5)


def _require_fractions(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise GxError(f"{name} is a fraction of the minibatch and must be in [0, 1], got {value}")


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise GxError(f"{name} must be positive, got {value}")
