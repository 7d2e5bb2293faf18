"""What every kind of safe set can do."""

from abc import ABC, abstractmethod
from types import EllipsisType
from typing import ClassVar, NamedTuple, Self

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets.backend import Array
from rlpd_gx.trees import Json

_Part = int | slice | EllipsisType | np.ndarray | list[int] | None
Index = _Part | tuple[_Part, ...]
Spec = Json  # JSON-able: the kind of a set and its sizes, everything that decoding needs beside the code


class Nearest(NamedTuple):
    """`point` [..., d]: the nearest allowed action; `found` [...]; `empty` [...]: proven to hold none."""

    point: Array
    found: Array
    empty: Array


class SafeSet(ABC):
    """A set of allowed actions, or a batch of them: parameters and actions broadcast over leading axes.

    Actions are numpy arrays or torch tensors; what comes back is of the same kind and dtype.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            _KINDS[cls.kind] = cls

    @abstractmethod
    def margin(self, a: Array) -> Array:
        """Signed distance to the boundary in the set's own units [...]: >= 0 allowed, < 0 forbidden.

        The value is rounded; its sign is that of exact arithmetic.
        """

    @abstractmethod
    def contains(self, a: Array) -> Array:
        """Whether each action is allowed [...] bool, up to rounding (see `TOLERANCE`)."""

    @abstractmethod
    def nearest(self, a: Array) -> Nearest:
        """The nearest allowed action, and whether there is one."""

    def project(self, a: Array) -> Array:
        """The nearest allowed action; allowed ones come back as they are, NaN (or -1) where there is none."""
        return self.nearest(a).point

    @abstractmethod
    def everything(self) -> "SafeSet":
        """A set in the same form, with a code of the same size, that excludes no action of the space."""

    @abstractmethod
    def only(self, action: Array) -> "SafeSet":
        """A set in the same form that holds this one action.

        Where no action is allowed, or the rules could not be asked, a backup counts only the executed one.
        """

    def knowing(self, action: Array) -> "SafeSet":
        """The same set, which may use that this action is one of its own."""
        return self

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """Kind and sizes as a JSON-able dictionary: with it, `decode` can read what `encode` wrote."""

    @abstractmethod
    def encode(self) -> Array:
        """The set as one fixed-size row [..., width], to be stored with a transition."""

    def decode(self, code: Array) -> "SafeSet":
        """The set that `encode` wrote into `code`, for a set of this kind and size."""
        return decode(code, self.spec)

    @classmethod
    @abstractmethod
    def code_width(cls, spec: Spec) -> int:
        """The last axis of the code of a set with this spec."""

    @classmethod
    @abstractmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        """The set of this kind that `encode` wrote into code [..., width]."""

    @abstractmethod
    def __getitem__(self, index: Index) -> Self:
        """Some members of a batch of sets."""


_KINDS: dict[str, type[SafeSet]] = {}


def decode(code: Array, spec: Spec) -> SafeSet:
    """The safe set, or batch of them, that `encode` wrote: code [..., width] with the set's `spec`."""
    width = code_width(spec)
    if code.shape[-1] != width:
        raise GxError(
            f"a {spec['kind']} set is encoded in {width} numbers, not {code.shape[-1]}; check its spec"
        )
    return _KINDS[spec["kind"]].from_code(code, spec)


def code_width(spec: Spec) -> int:
    """How many numbers (bytes for masks) the code of a set with this spec has."""
    if spec.get("kind") not in _KINDS:
        raise GxError(f"unknown kind of safe set {spec.get('kind')!r}; known are {', '.join(sorted(_KINDS))}")
    return _KINDS[spec["kind"]].code_width(spec)
