"""Asking rules about a batch of states; each way in which an answer can be unusable becomes a reason."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.rules import SETS, Atom, Combined, Rule
from rlpd_gx.safe_sets import ConvexSet, Polytope
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.types import Context


@dataclass(frozen=True)
class States:
    """A batch of states and contexts, as rules want to see them: one by one, or all at once.

    A batch is an array [B, ...], a dict or tuple of such arrays, or a list of B objects. A context's fields are
    batched the same way.
    """

    count: int
    batch: Any
    context: Context
    single: bool = False

    @classmethod
    def one_state(cls, state: Any, context: Context) -> "States":
        return cls(1, state, context, single=True)

    @classmethod
    def many(cls, states: Any, context: Context) -> "States":
        return cls(_length(states), states, context)

    def one(self, i: int, needs: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
        """State i and the context fields it needs."""
        if self.single:
            return read_only(self.batch), {n: read_only(getattr(self.context, n)) for n in needs}
        one = {n: read_only(pick(getattr(self.context, n), i)) for n in needs}
        return read_only(pick(self.batch, i)), one

    def all(self, needs: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
        """The whole batch and its context fields."""
        wrap = batch_of_one if self.single else (lambda v: v)
        whole = {n: read_only(wrap(getattr(self.context, n))) for n in needs}
        return read_only(wrap(self.batch)), whole

    def __getitem__(self, rows: np.ndarray) -> "States":
        if self.single:
            return self
        c = self.context
        context = Context(*(pick(v, rows) for v in (c.previous_action, c.time, c.parameters)))
        return States(len(rows), pick(self.batch, rows), context)


def as_batch(proposed: Any) -> np.ndarray:
    """One proposal as a batch of one; what is no array at all becomes one that no judge accepts."""
    try:
        return np.asarray(to_numpy(proposed))[None]
    except ValueError:
        return np.array([str(proposed)])


def read_only(value: Any) -> Any:
    """The same arrays, write-protected: what one rule does to them must not change what the next one sees."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, Mapping):
        return {k: read_only(v) for k, v in value.items()}
    return tuple(read_only(v) for v in value) if type(value) is tuple else value


def _length(states: Any) -> int:
    if isinstance(states, Mapping):
        return _length(next(iter(states.values())))
    return _length(states[0]) if isinstance(states, tuple) else len(states)


def pick(batch: Any, index: Any) -> Any:
    """Member or members of a batch of anything; what is not batched stays as it is."""
    if batch is None or isinstance(batch, (int, float)):
        return batch
    if isinstance(batch, Mapping):
        return {k: pick(v, index) for k, v in batch.items()}
    if isinstance(batch, tuple):  # a composite, like a dict; a list is a batch of objects
        return tuple(pick(v, index) for v in batch)
    if isinstance(batch, list) and isinstance(index, np.ndarray):
        return [batch[i] for i in index]
    return batch[index]


def batch_of_one(state: Any) -> Any:
    """One state as a batch of one."""
    if isinstance(state, Mapping):
        return {k: batch_of_one(v) for k, v in state.items()}
    if isinstance(state, tuple):
        return tuple(batch_of_one(v) for v in state)
    if isinstance(state, (np.ndarray, np.generic, int, float, bool)):
        return np.asarray(state)[None]
    return state[None] if hasattr(state, "detach") else [state]


Row = tuple[np.ndarray, ...]  # one state's answer
Columns = tuple[np.ndarray, ...]  # the answers of a batch, [B, ...] each


