"""Asking rules about a batch of states; every unusable answer becomes a reason."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.rules import Atom, Combined, Rule
from rlpd_gx.rules.forms import ActionForm, Columns, SetForm, TableForm, plain_array
from rlpd_gx.safe_sets import ConvexSet
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.safe_sets.base import Index
from rlpd_gx.trees import Json, Tree, leaves, map_leaves
from rlpd_gx.types import Action, Context, State


@dataclass(frozen=True)
class States:
    """A batch of states and contexts, for rules that take one state and for rules that take a batch.

    A batch is an array [B, ...], a dict or tuple of such arrays, or a list of B objects. A context's fields are
    batched the same way.
    """

    count: int
    batch: State
    context: Context
    single: bool = False

    @classmethod
    def one_state(cls, state: State, context: Context) -> "States":
        return cls(1, state, context, single=True)

    @classmethod
    def many(cls, states: State, context: Context) -> "States":
        return cls(_length(states), states, context)

    def one(self, i: int, needs: tuple[str, ...]) -> tuple[State, Json]:
        """State i and the context fields it needs."""
        if self.single:
            return read_only(self.batch), {n: read_only(getattr(self.context, n)) for n in needs}
        one = {n: read_only(pick(getattr(self.context, n), i)) for n in needs}
        if "time" in one:
            # as outside a batch: a numpy number would change a rule's precision
            one["time"] = int(one["time"])
        return read_only(pick(self.batch, i)), one

    def all(self, needs: tuple[str, ...]) -> tuple[State, Json]:
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


def as_batch(proposed: Action) -> np.ndarray:
    """One proposal as a batch of one; what is not an array becomes one that every judge rejects."""
    try:
        return np.asarray(to_numpy(proposed))[None]
    except ValueError:
        return np.array([str(proposed)])


def read_only(value: Tree) -> Tree:
    """The same arrays, write-protected: what one rule does to them must not change what the next one sees.

    Lists, sets and tensors cannot be protected: each rule gets its own. Other objects stay as they are.
    """
    if type(value) is np.ndarray:
        return _protected(value)
    return map_leaves(_protected, value)


def _protected(leaf: Tree) -> Tree:
    if isinstance(leaf, np.ndarray):
        leaf = leaf.view()
        leaf.setflags(write=False)
        return leaf
    if isinstance(leaf, list):
        return [read_only(part) for part in leaf]
    if isinstance(leaf, set | bytearray):
        return leaf.copy()
    return leaf.detach().clone() if hasattr(leaf, "detach") else leaf


def _length(states: State) -> int:
    return len(next(leaves(states)))


def pick(batch: Tree, index: Index) -> Tree:
    """Member or members of a batch of anything; what is not batched stays as it is."""

    def picked(leaf: Tree) -> Tree:
        if leaf is None or isinstance(leaf, (int, float)):
            return leaf
        if isinstance(leaf, list) and isinstance(index, np.ndarray):  # a batch of objects
            return [leaf[i] for i in index]
        return leaf[index]

    return map_leaves(picked, batch)


def batch_of_one(state: State) -> State:
    """One state as a batch of one."""

    def alone(leaf: Tree) -> Tree:
        if isinstance(leaf, (np.ndarray, np.generic, int, float, bool)):
            return np.asarray(leaf)[None]
        return leaf[None] if hasattr(leaf, "detach") else [leaf]

    return map_leaves(alone, state)


Row = tuple[np.ndarray, ...]  # one state's answer
Blank = Callable[[], Row]  # the answer where a rule failed


@dataclass
class Reader:
    """Calls rules and checks what they return. `failures[row]` says why a state cannot be judged."""

    states: States
    failures: dict[int, str] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)  # shared by a Guardian's readers: warn once
    silent: dict[Atom, set[int]] = field(default_factory=dict)  # which rules failed where

    def fail(self, row: int, atom: Atom, what: str) -> None:
        self.failures.setdefault(row, f"rule {atom.name!r} {what}")
        self.silent.setdefault(atom, set()).add(row)

    def call(
        self, atom: Atom, check: Callable[[Tree], Columns], blank: Blank, *actions: np.ndarray
    ) -> Columns:
        """Checked answers for all states, as columns [B, ...]; `blank()` is used where the rule failed.

        A batched rule that fails as a whole is asked again state by state, so that one bad state does not
        fail the others.
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
                    return tuple(b[None] for b in blank())
        elif count > 1 and atom.name not in self.warned:
            self.warned.add(atom.name)
            warnings.warn(
                f"rule {atom.name!r} is not batched: it is called once for each of {count} states",
                stacklevel=2,
            )
        if count == 1:
            return self._call_one(atom, check, blank, 0, actions)
        each = [self._call_one(atom, check, blank, i, actions) for i in range(count)]
        return _stacked([tuple(c[0] for c in columns) for columns in each], blank())

    def _call_one(
        self,
        atom: Atom,
        check: Callable[[Tree], Columns],
        blank: Blank,
        i: int,
        actions: tuple[np.ndarray, ...],
    ) -> Columns:
        """The checked answer for state i, as columns [1, ...]."""
        try:
            if atom.batched:
                state, context = self.states[np.array([i])].all(atom.needs)
                columns = check(atom.fn(state, *(a[i : i + 1] for a in actions), **context))
                if any(len(c) != 1 for c in columns):
                    raise GxError(f"returned {len(columns[0])} rows for one state")
            else:
                state, context = self.states.one(i, atom.needs)
                columns = check(_add_axis(atom.fn(state, *(a[i] for a in actions), **context)))
            return columns
        except Exception as error:  # whatever a rule does wrong, no action may pass because of it
            self.fail(i, atom, _words(error))
            return tuple(b[None] for b in blank())

    def convex_set(self, atom: Atom, dimension: int) -> ConvexSet:
        """The batch of sets a structured rule describes; sets of failed states are unbounded."""
        form = atom.form
        assert isinstance(form, SetForm)
        answers = self.call(
            atom,
            lambda answer: form.columns(answer, dimension),
            lambda: form.unbounded(dimension),
        )
        made = form.convex_set(*answers)
        return made.shifted(atom.shift) if atom.shift else made

    def margin(self, atom: Atom, actions: np.ndarray) -> np.ndarray:
        """Margins of a rule that answers by action, at one action per state [B]; NaN where the rule failed."""
        return self.call(atom, _margins(atom), _unknown, actions)[0] - atom.shift

    def margin_in(self, row: int, atom: Atom, action: np.ndarray) -> float:
        """The margin of a rule that answers by action, at one action in one state; NaN where the rule failed."""
        every = read_only(np.broadcast_to(action, (self.states.count, *np.shape(action))))
        return float(self._call_one(atom, _margins(atom), _unknown, row, (every,))[0][0]) - atom.shift

    def table(self, atom: Atom, shape: Callable[[np.ndarray, bool], np.ndarray], n: int) -> np.ndarray:
        """Margins of a rule that answers for all actions [B, n]; NaN where it failed.

        `shape(table, by_component)` brings tables [B, ...] to [B, n].
        """
        form = atom.form
        assert isinstance(form, TableForm)
        margins = self.call(
            atom, lambda answer: (shape(*form.table(answer)),), lambda: (np.full(n, np.nan),)
        )[0]
        return margins - atom.shift


