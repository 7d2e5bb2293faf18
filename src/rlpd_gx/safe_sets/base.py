"""What every kind of safe set can do."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

from rlpd_gx.safe_sets.backend import Array

Spec = dict[str, Any]  # JSON-able: the kind of a set and its sizes, all that decoding needs beside the code


class Nearest(NamedTuple):
    """`point` [..., d]: the nearest allowed action; `found` [...]; `empty` [...]: proven to hold no action."""

    point: Array
    found: Array
    empty: Array


class SafeSet(ABC):
    """A set of allowed actions, or a batch of them: parameters and actions broadcast over leading axes.

    Actions are numpy arrays or torch tensors; what comes back is of the same kind and dtype.
    """

    kind: ClassVar[str]

    @abstractmethod
    def margin(self, a: Array) -> Array:
        """Signed distance to the boundary in the set's own units [...]: >= 0 allowed, < 0 forbidden."""

    @abstractmethod
    def contains(self, a: Array) -> Array:
        """Whether each action is allowed [...] bool, up to rounding (see `TOLERANCE`)."""

    @abstractmethod
    def nearest(self, a: Array) -> Nearest:
        """The nearest allowed action, and whether there is one."""

    def project(self, a: Array) -> Array:
        """The nearest allowed action. Allowed actions are returned as they are; NaN (or -1) where none exists."""
        return self.nearest(a).point

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """Kind and sizes as a JSON-able dictionary: with it, `decode` can read what `encode` wrote."""

    @abstractmethod
    def encode(self) -> Array:
        """The set as one fixed-size row [..., width], to be stored with a transition."""

    def decode(self, code: Array) -> "SafeSet":
        """The set that `encode` wrote into `code`, for a set of this kind and size."""
        from rlpd_gx.safe_sets import decode

        return decode(code, self.spec)

    @abstractmethod
    def __getitem__(self, index: Any) -> Self:
        """Some members of a batch of sets."""