@dataclass
class Reader:
    """Calls rules and checks what they return. `failures[row]` says why a state cannot be judged."""

    states: States
    failures: dict[int, str] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)  # shared by a Guardian's readers: say it once
    silent: dict[Atom, set[int]] = field(default_factory=dict)  # which rules failed where

    def fail(self, row: int, atom: Atom, what: str) -> None:
        self.failures.setdefault(row, f"rule {atom.name!r} {what}")
        self.silent.setdefault(atom, set()).add(row)

    def call(self, atom: Atom, check: Callable[[Any], Columns], blank: Row, *actions: np.ndarray) -> Columns:
        """Checked answers for all states, as columns [B, ...]; `blank` stands where the rule failed.

        A batched rule that fails as a whole is asked again state by state, so that one bad state does not
        cost the others.
        """
        count = self.states.count
        actions = tuple(read_only(np.array(a)) for a in actions)
        if atom.batched:
            try:
                state, context = self.states.all(atom.needs)
                columns = check(atom.fn(state, *actions, **context))
                if any(len(c) != count for c in columns):
                    raise GxError(f"returned {len(columns[0])} rows for {count} states")
                return columns
            except Exception as error:
                if count == 1:
                    self.fail(0, atom, _words(error))
                    return tuple(b[None] for b in blank)
        elif count > 1 and atom.name not in self.warned:
            self.warned.add(atom.name)
            warnings.warn(
                f"rule {atom.name!r} is not batched: it is called once for each of {count} states",
                stacklevel=2,
            )
        return _stacked([self._call_one(atom, check, blank, i, actions) for i in range(count)])

    def _call_one(
        self, atom: Atom, check: Callable[[Any], Columns], blank: Row, i: int, actions: tuple[np.ndarray, ...]
    ) -> Row:
        try:
            if atom.batched:
                state, context = self.states[np.array([i])].all(atom.needs)
                columns = check(atom.fn(state, *(a[i : i + 1] for a in actions), **context))
                if any(len(c) != 1 for c in columns):
                    raise GxError(f"returned {len(columns[0])} rows for one state")
            else:
                state, context = self.states.one(i, atom.needs)
                columns = check(_add_axis(atom.fn(state, *(a[i] for a in actions), **context)))
            return tuple(c[0] for c in columns)
        except Exception as error:  # whatever a rule does wrong, no action may pass because of it
            self.fail(i, atom, _words(error))
            return blank

    def convex_set(self, atom: Atom, dimension: int) -> ConvexSet:
        """The batch of sets a structured rule describes; sets of failed states are unbounded."""
        blank = _unbounded(atom.form, dimension)
        pair = self.call(atom, lambda answer: _parameters(atom, answer, dimension), blank)
        made = SETS[atom.form](*pair)
        if isinstance(made, Polytope) and atom.max_rows is not None:
            made = made.padded(atom.max_rows)
        return made.shifted(atom.shift) if atom.shift else made

    def margin(self, atom: Atom, actions: np.ndarray) -> np.ndarray:
        """Margins of a predicate or margin rule at one action per state [B]; NaN where the rule failed."""
        return self.call(atom, _one_each(atom), (np.array(np.nan),), actions)[0] - atom.shift

    def margin_in(self, row: int, atom: Atom, action: np.ndarray) -> float:
        """The margin of a predicate or margin rule at one action in one state; NaN where the rule failed."""
        every = read_only(np.broadcast_to(action, (self.states.count, *np.shape(action))))
        return (
            float(self._call_one(atom, _one_each(atom), (np.array(np.nan),), row, (every,))[0]) - atom.shift
        )

    def margins(self, atom: Atom, n: int) -> np.ndarray:
        """Margins of a rule that answers for all n actions at once [B, n]; NaN where it failed."""

        def check(answer: Any) -> Columns:
            values = _numbers(answer)
            if values.shape[1:] != (n,):
                raise GxError(f"returned margins of shape {values.shape[1:]}, expected ({n},) for each state")
            return (values,)

        return self.call(atom, check, (np.full(n, np.nan),))[0] - atom.shift

    def mask(self, atom: Atom, shape: Callable[[np.ndarray, bool], np.ndarray], n: int) -> np.ndarray:
        """Margins +1/-1 of a mask rule [B, n]; NaN where it failed.

        `shape(masks, by_component)` brings masks [B, ...] to [B, n].
        """

        def check(answer: Any) -> Columns:
            by_component = isinstance(answer, tuple)
            return (shape(_booleans(_joined(answer) if by_component else answer), by_component),)

        return self.call(atom, check, (np.full(n, np.nan),))[0]


def tree_margin(rule: Rule, of_atom: Callable[[Atom], np.ndarray]) -> np.ndarray:
    """The margin of a rule made of atoms: the least for `&`, the largest for `|`.

    NaN is "unknown": an `&` with a broken part is broken whatever the unknown one says, an `|` with a part that
    holds, holds.
    """
    if isinstance(rule, Combined):
        parts = np.stack([tree_margin(p, of_atom) for p in rule.parts])
        unknown = np.isnan(parts).any(axis=0)
        if rule.how == "all":
            least = np.where(np.isnan(parts), np.inf, parts).min(axis=0)
            return np.where(unknown & ~(least < 0), np.nan, least)
        largest = np.where(np.isnan(parts), -np.inf, parts).max(axis=0)
        return np.where(unknown & ~(largest >= 0), np.nan, largest)
    assert isinstance(rule, Atom)
    return of_atom(rule)