def tree_margin(rule: Rule, of_atom: Callable[[Atom], np.ndarray]) -> np.ndarray:
    """The margin of a rule made of atoms: the least for `&`, the largest for `|`.

    NaN is "unknown": an `&` with a broken part is broken whatever the unknown part is, and an `|` with a part that
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


def _unknown() -> Row:
    return (np.array(np.nan),)


def _margins(atom: Atom) -> Callable[[Tree], Columns]:
    form = atom.form
    assert isinstance(form, ActionForm)
    return lambda answer: (form.margins(answer),)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, GxError) else f"raised {type(error).__name__}: {error}"


def _add_axis(answer: Tree) -> Tree:
    """One state's answer as a batch of one; a tuple of parameters stays a tuple."""
    if isinstance(answer, tuple):
        return tuple(plain_array(a)[None] for a in answer)
    return plain_array(answer)[None]


def _stacked(rows: list[Row], blank: Row) -> Columns:
    """Rows as columns; where states have different numbers of rows, the missing ones are those of `blank`."""
    columns = []
    for column, fill in zip(zip(*rows, strict=True), blank, strict=True):
        values = list(column)
        longest = max((len(v) if v.ndim else 0) for v in values)
        if any(v.ndim and len(v) < longest for v in values):
            values = [np.concatenate([v, np.repeat(fill, longest - len(v), axis=0)]) for v in values]
        columns.append(np.stack(values))
    return tuple(columns)
