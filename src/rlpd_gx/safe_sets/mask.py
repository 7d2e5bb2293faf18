"""Safe sets of finite action spaces."""

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.safe_sets.backend import Array, namespace, to_numpy
from rlpd_gx.safe_sets.base import Index, Nearest, SafeSet, Spec

JOINT_LIMIT = 4096  # more joint actions of a MultiDiscrete space are not listed, but masked by component


def choose_nearest(
    allowed: np.ndarray,
    distance: np.ndarray,
    margin: np.ndarray | None = None,
    preference: np.ndarray | None = None,
) -> np.ndarray:
    """Index of the nearest allowed entry of each row [B]; all arguments are [B, n].

    Ties go to the larger margin, then to the larger preference, then to the lowest index. NaN is the worst value.
    """
    best = allowed
    for key, sign in ((distance, 1.0), (margin, -1.0), (preference, -1.0)):
        if key is not None:
            value = np.where(np.isnan(key), np.inf, sign * key)
            least = np.where(best, value, np.inf).min(axis=-1, keepdims=True)
            best = best & (value <= least)
    return np.argmax(best, axis=-1)


class Mask(SafeSet):
    """Allowed actions of a finite space; allowed [..., n] bool.

    `tested` [..., n] bool: an action that was not tested counts as not allowed.
    `embedding` [n, k]: coordinates of the actions, between which distances are measured; without it all other
    actions are equally near. Actions are numbers from `start` on; with `nvec`, entries of a MultiDiscrete space
    [..., len(nvec)], of which the mask lists all joint actions.
    """

    kind = "mask"

    def __init__(
        self,
        allowed: Array,
        tested: Array | None = None,
        embedding: Array | None = None,
        *,
        start: int | Sequence[int] = 0,
        nvec: Sequence[int] | None = None,
    ) -> None:
        allowed = to_numpy(allowed).astype(bool)
        self.tested = np.ones_like(allowed) if tested is None else to_numpy(tested).astype(bool)
        if self.tested.shape != allowed.shape:
            raise GxError(f"tested has shape {self.tested.shape}, allowed {allowed.shape}; make them equal")
        self.allowed = allowed & self.tested
        self.allowed.flags.writeable = self.tested.flags.writeable = False  # verdicts share them
        self.embedding = None if embedding is None else checked_embedding(embedding, self.n)
        self.start = np.asarray(start, dtype=np.int64)
        self.nvec = None if nvec is None else tuple(int(n) for n in nvec)
        if self.nvec is not None and np.prod(self.nvec) != self.n:
            raise GxError(f"a mask of {self.n} actions does not list the joint actions of {self.nvec}")

    @property
    def n(self) -> int:
        """Number of actions."""
        return self.allowed.shape[-1]

    def margin(self, a: Array) -> Array:
        value = np.where(self.tested, np.where(self.allowed, 1.0, -1.0), np.nan)
        return _like(self._pick(value, a, -1.0), a)

    def contains(self, a: Array) -> Array:
        return _like(self._pick(self.allowed, a, False), a)

    def nearest(self, a: Array) -> Nearest:
        ids, known = self._ids(a)
        batch = np.broadcast_shapes(ids.shape, self.allowed.shape[:-1])
        ids, known = np.broadcast_to(ids, batch), np.broadcast_to(known, batch)
        allowed = np.broadcast_to(self.allowed, (*batch, self.n))
        choice = choose_nearest(allowed, distances(ids, self.n, self.embedding))
        stays = known & np.take_along_axis(allowed, ids[..., None], axis=-1)[..., 0]
        choice = np.where(stays, ids, choice)
        found = np.asarray(known & allowed.any(axis=-1))
        point = self._actions(choice)
        point = np.where(found if self.nvec is None else found[..., None], point, -1).astype(
            to_numpy(a).dtype
        )
        return Nearest(_like(point, a), _like(found, a), _like(np.asarray(~allowed.any(axis=-1)), a))

    def _ids(self, a: Array) -> tuple[np.ndarray, np.ndarray]:
        """Actions as indices into the mask [...], and which of them are actions at all."""
        values = to_numpy(a).astype(np.int64) - self.start
        if self.nvec is None:
            known = (values >= 0) & (values < self.n)
            return np.where(known, values, 0), known
        known = np.all((values >= 0) & (values < self.nvec), axis=-1)
        digits = np.where(known[..., None], values, 0)
        return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(digits, -1, 0)), self.nvec)), np.asarray(
            known
        )

    def _actions(self, ids: np.ndarray) -> np.ndarray:
        if self.nvec is None:
            return ids + self.start
        return np.stack(np.unravel_index(ids, self.nvec), axis=-1) + self.start

    def _pick(self, table: np.ndarray, a: Array, otherwise: float | bool) -> np.ndarray:
        ids, known = self._ids(a)
        batch = np.broadcast_shapes(ids.shape, table.shape[:-1])
        table, ids = np.broadcast_to(table, (*batch, self.n)), np.broadcast_to(ids, batch)
        return np.where(known, np.take_along_axis(table, ids[..., None], axis=-1)[..., 0], otherwise)

    def everything(self) -> Self:
        return self._with(np.ones_like(self.allowed))

    def only(self, action: Array) -> Self:
        ids, known = self._ids(action)
        return self._with((np.arange(self.n) == ids[..., None]) & known[..., None])

    def _with(self, allowed: np.ndarray) -> Self:
        return type(self)(allowed, None, self.embedding, start=self.start, nvec=self.nvec)  # type: ignore[arg-type]

    @property
    def spec(self) -> Spec:
        spec: Spec = {"kind": self.kind, "n": self.n}
        if self.start.any():
            spec["start"] = self.start.tolist()
        return spec if self.nvec is None else {**spec, "nvec": list(self.nvec)}

    def encode(self) -> np.ndarray:
        """Two bits per action, packed into bytes [..., 2 * ceil(n / 8)]: allowed, then tested."""
        return np.concatenate([np.packbits(v, axis=-1) for v in (self.allowed, self.tested)], axis=-1)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return 2 * -(-spec["n"] // 8)

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        code, half = to_numpy(code), cls.code_width(spec) // 2
        bits = [
            np.unpackbits(part, axis=-1, count=spec["n"]) for part in (code[..., :half], code[..., half:])
        ]
        return cls(*bits, start=spec.get("start", 0), nvec=spec.get("nvec"))

    def decode(self, code: Array) -> "Mask":
        """The mask in `code`, with the embedding of this one (codes do not hold it)."""
        return type(self).from_code(code, self.spec)._placed(self.embedding)

    def _placed(self, embedding: np.ndarray | None) -> Self:
        self.embedding = embedding
        return self

    def __getitem__(self, index: Index) -> Self:
        part = copy.copy(self)  # what is checked already is not checked again
        part.allowed, part.tested = self.allowed[index], self.tested[index]
        return part

    def __repr__(self) -> str:
        return (
            f"Mask({self.n} actions{f', batch {self.allowed.shape[:-1]}' if self.allowed.ndim > 1 else ''})"
        )


def checked_embedding(embedding: Array, n: int) -> np.ndarray:
    """An embedding [n, k] of finite numbers."""
    places = to_numpy(embedding).astype(np.float64)
    if places.ndim != 2 or len(places) != n:
        raise GxError(
            f"the embedding has shape {places.shape}; give one row for each of {n} actions: [{n}, k]"
        )
    if not np.isfinite(places).all():
        raise GxError("the embedding holds NaN or infinite places; distances would mean nothing")
    return places


class ProductMask(SafeSet):
    """One mask for each component of a MultiDiscrete space, joined: allowed [..., sum(nvec)] bool.

    The values of a component are numbers from its `start` on.
    """

    kind = "product_mask"

    def __init__(self, allowed: Array, nvec: Sequence[int], start: int | Sequence[int] = 0) -> None:
        self.allowed = to_numpy(allowed).astype(bool)
        self.nvec = tuple(int(n) for n in nvec)
        self.start = np.broadcast_to(np.asarray(start, dtype=np.int64), len(self.nvec))
        if self.allowed.shape[-1] != sum(self.nvec):
            raise GxError(
                f"{self.allowed.shape[-1]} entries do not fit components {self.nvec}; give {sum(self.nvec)}"
            )

    @property
    def parts(self) -> list[Mask]:
        """The mask of each component."""
        each = np.split(self.allowed, np.cumsum(self.nvec)[:-1], axis=-1)
        return [Mask(part, start=start) for part, start in zip(each, self.start.tolist(), strict=True)]

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

    def everything(self) -> Self:
        return self._with(np.ones_like(self.allowed))

    def only(self, action: Array) -> Self:
        entries = to_numpy(action) - self.start
        parts = [np.arange(n) == entries[..., i, None] for i, n in enumerate(self.nvec)]
        return self._with(np.concatenate(parts, axis=-1))

    def _with(self, allowed: np.ndarray) -> Self:
        return type(self)(allowed, self.nvec, self.start)  # type: ignore[arg-type]

    @property
    def spec(self) -> Spec:
        spec: Spec = {"kind": self.kind, "nvec": list(self.nvec)}
        return {**spec, "start": self.start.tolist()} if self.start.any() else spec

    def encode(self) -> np.ndarray:
        return np.packbits(self.allowed, axis=-1)

    @classmethod
    def code_width(cls, spec: Spec) -> int:
        return -(-sum(spec["nvec"]) // 8)

    @classmethod
    def from_code(cls, code: Array, spec: Spec) -> Self:
        bits = np.unpackbits(to_numpy(code), axis=-1, count=sum(spec["nvec"]))
        return cls(bits, spec["nvec"], spec.get("start", 0))

    def __getitem__(self, index: Index) -> Self:
        return self._with(self.allowed[index])


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
