"""Safe sets as something to draw: a mask, an interval for each component, an outline in two dimensions."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx.safe_sets import SafeSet, decode
from rlpd_gx.safe_sets.mask import Mask
from rlpd_gx.trees import Json
from rlpd_gx.types import Array, Verdict

HALVINGS = 22
RAYS = 96
FAR = 10.0  # what is drawn of an action space without bounds


class Shapes:
    """The safe sets of some verdicts."""

    def __init__(self, space: gym.Space, verdicts: Sequence[Verdict]) -> None:
        self.space, self.verdicts = space, verdicts
        self.sets = [v.safe_set for v in verdicts]

    def as_json(self) -> Json:
        """`masks`: a text of 1, 0 and ? (untested) for each verdict; or `intervals` [T, d, 2]."""
        if isinstance(self.space, gym.spaces.Discrete):
            return {"masks": [_mask(s) for s in self.sets]}
        known = [i for i, s in enumerate(self.sets) if s is not None]
        if not known or not isinstance(self.space, gym.spaces.Box):
            return {"intervals": None}
        batch = self._batch(known)
        actions = np.stack([np.ravel(self._point(self.verdicts[i])) for i in known]).astype(float)
        found = np.full((len(self.sets), actions.shape[1], 2), np.nan)
        low, high = self._bounds(actions)
        inside = np.asarray(batch.contains(actions))
        for component in range(actions.shape[1]):
            for side, bound in enumerate((low, high)):
                ends = actions.copy()
                ends[:, component] = bound[:, component]
                reached = _reach(batch, actions, ends)
                found[known, component, side] = np.where(inside, reached[:, component], np.nan)
        return {"intervals": plain(found)}

    def polygon(self, index: int) -> Json:
        """The outline of a set of two-dimensional actions, as points."""
        safe_set, verdict = self.sets[index], self.verdicts[index]
        if safe_set is None or not isinstance(self.space, gym.spaces.Box) or self.space.shape != (2,):
            return {"polygon": None}
        centre = np.asarray(self._point(verdict), float)
        if not bool(safe_set.contains(centre)):
            return {"polygon": None}
        angles = np.linspace(0, 2 * np.pi, RAYS, endpoint=False)
        low, high = (bound[0] for bound in self._bounds(centre[None]))
        reach = 2 * float(np.linalg.norm(high - low))
        ends = centre + reach * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        batch = safe_set.decode(np.tile(np.asarray(safe_set.encode()), (RAYS, 1)))
        return {"polygon": plain(_reach(batch, np.tile(centre, (RAYS, 1)), ends))}

    def _batch(self, known: Sequence[int]) -> SafeSet:
        sets: list[Any] = [self.sets[i] for i in known]
        return decode(np.stack([np.asarray(s.encode()) for s in sets]), sets[0].spec)

    def _point(self, verdict: Verdict) -> Array:
        """The action that the rules would execute; it is inside wherever anything is."""
        return np.asarray(verdict.action if verdict.suggestion is None else verdict.suggestion)

    def _bounds(self, actions: Array) -> tuple[Array, Array]:
        assert isinstance(self.space, gym.spaces.Box)
        low, high = (np.ravel(bound).astype(float) for bound in (self.space.low, self.space.high))
        return (
            np.where(np.isfinite(low), low, actions - FAR),
            np.where(np.isfinite(high), high, actions + FAR),
        )


def _reach(sets: SafeSet, start: Array, end: Array) -> Array:
    """The last allowed point on the way from each start, which is allowed, to each end: both [n, d]."""
    near, far = np.zeros(len(start)), np.ones(len(start))
    whole = np.asarray(sets.contains(end))
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        allowed = np.asarray(sets.contains(start + middle[:, None] * (end - start)))
        near, far = np.where(allowed, middle, near), np.where(allowed, far, middle)
    return start + np.where(whole, 1.0, near)[:, None] * (end - start)


def _mask(safe_set: SafeSet | None) -> str | None:
    if not isinstance(safe_set, Mask):
        return None
    signs = np.where(safe_set.tested, np.where(safe_set.allowed, "1", "0"), "?")
    return "".join(signs.tolist())


def plain(values: Array) -> Any:
    """Numbers as JSON holds them, with six digits; null where one is not finite."""
    if values.dtype.kind in "iu":
        return values.tolist()
    if values.ndim:
        return [plain(value) for value in values]
    return float(f"{value:.6g}") if np.isfinite(value := float(values)) else None
