"""Rules: which actions are allowed, written in whichever form is natural.

A rule describes; it does not act. Its form (see `forms`) says how to read what its function returns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, overload

from rlpd_gx.errors import GxError, refuse_text
from rlpd_gx.rules.fingerprint import fingerprint
from rlpd_gx.rules.forms import (
    L1,
    ActionForm,
    Bounds,
    EllipsoidForm,
    Form,
    Halfspaces,
    Margin,
    Margins,
    MaskForm,
    PositiveParts,
    Predicate,
)

NEEDS = ("previous_action", "time", "parameters")

RuleFunction = Callable[..., Any]  # (state), (state, action), or with what the rule `needs` as keywords


class Rule(ABC):
    """Which actions are allowed in which states. Combine rules with `&` and `|`."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in audits and errors."""

    def __and__(self, other: "Rule") -> "Rule":
        _check_rule(other)
        return Combined("all", (*_members(self, "all"), *_members(other, "all")))

    def __or__(self, other: "Rule") -> "Rule":
        _check_rule(other)
        return Combined("any", (*_members(self, "any"), *_members(other, "any")))

    @abstractmethod
    def shifted(self, delta: float) -> "Rule":
        """The rule with its threshold moved inwards by delta, in its own units: margin - delta >= 0."""

    def stricter(self, delta: float) -> "Rule":
        """The same for a delta above 0, where that says how close the allowed actions are."""
        if delta > 0 and not self.graded:
            raise GxError(
                f"rule {self.name!r} does not say how far an allowed action is from its boundary; use a margin rule"
            )
        return self.shifted(delta)

    @property
    def graded(self) -> bool:
        """Whether the margin of an allowed action is its distance to the boundary; then near misses are counted."""
        return all(atom.form.graded for atom in self.atoms())

    @abstractmethod
    def atoms(self) -> "tuple[Atom, ...]":
        """The rules it is made of, left to right."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever what the rule allows may have changed."""


@dataclass(frozen=True, eq=False)
class Atom(Rule):
    """One function and how to read what it returns."""

    fn: RuleFunction
    form: Form
    name: str = ""
    batched: bool = False
    needs: tuple[str, ...] = ()
    shift: float = 0.0
    lazy: bool = False  # too expensive to be asked about every action; does not change what is allowed

    def __post_init__(self) -> None:
        if not callable(self.fn) or isinstance(self.fn, Rule):
            raise GxError(f"rule {self.name!r} needs a function, not {type(self.fn).__name__}")
        if unknown := set(self.needs) - set(NEEDS):
            raise GxError(f"rule {self.name!r} needs {sorted(unknown)}; a rule may need {', '.join(NEEDS)}")
        if not isinstance(self.form, Form):
            raise GxError(f"rule {self.name!r} needs a form such as rules.forms.Margin(), not {self.form!r}")
        if self.lazy and not isinstance(self.form, ActionForm):
            raise GxError(
                f"rule {self.name!r} is a {self.form.name} rule, which answers for all actions at once; "
                "only gx.rule and gx.margin_rule can be lazy"
            )

    def __call__(self, *state_and_action: Any, **needs: Any) -> Any:
        """What its function returns, without the shift."""
        return self.fn(*state_and_action, **needs)

    def shifted(self, delta: float) -> Self:
        if not self.form.shiftable:
            raise GxError(
                f"rule {self.name!r} is a {self.form.name}: it has no threshold to shift; use a margin rule"
            )
        return replace(self, shift=self.shift + delta)

    def atoms(self) -> "tuple[Atom, ...]":
        return (self,)

    @property
    def fingerprint(self) -> str:
        form = self.form
        return fingerprint(form.name, self.batched, self.needs, self.shift, form.identity, self.fn)

    def __repr__(self) -> str:
        return f"<{self.form.name} rule {self.name!r}>"


@dataclass(frozen=True, eq=False)
class Combined(Rule):
    """`all` or `any` of several rules."""

    how: str
    parts: tuple[Rule, ...]

    @property
    def name(self) -> str:
        return (" & " if self.how == "all" else " | ").join(
            f"({p.name})" if isinstance(p, Combined) else p.name for p in self.parts
        )

    def shifted(self, delta: float) -> Self:
        return replace(self, parts=tuple(p.shifted(delta) for p in self.parts))

    def atoms(self) -> tuple[Atom, ...]:
        return tuple(a for p in self.parts for a in p.atoms())

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.how, [p.fingerprint for p in self.parts])

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


