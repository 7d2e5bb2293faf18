"""Judging proposals in finite action spaces: Discrete and MultiDiscrete."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.guardian.judgement import ALLOWED, INEVITABLE, PROJECTED, Judgement
from rlpd_gx.guardian.reading import Reader, States, tree_margin
from rlpd_gx.rules import Atom, Rule
from rlpd_gx.safe_sets import Mask, ProductMask, choose_nearest, distances

JOINT_LIMIT = 4096  # MultiDiscrete spaces with more joint actions are judged component by component


class FiniteJudge:
    """Every action of the space is asked about; the nearest allowed one is found under the embedding."""

    def __init__(
        self,
        space: gym.spaces.Discrete | gym.spaces.MultiDiscrete,
        rules: Sequence[Rule],
        embedding: Any | None,
    ) -> None:
        self.rules, self.space, self.warned = rules, space, set[str]()
        if isinstance(space, gym.spaces.Discrete):
            self.nvec = np.array([space.n])
            self.catalogue = int(space.start) + np.arange(space.n, dtype=space.dtype)
        else:
            self.nvec = space.nvec.ravel()
            joint = np.stack(np.unravel_index(np.arange(np.prod(self.nvec)), tuple(self.nvec)), axis=-1)
            self.catalogue = joint.reshape(-1, *space.shape).astype(space.dtype) + space.start
        self.n = len(self.catalogue)
        self.embedding = None if embedding is None else np.asarray(embedding, dtype=np.float64)
        if self.embedding is not None and (self.embedding.ndim != 2 or len(self.embedding) != self.n):
            raise GxError(
                f"the embedding has shape {self.embedding.shape}; give one row for each of {self.n} actions"
            )
        if self.embedding is None and len(self.nvec) > 1:
            # Changing one component is nearer than changing two; within one, every other value is equally near.
            self.embedding = np.concatenate(
                [np.eye(n)[joint[:, i]] for i, n in enumerate(self.nvec)], axis=-1
            )
            self.embedding /= np.sqrt(2)
        _refuse_continuous(rules, space)

    def well_formed(self, proposed: Any) -> tuple[np.ndarray, dict[int, str]]:
        """Indices into the catalogue [B]."""
        digits, failures = _digits(self.space, self.nvec, proposed)
        return np.ravel_multi_index(tuple(digits.T), tuple(self.nvec)), failures

    def judge(self, states: States, proposed: np.ndarray, preference: np.ndarray | None) -> Judgement:
        reader = Reader(states, warned=self.warned)
        tables = {a: self._table(reader, a) for r in self.rules for a in r.atoms()}
        margins = np.stack([tree_margin(r, tables.__getitem__) for r in self.rules])  # [R, B, n]
        known = ~np.isnan(margins)
        total = np.where(known, margins, -np.inf).min(axis=0)
        allowed = total >= 0
        rows = np.arange(states.count)
        distance = distances(proposed, self.n, self.embedding)
        choice = choose_nearest(allowed, distance, total, preference)
        status = np.where(choice == proposed, ALLOWED, PROJECTED)
        if (none := ~allowed.any(axis=-1)).any():
            choice[none] = self._least_bad(
                margins[:, none], distance[none], preference if preference is None else preference[none]
            )
            status[none] = INEVITABLE
        failures = dict(reader.failures)
        at_proposed = margins[:, rows, proposed]
        binding = np.concatenate([at_proposed < 0, np.zeros((1, states.count), dtype=bool)])

        def margin_at(actions: Any) -> np.ndarray:
            ids, wrong = self.well_formed(actions)
            found = margins[:, rows, ids]
            found[:, list(wrong)] = -np.inf
            return found

        return Judgement(
            action=self.catalogue[choice],
            status=status,
            distance=distance[rows, choice],
            margins=at_proposed,
            binding=binding,
            exact=np.ones(states.count, dtype=bool),
            safe_set=Mask(allowed, known.all(axis=0), self.embedding),
            failures=failures,
            margin_at=margin_at,
        )

    def _least_bad(
        self, margins: np.ndarray, distance: np.ndarray, preference: np.ndarray | None
    ) -> np.ndarray:
        """Where nothing is allowed: the largest margin, then the fewest broken rules, then the nearest."""
        margins = np.where(np.isnan(margins), -np.inf, margins)
        worst = margins.min(axis=0)
        best = worst >= worst.max(axis=-1, keepdims=True)
        broken = np.where(best, (margins < 0).sum(axis=0), np.inf)
        best &= broken <= broken.min(axis=-1, keepdims=True)
        return choose_nearest(best, distance, None, preference)

    def _table(self, reader: Reader, atom: Atom) -> np.ndarray:
        """Margins of one rule at every action [B, n]."""
        if atom.form == "mask":
            return reader.mask(atom, self._joint, self.n)
        columns = [
            reader.margin(atom, np.broadcast_to(a, (reader.states.count, *np.shape(a))))
            for a in self.catalogue
        ]
        return np.stack(columns, axis=-1)

    def _joint(self, masks: np.ndarray) -> np.ndarray:
        """Masks [B, sum(nvec)] (one part per component) or [B, *nvec] (joint) as [B, n]."""
        count, width = len(masks), int(self.nvec.sum())
        if masks.shape == (count, width):
            parts = np.split(masks, np.cumsum(self.nvec)[:-1], axis=-1)
            joint = parts[0]
            for part in parts[1:]:
                joint = np.minimum(joint[..., :, None], part[..., None, :]).reshape(count, -1)
            return joint
        if masks.shape == (count, *self.nvec):
            return masks.reshape(count, self.n)
        wanted = f"({width},)" + (f" or {tuple(int(n) for n in self.nvec)}" if len(self.nvec) > 1 else "")
        raise GxError(f"returned a mask of shape {masks.shape[1:]}, expected {wanted} for each state")


class ComponentJudge:
    """MultiDiscrete spaces too large to enumerate: masks per component, each component moved on its own."""

    def __init__(self, space: gym.spaces.MultiDiscrete, rules: Sequence[Rule], embedding: Any | None) -> None:
        self.rules, self.space, self.nvec = rules, space, space.nvec.ravel()
        self.warned = set[str]()
        for r in rules:
            if not isinstance(r, Atom) or r.form != "mask":
                raise GxError(
                    f"{space} has more than {JOINT_LIMIT} joint actions: only mask rules per component joined "
                    f"with & can be judged there, not {r!r}"
                )
        if embedding is not None:
            raise GxError(
                f"{space} has more than {JOINT_LIMIT} joint actions: an embedding cannot be used there"
            )

    def well_formed(self, proposed: Any) -> tuple[np.ndarray, dict[int, str]]:
        """Component values counted from zero [B, components]."""
        return _digits(self.space, self.nvec, proposed)

    def judge(self, states: States, proposed: np.ndarray, preference: np.ndarray | None) -> Judgement:
        reader = Reader(states, warned=self.warned)
        width = int(self.nvec.sum())
        tables = np.stack([reader.mask(r, self._checked, width) for r in self.rules if isinstance(r, Atom)])
        allowed = (np.where(np.isnan(tables), -1.0, tables) > 0).all(axis=0)
        safe_set = ProductMask(allowed, self.nvec.tolist())
        offsets = np.concatenate([[0], np.cumsum(self.nvec)[:-1]])
        rows = np.arange(states.count)[:, None]

        def margin_at(digits: np.ndarray) -> np.ndarray:
            return tables[:, rows, offsets + digits].min(axis=-1)

        def margin_at_actions(actions: Any) -> np.ndarray:
            digits, wrong = self.well_formed(actions)
            found = margin_at(digits)
            found[:, list(wrong)] = -np.inf
            return found

        point, found, _ = safe_set.nearest(proposed)
        # A component in which nothing is allowed keeps its value: no other one is better.
        point = np.where(point < 0, proposed, point)
        moved = (point != proposed).sum(axis=-1)
        margins = margin_at(proposed)
        return Judgement(
            action=(point + self.space.start.ravel()).reshape(-1, *self.space.shape).astype(self.space.dtype),
            status=np.where(found, np.where(moved > 0, PROJECTED, ALLOWED), INEVITABLE),
            distance=np.sqrt(moved),
            margins=margins,
            binding=np.concatenate([margins < 0, np.zeros((1, states.count), dtype=bool)]),
            exact=np.ones(states.count, dtype=bool),
            safe_set=safe_set,
            failures=dict(reader.failures),
            margin_at=margin_at_actions,
        )

    def _checked(self, masks: np.ndarray) -> np.ndarray:
        if masks.shape[1:] != (self.nvec.sum(),):
            raise GxError(
                f"returned a mask of shape {masks.shape[1:]}, expected ({self.nvec.sum()},) for each state"
            )
        return masks


def _digits(
    space: gym.spaces.Discrete | gym.spaces.MultiDiscrete, nvec: np.ndarray, proposed: Any
) -> tuple[np.ndarray, dict[int, str]]:
    """Proposals as component values counted from zero [B, components], zero where they are no action at all."""
    values = np.asarray(proposed)
    count = len(values)
    usable = np.issubdtype(values.dtype, np.integer) and values.size == count * len(nvec)
    if usable:
        digits = values.reshape(count, -1).astype(np.int64) - np.asarray(space.start).ravel()
        inside = np.all((digits >= 0) & (digits < nvec), axis=-1)
    else:
        digits, inside = np.zeros((count, len(nvec)), dtype=np.int64), np.zeros(count, dtype=bool)
    bad = np.flatnonzero(~inside)
    failures = {int(i): f"proposal {values[i].tolist()} is not an action of {space}" for i in bad}
    return np.where(inside[:, None], digits, 0), failures


def _refuse_continuous(rules: Sequence[Rule], space: gym.Space) -> None:
    for atom in (a for r in rules for a in r.atoms()):
        if atom.form not in ("predicate", "mask", "margin"):
            raise GxError(
                f"{atom!r} describes continuous actions, but the action space is {space}; use a mask rule"
            )