def _one_each(atom: Atom) -> Callable[[Any], Columns]:
    """A check that a predicate or margin rule gives one answer for each action."""
    check = _booleans if atom.form == "predicate" else _numbers

    def one_each(answer: Any) -> Columns:
        values = check(answer)
        if values.ndim != 1:
            raise GxError(f"returned an array of shape {values.shape[1:]} where one answer is expected")
        return (values,)

    return one_each


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, GxError) else f"raised {type(error).__name__}: {error}"


def _add_axis(answer: Any) -> Any:
    """One state's answer as a batch of one; a tuple of parameters stays a tuple."""
    if isinstance(answer, tuple):
        return tuple(_plain_array(a)[None] for a in answer)
    return _plain_array(answer)[None]


def _plain_array(answer: Any) -> np.ndarray:
    """A copy: a rule may use its buffer again for the next state."""
    if answer is None:
        raise GxError("returned None; check that every path of it returns an answer")
    array = np.array(to_numpy(answer))
    if array.dtype.kind not in "biuf" or isinstance(answer, np.ma.MaskedArray):
        raise GxError(f"returned {array.dtype} where plain numbers or booleans are expected")
    return array


def _joined(answer: Any) -> np.ndarray:
    """A mask given as one array per component becomes one array."""
    return np.concatenate([_plain_array(a) for a in answer], axis=-1)


def _booleans(answer: Any) -> np.ndarray:
    answer = _plain_array(answer)
    if answer.dtype != bool and not (
        np.issubdtype(answer.dtype, np.integer) and np.isin(answer, (0, 1)).all()
    ):
        # A NaN would count as true, and a number between 0 and 1 is nobody's clear answer.
        raise GxError(f"returned {answer.ravel()[:3]} where True or False is expected; compare explicitly")
    return np.where(answer.astype(bool), 1.0, -1.0)


def _numbers(answer: Any) -> np.ndarray:
    answer = _plain_array(answer).astype(np.float64)
    if np.isnan(answer).any():
        raise GxError("returned NaN; a margin must be a number")
    return answer


def _parameters(atom: Atom, answer: Any, d: int) -> Columns:
    """Checked parameters of a structured rule, a column each."""
    form = atom.form
    if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
        raise GxError(f"must return a pair, such as (low, high) or (w, c), not {type(answer).__name__}")
    first, second = (_plain_array(v).astype(np.float64) for v in answer)
    if np.isnan(first).any() or np.isnan(second).any():
        raise GxError("returned NaN; every bound, weight and threshold must be a number")
    names = {"bounds": ("low", "high"), "halfspace": ("A", "b")}.get(form, ("w", "c"))
    if form != "bounds" and not np.isfinite(first).all():
        raise GxError(f"returned an infinite {names[0]}; leave a component out with a zero")
    m = first.shape[-2] if form == "halfspace" and first.ndim > 1 else 0
    sizes = {"low": (d,), "high": (d,), "A": (m, d), "b": (m,), "w": (d,), "c": ()}
    if form == "halfspace" and first.shape[1:] == (0,):  # an empty list of half-spaces
        first = first.reshape(len(first), 0, d)
    for name, value in zip(names, (first, second), strict=True):
        if value.shape[1:] != sizes[name]:
            raise GxError(
                f"returned {name} of shape {value.shape[1:]}, expected {sizes[name]} for each state"
            )
    if atom.max_rows is not None and m > atom.max_rows:
        raise GxError(f"returned {m} half-spaces, but declares max_rows={atom.max_rows}")
    if form == "ellipsoid" and (first < 0).any():
        raise GxError("returned a negative weight; an ellipsoid needs w >= 0")
    return first, second


def _unbounded(form: str, d: int) -> Row:
    """Parameters that exclude nothing."""
    if form == "bounds":
        return np.full(d, -np.inf), np.full(d, np.inf)
    if form == "halfspace":
        return np.zeros((1, d)), np.full(1, np.inf)
    return np.zeros(d), np.array(np.inf)


def _stacked(rows: list[Row]) -> Columns:
    """Rows as columns; where states have different numbers of half-spaces, the missing ones exclude nothing."""
    columns = []
    for column in zip(*rows, strict=True):
        values = list(column)
        longest = max((len(v) if v.ndim else 0) for v in values)
        if any(v.ndim and len(v) < longest for v in values):
            fill = np.inf if values[0].ndim == 1 else 0.0
            values = [np.concatenate([v, np.full((longest - len(v), *v.shape[1:]), fill)]) for v in values]
        columns.append(np.stack(values))
    return tuple(columns)