def conjuncts(rules: Rule | Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules that must all hold: a list and top-level `&` are the same thing."""
    given = list(rules) if isinstance(rules, Iterable) and not isinstance(rules, Rule | str) else [rules]
    for r in given:
        _check_rule(r)
    return tuple(part for r in given for part in _members(r, "all"))


def _check_rule(thing: object) -> None:
    if isinstance(thing, Rule):
        return
    if callable(thing):
        name = getattr(thing, "__name__", thing)
        raise GxError(f"{name} is not a rule but a function; decorate it, for example with @gx.rule")
    if isinstance(thing, str):
        raise GxError(f"{thing!r} is text; give the rule itself: only gx.train and --rules take a name")
    raise GxError(f"{thing!r} is not a rule; make one with gx.rule, gx.mask_rule, gx.bounds_rule, ...")


def alternatives(rules: Sequence[Rule]) -> tuple[tuple[Atom, ...], ...]:
    """`rules` (all must hold) as an `any` of `all`s of atoms."""
    product: tuple[tuple[Atom, ...], ...] = ((),)
    for r in rules:
        product = tuple(left + right for left in product for right in _branches(r))
        if len(product) > 64:
            raise GxError("these rules combine to more than 64 alternatives; use fewer `|`")
    return product


def _branches(r: Rule) -> tuple[tuple[Atom, ...], ...]:
    if isinstance(r, Combined) and r.how == "any":
        return tuple(b for p in r.parts for b in _branches(p))
    return alternatives(r.parts) if isinstance(r, Combined) else ((r,),)  # type: ignore[return-value]


def _members(r: Rule, how: str) -> tuple[Rule, ...]:
    return r.parts if isinstance(r, Combined) and r.how == how else (r,)


class RuleMaker(Protocol):
    """`gx.rule` and its siblings: a function in, a rule out; or a decorator."""

    @overload
    def __call__(
        self,
        fn: RuleFunction,
        *,
        name: str | None = ...,
        batched: bool = ...,
        needs: Sequence[str] = ...,
        lazy: bool = ...,
    ) -> Atom: ...
    @overload
    def __call__(
        self,
        fn: None = ...,
        *,
        name: str | None = ...,
        batched: bool = ...,
        needs: Sequence[str] = ...,
        lazy: bool = ...,
    ) -> Callable[[RuleFunction], Atom]: ...


def maker(form: Form) -> RuleMaker:
    """A function like `gx.bounds_rule` for rules of a form; use it for a form of your own."""

    def make(
        fn: RuleFunction | None = None,
        *,
        name: str | None = None,
        batched: bool = False,
        needs: Sequence[str] = (),
        lazy: bool = False,
    ) -> Any:
        refuse_text(needs, "needs")
        if fn is None:  # used as a decorator with arguments
            return lambda f: make(f, name=name, batched=batched, needs=needs, lazy=lazy)
        given = name or str(getattr(fn, "__name__", type(fn).__name__))
        return Atom(fn, form, "rule" if given == "<lambda>" else given, batched, tuple(needs), lazy=lazy)

    make.__doc__ = (
        f"{form.__doc__}\n\n    Also a decorator.\n"
        "    `batched`: fn takes a whole batch of states (and actions) and returns one row for each.\n"
        "    `needs`: which of previous_action, time and parameters fn takes as keyword arguments.\n"
        "    `lazy`: fn is expensive; among discrete actions ask it only until the nearest allowed one is found.\n"
    )
    make.__name__ = make.__qualname__ = "rule" if form.name == "predicate" else f"{form.name}_rule"
    return make


rule = maker(Predicate())
margin_rule = maker(Margin())
margins_rule = maker(Margins())
mask_rule = maker(MaskForm())

bounds_rule = maker(Bounds())
l1_rule = maker(L1())
positive_sum_rule = maker(PositiveParts())
ellipsoid_rule = maker(EllipsoidForm())


def halfspace_rule(
    fn: RuleFunction | None = None,
    *,
    name: str | None = None,
    batched: bool = False,
    needs: Sequence[str] = (),
    max_rows: int | None = None,
) -> Any:
    """A rule from half-spaces: fn(state) -> (A [m, d], b [m]); A a <= b. Also a decorator.

    `batched`, `needs`: as for the other rules. `max_rows`: declare it where m differs from state to state and safe
    sets are stored, so that their codes have one size.
    """
    make: Any = maker(Halfspaces(max_rows))
    return make(fn, name=name, batched=batched, needs=needs)
