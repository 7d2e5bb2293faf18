"""Safe sets of rules that have no finite description: the rules are asked, from the state that is stored instead."""

from collections.abc import Callable
from typing import Self

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets.backend import Array, namespace, to_numpy
from rlpd_gx.safe_sets.base import Index, Nearest, SafeSet, Spec, code_width, decode
from rlpd_gx.safe_sets.compound import Union
from rlpd_gx.safe_sets.convex import ConvexSet

Ask = Callable[[np.ndarray, np.ndarray], np.ndarray]  # states [n, w], actions [n, d] -> allowed [n] bool
HALVINGS = 6  # towards the boundary, from an action that is known to be allowed

_RULES: dict[str, Ask] = {}


def register(rules: str, ask: Ask) -> None:
    """Let sets with this fingerprint of rules be asked, also after decoding."""
    _RULES[rules] = ask


class Asked(SafeSet):
    """A convex set, and within it the actions that registered rules allow.

    state [..., w]: what the rules read; `asked` [...] bool: False where they need not be asked.
    `member` [..., d]: an allowed action, infinite where none is known (nothing in a code is NaN).
    """

    kind = "asked"

    def __init__(
        self,
        convex: ConvexSet | Union,
        state: Array,
        rules: str,
        member: Array | None = None,
        asked: Array | bool = True,
        *,
        d: int,
    ) -> None:
        self.convex, self.rules, self.d = convex, rules, d
        self.state = to_numpy(state).astype(np.float64)
        batch = self.state.shape[:-1]
        self.member = np.full((*batch, d), np.inf) if member is None else to_numpy(member).astype(np.float64)
        self.asked = np.broadcast_to(np.asarray(asked, bool), batch)

    def margin(self, a: Array) -> Array:
        inside, margin = self.contains(a), self.convex.margin(a)
        return namespace(a).where(
            inside, margin, namespace(a).minimum(margin, -namespace(a).ones_like(margin))
        )

    def contains(self, a: Array) -> Array:
        actions = to_numpy(a)
        inside = np.array(self.convex.contains(actions))
        inside &= self._allowed(actions, inside)
        return _like(inside, a)

    def nearest(self, a: Array) -> Nearest:
        """Where the nearest point of the convex part is forbidden: one near it towards the known allowed action."""
        actions = to_numpy(a)
        point, found, empty = (np.array(part) for part in self.convex.nearest(actions))
        fine = found & self._allowed(point, found)
        known = np.isfinite(self.member).all(axis=-1)
        todo = found & ~fine & known
        if todo.any():
            target = np.broadcast_to(self.member, point.shape)
            forbidden, allowed = np.zeros(todo.shape), np.ones(todo.shape)
            best = np.where(todo[..., None], target, point).astype(point.dtype)
            for _ in range(HALVINGS):
                middle = (forbidden + allowed) / 2
                with np.errstate(invalid="ignore"):
                    candidate = (point + middle[..., None] * (target - point)).astype(point.dtype)
                good = todo & self._allowed(candidate, todo)
                good = good & np.asarray(self.convex.contains(np.where(good[..., None], candidate, point)))
                allowed, forbidden = np.where(good, middle, allowed), np.where(good, forbidden, middle)
                best = np.where(good[..., None], candidate, best)
            point = best
        return Nearest(_like(point, a), _like(fine | todo, a), _like(empty, a))

    def _allowed(self, actions: np.ndarray, where: np.ndarray) -> np.ndarray:
        """What the rules allow [...] bool, asked only `where` it matters."""
        allowed = np.array(where)
        rows = where & np.broadcast_to(self.asked, where.shape)
        if rows.any():
            if self.rules not in _RULES:
                raise GxError("the rules of these safe sets are not loaded; make their Guardian first")
            states = np.broadcast_to(self.state, (*where.shape, self.state.shape[-1]))[rows]
            allowed[rows] = _RULES[self.rules](states, actions[rows])
        return allowed

    def knowing(self, action: Array) -> Self:
        return self._with(self.convex, to_numpy(action), self.asked)

    def everything(self) -> Self:
        return self._with(self.convex.everything(), self.member, False)

    def only(self, action: Array) -> Self:
        return self._with(self.convex.only(action), to_numpy(action), False)

    def _with(self, convex: SafeSet, member: np.ndarray, asked: np.ndarray | bool) -> Self:
        return type(self)(convex, self.state, self.rules, member, asked, d=self.d)  # type: ignore[arg-type]

    @property
    def spec(self) -> Spec:
        width = self.state.shape[-1]
        return {
            "kind": self.kind,
            "convex": self.convex.spec,
            "rules": self.rules,
            "d": self.d,
            "state": width,
        }

    def encode(self) -> np.ndarray:
        code = np.asarray(self.convex.encode())
        code = np.broadcast_to(code, (*self.state.shape[:-1], code.shape[-1]))
        return np.concatenate([code, self.asked[..., None], self.member, self.state], axis=-1)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return code_width(spec["convex"]) + 1 + spec["d"] + spec["state"]

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        start = code_width(spec["convex"])
        convex, asked, member, state = np.split(
            to_numpy(code), [start, start + 1, start + 1 + spec["d"]], axis=-1
        )
        part = decode(convex, spec["convex"])
        return cls(part, state, spec["rules"], member, asked[..., 0] > 0, d=spec["d"])  # type: ignore[arg-type]

    def __getitem__(self, index: Index) -> Self:
        convex = self.convex[index] if self.convex.batch_shape else self.convex
        return type(self)(
            convex, self.state[index], self.rules, self.member[index], self.asked[index], d=self.d
        )


def _like(value: np.ndarray, a: Array) -> Array:
    if namespace(a) is np:
        return value
    import torch

    return torch.as_tensor(value, device=a.device)
