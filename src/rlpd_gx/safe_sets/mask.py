"""Safe sets of finite action spaces."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets.backend import Array, namespace, to_numpy
from rlpd_gx.safe_sets.base import Nearest, SafeSet, Spec


def choose_nearest(
    allowed: np.ndarray,
    distance: np.ndarray,
    margin: np.ndarray | None = None,
    preference: np.ndarray | None = None,
) -> np.ndarray:
    """Index of the nearest allowed entry of each row [B]; all arguments are [B, n].

    Ties go to the larger margin, then to the larger preference, then to the lowest index.
    """
    best = allowed
    for key, sign in ((distance, 1.0), (margin, -1.0), (preference, -1.0)):
        if key is not None:
            value = np.where(best, sign * key, np.inf)
            best = best & (value <= value.min(axis=-1, keepdims=True))
    return np.argmax(best, axis=-1)


class Mask(SafeSet):
    """Allowed actions of a finite space; allowed [..., n] bool.

    `tested` [..., n] bool: where it is false nobody knows, and the action counts as not allowed.
    `embedding` [n, k]: places of the actions, between which distances are measured; without it every other
    action is equally near.
    """

    kind = "mask"

    def __init__(self, allowed: Array, tested: Array | None = None, embedding: Array | None = None) -> None:
        self.allowed = to_numpy(allowed).astype(bool)
        self.tested = np.ones_like(self.allowed) if tested is None else to_numpy(tested).astype(bool)
        if self.tested.shape != self.allowed.shape:
            raise GxError(
                f"tested has shape {self.tested.shape}, allowed {self.allowed.shape}; make them equal"
            )
        self.allowed = self.allowed & self.tested
        self.embedding = None if embedding is None else to_numpy(embedding).astype(np.float64)
        if self.embedding is not None and (self.embedding.ndim != 2 or len(self.embedding) != self.n):
            raise GxError(
                f"the embedding has shape {self.embedding.shape}; give one row per action: [{self.n}, k]"
            )

    @property
    def n(self) -> int:
        """Number of actions."""
        return self.allowed.shape[-1]

    def margin(self, a: Array) -> Array:
        value = np.where(self.tested, np.where(self.allowed, 1.0, -1.0), np.nan)
        return _like(self._pick(value, a), a)

    def contains(self, a: Array) -> Array:
        return _like(np.asarray(self._pick(self.allowed, a)), a)

    def nearest(self, a: Array) -> Nearest:
        ids = to_numpy(a)
        batch = np.broadcast_shapes(ids.shape, self.allowed.shape[:-1])
        ids = np.broadcast_to(ids, batch)
        allowed = np.broadcast_to(self.allowed, (*batch, self.n))
        choice = choose_nearest(allowed, distances(ids, self.n, self.embedding))
        found = allowed.any(axis=-1)
        point = np.where(found, choice, -1).astype(ids.dtype)
        return Nearest(_like(point, a), _like(np.asarray(found), a), _like(np.asarray(~found), a))

    def _pick(self, table: np.ndarray, a: Array) -> np.ndarray:
        ids = to_numpy(a)
        batch = np.broadcast_shapes(ids.shape, table.shape[:-1])
        table = np.broadcast_to(table, (*batch, self.n))
        return np.take_along_axis(table, np.broadcast_to(ids, batch)[..., None].astype(np.int64), axis=-1)[
            ..., 0
        ]

    @property
    def spec(self) -> Spec:
        return {"kind": self.kind, "n": self.n}

    def encode(self) -> np.ndarray:
        """Two bits an action, packed into bytes [..., 2 * ceil(n / 8)]: allowed, then tested."""
        return np.concatenate([np.packbits(v, axis=-1) for v in (self.allowed, self.tested)], axis=-1)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return 2 * -(-spec["n"] // 8)

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        halves = np.split(to_numpy(code), 2, axis=-1)
        return cls(*(np.unpackbits(half, axis=-1, count=spec["n"]) for half in halves))

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.allowed[index], self.tested[index], self.embedding)

    def __repr__(self) -> str:
        return (
            f"Mask({self.n} actions{f', batch {self.allowed.shape[:-1]}' if self.allowed.ndim > 1 else ''})"
        )


class ProductMask(SafeSet):
    """One mask for each component of a MultiDiscrete space, joined: allowed [..., sum(nvec)] bool."""

    kind = "product_mask"

    def __init__(self, allowed: Array, nvec: Sequence[int]) -> None:
        self.allowed = to_numpy(allowed).astype(bool)
        self.nvec = tuple(int(n) for n in nvec)
        if self.allowed.shape[-1] != sum(self.nvec):
            raise GxError(
                f"{self.allowed.shape[-1]} entries do not fit components {self.nvec}; give {sum(self.nvec)}"
            )

    @property
    def parts(self) -> list[Mask]:
        """The mask of each component."""
        ends = np.cumsum(self.nvec)[:-1]
        return [Mask(part) for part in np.split(self.allowed, ends, axis=-1)]

    def margin(self, a: Array) -> Array:
        xp = namespace(a)
        return xp.min(xp.stack([m.margin(a[..., i]) for i, m in enumerate(self.parts)], axis=-1), axis=-1)

    def contains(self, a: Array) -> Array:
        return self.margin(a) >= 0

    def nearest(self, a: Array) -> Nearest:
        xp = namespace(a)
        each = [m.nearest(a[..., i]) for i, m in enumerate(self.parts)]
        found = xp.all(xp.stack([e.found for e in each], axis=-1), axis=-1)
        return Nearest(xp.stack([e.point for e in each], axis=-1), found, ~found)

    @property
    def spec(self) -> Spec:
        return {"kind": self.kind, "nvec": list(self.nvec)}

    def encode(self) -> np.ndarray:
        return np.packbits(self.allowed, axis=-1)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return -(-sum(spec["nvec"]) // 8)

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        return cls(np.unpackbits(to_numpy(code), axis=-1, count=sum(spec["nvec"])), spec["nvec"])

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.allowed[index], self.nvec)


def distances(ids: np.ndarray, n: int, embedding: np.ndarray | None) -> np.ndarray:
    """Distance from each proposed action [...] to every action [..., n]."""
    if embedding is None:
        return (np.arange(n) != ids[..., None]).astype(np.float64)
    return np.linalg.norm(embedding - embedding[ids][..., None, :], axis=-1)


def _like(value: np.ndarray, a: Array) -> Array:
    """`value` in the namespace of a."""
    if namespace(a) is np:
        return value
    import torch

    return torch.as_tensor(value, device=a.device)
