"""The forms a rule can be written in: what its function returns, and how that is checked.

There are three families. An `ActionForm` answers about one action, a `TableForm` about all actions of a finite
space, a `SetForm` describes a convex set of a Box space. A new form is a subclass of one of them, also outside this
package; `maker(MyForm())` turns it into a function like `gx.bounds_rule`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets import Box, ConvexSet, Ellipsoid, Polytope, PositiveSum, WeightedL1
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.trees import Tree

Columns = tuple[np.ndarray, ...]  # the answers for a batch of states, [B, ...] each


class Form(ABC):
    """How to read what a rule's function returns.

    A subclass defines `name`, the methods of its family, and a docstring for the users of its maker.
    """

    name: ClassVar[str]
    graded: ClassVar[bool] = True  # whether the margin of an allowed action is its distance to the boundary
    shiftable: ClassVar[bool] = True  # whether there is a threshold to shift

    @property
    def identity(self) -> object:
        """What a fingerprint contains beside the name: settings, and the code of a form from outside."""
        outside = type(self).__module__ != __name__
        return (type(self), vars(self)) if outside else None


class ActionForm(Form):
    """fn(state, action) -> an answer about that action."""

    @abstractmethod
    def margins(self, answer: Tree) -> np.ndarray:
        """Checked margins [B] from the answers for B states."""


class Predicate(ActionForm):
    """A rule from a predicate: fn(state, action) -> bool."""

    name = "predicate"
    graded = shiftable = False

    def margins(self, answer: Tree) -> np.ndarray:
        return _one_each(booleans(answer))


class Margin(ActionForm):
    """A rule from a margin: fn(state, action) -> float; allowed when >= 0."""

    name = "margin"

    def margins(self, answer: Tree) -> np.ndarray:
        return _one_each(_numbers(answer))


class SearchedMargin(Margin):
    """A margin that is capped where a search stops: all allowed actions have the same one."""

    graded = False


class TableForm(Form):
    """fn(state) -> an answer about all actions of a finite space at once."""

    @abstractmethod
    def table(self, answer: Tree) -> tuple[np.ndarray, bool]:
        """Checked margins [B, ...], and whether they are separate for each component of the action."""


class MaskForm(TableForm):
    """A rule from a mask: fn(state) -> bool[n_actions]."""

    name = "mask"
    graded = shiftable = False

    def table(self, answer: Tree) -> tuple[np.ndarray, bool]:
        by_component = isinstance(answer, tuple)
        if by_component:
            answer = np.concatenate([plain_array(a) for a in answer], axis=-1)
        return booleans(answer), by_component


class Margins(TableForm):
    """A rule from margins: fn(state) -> float[n_actions]; allowed when >= 0."""

    name = "margins"

    def table(self, answer: Tree) -> tuple[np.ndarray, bool]:
        return _numbers(answer), False


class CappedMargins(Margins):
    """Margins that are capped where a prediction ends: all allowed actions may have the same one."""

    graded = False


class SetForm(Form):
    """fn(state) -> the parameters of a convex set of actions [d]."""

    kind: ClassVar[type[ConvexSet]]
    """The sets it describes. A function may return other parameters than theirs: override what follows from `kind`."""
    finite: ClassVar[tuple[str, ...]] = ()
    """Parameters that must not be infinite."""

    @property
    def parameters(self) -> Mapping[str, tuple[str, ...]]:
        """Name -> axes; "d" is the number of action components, "m" any number of rows."""
        return self.kind.parameters

    def convex_set(self, *parameters: np.ndarray) -> ConvexSet:
        """The batch of sets with these parameters [B, ...] each."""
        return self.kind(*parameters)

    def unbounded(self, d: int) -> tuple[np.ndarray, ...]:
        """Parameters of a set that excludes nothing; with one row where they have rows."""
        return self.kind.unbounded_parameters(d)

    def check(self, *parameters: np.ndarray) -> None:
        """Raise a `GxError` where parameters of the right shape describe no set."""

    def columns(self, answer: Tree, d: int) -> Columns:
        """Checked parameters of B states, [B, ...] each."""
        count = len(self.parameters)
        if not (isinstance(answer, (tuple, list)) and len(answer) == count):
            names = ", ".join(self.parameters)
            number = "a pair" if count == 2 else f"{count} values"
            raise GxError(f"must return {number}, ({names}), not {type(answer).__name__}")
        values, sizes = [], {"d": d}
        for (name, axes), given in zip(self.parameters.items(), answer, strict=True):
            value = plain_array(given).astype(np.float64, copy=False)
            if not np.isfinite(value).all():
                if np.isnan(value).any():
                    raise GxError("returned NaN; every bound, weight and threshold must be a number")
                if name in self.finite:
                    raise GxError(f"returned an infinite {name}; leave a component out with a zero")
            if axes[:1] == ("m",) and value.shape[1:] == (0,):  # an empty list of rows
                value = value.reshape(len(value), 0, *(sizes[axis] for axis in axes[1:]))
            if axes[:1] == ("m",) and value.ndim > 1:
                sizes.setdefault("m", value.shape[1])
            expected = tuple(sizes.get(axis, 0) for axis in axes)
            if value.shape[1:] != expected:
                raise GxError(
                    f"returned {name} of shape {value.shape[1:]}, expected {expected} for each state"
                )
            values.append(value)
        self.check(*values)
        return tuple(values)


class Bounds(SetForm):
    """A rule from bounds: fn(state) -> (low, high), each [d]."""

    name, kind = "bounds", Box


class Halfspaces(SetForm):
    """A rule from half-spaces: fn(state) -> (A [m, d], b [m]); A a <= b."""

    name, kind = "halfspace", Polytope
    finite = ("A",)

    def __init__(self, max_rows: int | None = None) -> None:
        self.max_rows = max_rows  # the most there can be, so that codes have one size

    @property
    def identity(self) -> object:
        return super().identity or self.max_rows

    def check(self, A: np.ndarray, b: np.ndarray) -> None:  # type: ignore[override]
        if self.max_rows is not None and A.shape[1] > self.max_rows:
            raise GxError(f"returned {A.shape[1]} half-spaces, but declares max_rows={self.max_rows}")

    def convex_set(self, A: np.ndarray, b: np.ndarray) -> ConvexSet:  # type: ignore[override]
        made = Polytope(A, b)
        return made if self.max_rows is None else made.padded(self.max_rows)


class L1(SetForm):
    """A rule from a weighted L1 norm: fn(state) -> (w [d], c); sum |w_i a_i| <= c."""

    name, kind = "l1", WeightedL1
    finite = ("w",)


class PositiveParts(SetForm):
    """A rule from positive parts: fn(state) -> (w [d], c); sum max(w_i a_i, 0) <= c."""

    name, kind = "positive_sum", PositiveSum
    finite = ("w",)


class EllipsoidForm(SetForm):
    """A rule from an ellipsoid: fn(state) -> (w [d] >= 0, c); sum w_i a_i^2 <= c."""

    name, kind = "ellipsoid", Ellipsoid
    finite = ("w",)

    def check(self, w: np.ndarray, c: np.ndarray) -> None:  # type: ignore[override]
        if (w < 0).any():
            raise GxError("returned a negative weight; an ellipsoid needs w >= 0")


# --- checks that forms share ---------------------------------------------------------------------------------


def plain_array(answer: Tree) -> np.ndarray:
    """A copy of numbers or booleans: a rule may use its buffer again for the next state."""
    if answer is None:
        raise GxError("returned None; check that every path of it returns an answer")
    try:
        array = np.array(to_numpy(answer))
    except ValueError:  # numpy names shapes that nobody wrote
        raise GxError(
            "returned a list of parts of different sizes; return parts, such as one mask for each component, as a tuple"
        ) from None
    if array.dtype.kind not in "biuf" or isinstance(answer, np.ma.MaskedArray):
        raise GxError(f"returned {array.dtype} where plain numbers or booleans are expected")
    return array


def booleans(answer: Tree) -> np.ndarray:
    """True and False as the margins +1 and -1."""
    answer = plain_array(answer)
    if answer.dtype != bool and not (
        np.issubdtype(answer.dtype, np.integer) and np.isin(answer, (0, 1)).all()
    ):
        # NaN would count as true, and a number between 0 and 1 is ambiguous.
        raise GxError(f"returned {answer.ravel()[:3]} where True or False is expected; compare explicitly")
    return np.where(answer.astype(bool), 1.0, -1.0)


def _numbers(answer: Tree) -> np.ndarray:
    values = plain_array(answer).astype(np.float64)
    if np.isnan(values).any():
        raise GxError("returned NaN; a margin must be a number")
    return values


def _one_each(values: np.ndarray) -> np.ndarray:
    if values.ndim != 1:
        raise GxError(f"returned an array of shape {values.shape[1:]} where one answer is expected")
    return values
