"""What a measurement may ask of the policy that it measures. `loop/measure.py` answers for a run."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rlpd_gx.types import Array, Episode, Tally


class Played(Protocol):
    """Whole episodes of the policy."""

    episodes: list[Episode]
    rewards: list[Array]
    """[T] of each episode."""
    tally: Tally
    """Of all proposals in them."""


class Values(NamedTuple):
    """Values of every critic [N, B] and their targets [B] on the probe set."""

    q: Array
    target: Array


class Times(NamedTuple):
    """Steps [n] from critical states to the first unsafe event, or for how long none was seen (`event` False)."""

    steps: Array
    event: Array


class Support(NamedTuple):
    """Behaviour-clone probabilities on visited states [B] and at held-out offline actions [K]; KL to the policy."""

    of_policy: Array
    held_out: Array
    kl: float | None
    """None where the policy has no density."""


class Subject(Protocol):
    """A policy in its task. Answers are computed when first asked for; `Unavailable` says why there is none."""

    @property
    def game(self) -> str | None:
        """The Atari game, if it is one."""

    @property
    def horizon(self) -> int:
        """Steps in which first unsafe events are looked for."""

    def played(self, *, guarded: bool = True) -> Played:
        """Evaluation episodes with the guard, or the same without it."""

    def probe(self) -> Values:
        """On transitions of a fixed set that does not depend on guard or policy."""

    def values_and_returns(self) -> tuple[Array, Array]:
        """Q [B] of executed actions, and the Monte-Carlo returns [B] under the guard that followed."""

    def evaluation_curve(self) -> Array:
        """Mean return [k] of each evaluation during training."""

    def margins_on_critical_states(self, delta: float) -> Array:
        """Least margin [B] of the policy's own actions, under rules shifted inwards by delta."""

    def first_events(self, *, guarded: bool) -> Times:
        """Replays from critical states."""

    def visited_codes(self) -> Array:
        """SimHash codes of the states that training visited, in order."""

    def support(self) -> Support:
        """The policy beside a clone of the offline data."""


class Unavailable(Exception):
    """This measurement cannot be made of this subject; the text says why."""


Curve = Sequence[float] | Sequence[int]
Found = dict[str, float | str | Curve]
"""Named numbers, and curves as equally long lists."""
