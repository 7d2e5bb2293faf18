"""Judging proposals in finite action spaces: Discrete and MultiDiscrete."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlpd_gx.errors import GxError
from rlpd_gx.guardian.judgement import ALLOWED, INEVITABLE, PROJECTED, Judgement
from rlpd_gx.guardian.reading import Reader, States, tree_margin
from rlpd_gx.rules import Atom, Rule
from rlpd_gx.rules.forms import ActionForm, MaskForm, TableForm
from rlpd_gx.safe_sets import Mask, ProductMask, choose_nearest, distances
from rlpd_gx.safe_sets.mask import JOINT_LIMIT, checked_embedding
from rlpd_gx.trees import Json
from rlpd_gx.types import Action


class FiniteJudge:
    """Asks the rules about every action of the space and takes the nearest allowed one under the embedding.

    Lazy rules are asked about the proposal first, then about the others, nearest first, until one passes.
    """

    def __init__(
        self,
        space: gym.spaces.Discrete | gym.spaces.MultiDiscrete,
        rules: Sequence[Rule],
        embedding: npt.ArrayLike | None,
    ) -> None:
        self.rules, self.space, self.warned = rules, space, set[str]()
        self.lazy = [a for r in rules for a in r.atoms() if a.lazy]
        if isinstance(space, gym.spaces.Discrete):
            self.nvec = np.array([space.n])
            self.catalogue = int(space.start) + np.arange(space.n, dtype=space.dtype)
        else:
            self.nvec = space.nvec.ravel()
            joint = np.stack(np.unravel_index(np.arange(np.prod(self.nvec)), tuple(self.nvec)), axis=-1)
            self.catalogue = joint.reshape(-1, *space.shape).astype(space.dtype) + space.start
        self.n, self.width = len(self.catalogue), int(self.nvec.sum())
        self.embedding = None if embedding is None else checked_embedding(embedding, self.n)
        if self.embedding is None and len(self.nvec) > 1:
            # Changing one component is nearer than changing two; within one, every other value is equally near.
            self.embedding = np.concatenate(
                [np.eye(n)[joint[:, i]] for i, n in enumerate(self.nvec)], axis=-1
            )
            self.embedding /= np.sqrt(2)
        self._form: Json = {"start": space.start if len(self.nvec) == 1 else space.start.ravel()}
        if isinstance(space, gym.spaces.MultiDiscrete):
            self._form["nvec"] = self.nvec
        _refuse_continuous(rules, space)

    def well_formed(self, proposed: Action) -> tuple[np.ndarray, dict[int, str]]:
        """Indices into the catalogue [B]."""
        digits, failures = _digits(self.space, self.nvec, proposed)
        return (digits[:, 0] if len(self.nvec) == 1 else np.ravel_multi_index(digits.T, self.nvec)), failures

    def distance(self, proposed: Action, action: Action) -> float:
        given, chosen = (self.well_formed(np.asarray(a)[None])[0] for a in (proposed, action))
        return float(distances(given, self.n, self.embedding)[0, chosen[0]])

    def judge(
        self, states: States, proposed: np.ndarray, preference: np.ndarray | None, complete: bool = False
    ) -> Judgement:
        reader = Reader(states, warned=self.warned)
        tables = {a: self._table(reader, a) for r in self.rules for a in r.atoms()}
        margins = np.stack([tree_margin(r, tables.__getitem__) for r in self.rules])  # [R, B, n]
        distance = distances(proposed, self.n, self.embedding)
        if self.lazy:
            self._ask_in_order(reader, tables, margins, proposed, distance, preference, complete)
        known = ~np.isnan(margins)
        total = np.where(known, margins, -np.inf).min(axis=0)
        allowed = total >= 0
        rows = np.arange(states.count)
        stays = allowed[rows, proposed]
        choice = proposed
        if not stays.all():
            choice = np.where(stays, proposed, choose_nearest(allowed, distance, total, preference))
        none = ~allowed.any(axis=-1)
        if none.any():
            prefer = None if preference is None else preference[none]
            choice[none] = self._least_bad(margins[:, none], distance[none], prefer)
        failures = dict(reader.failures)
        for i in np.flatnonzero(~none & ~allowed[rows, choice]).tolist():
            failures.setdefault(i, "the chosen action did not pass the check by the rules")
        at_proposed = margins[:, rows, proposed]

        def margin_at(row: int, action: Action) -> np.ndarray:
            (id_,), wrong = self.well_formed(np.asarray(action)[None])
            if wrong:
                return np.full(len(self.rules), -np.inf)
            self._ask(reader, tables, margins, row, id_)
            return margins[:, row, id_]

        return Judgement(
            action=self.catalogue[choice],
            status=np.where(stays, ALLOWED, np.where(none, INEVITABLE, PROJECTED)),
            distance=distance[rows, choice],
            margins=at_proposed,
            binding=np.concatenate([at_proposed < 0, np.zeros((1, states.count), dtype=bool)]),
            exact=np.ones(states.count, dtype=bool),
            safe_set=Mask(
                allowed, known.all(axis=0) | (margins < 0).any(axis=0), self.embedding, **self._form
            ),
            failures=failures,
            margin_at=margin_at,
            executed_margins=margins[:, rows, choice],
        )

    def margins_at(self, states: States, action: Action) -> np.ndarray:
        (id_,), wrong = self.well_formed(np.asarray(action)[None])
        if wrong:
            return np.full(len(self.rules), -np.inf)
        reader = Reader(states, warned=self.warned)

        def of_atom(atom: Atom) -> np.ndarray:
            if isinstance(atom.form, TableForm):
                return reader.table(atom, self._joint, self.n)[:, id_]
            return np.array([reader.margin_in(0, atom, self.catalogue[id_])])

        return np.stack([tree_margin(rule, of_atom) for rule in self.rules])[:, 0]

    def _ask_in_order(
        self,
        reader: Reader,
        tables: dict[Atom, np.ndarray],
        margins: np.ndarray,
        proposed: np.ndarray,
        distance: np.ndarray,
        preference: np.ndarray | None,
        complete: bool,
    ) -> None:
        """Fill in the answers of lazy rules, row by row; unless `complete`, only up to the nearest allowed action.

        Actions that another rule already forbids are skipped.
        """
        ids = np.arange(self.n)
        for row in range(reader.states.count):
            prefer = np.zeros(self.n) if preference is None else preference[row]
            order = np.lexsort((ids, -prefer, distance[row], ids != proposed[row]))
            for action in order.tolist():
                if row in reader.failures:
                    break  # a fallback will run
                self._ask(reader, tables, margins, row, action)
                if not complete and (margins[:, row, action] >= 0).all():
                    break

    def _ask(
        self, reader: Reader, tables: dict[Atom, np.ndarray], margins: np.ndarray, row: int, action: int
    ) -> None:
        """Ask lazy rules about one action until it is settled."""
        for atom in self.lazy:
            at = margins[:, row, action]
            if (at < 0).any() or not np.isnan(at).any():
                return
            if np.isnan(tables[atom][row, action]):
                tables[atom][row, action] = reader.margin_in(row, atom, self.catalogue[action])
                margins[:, row, action] = [
                    tree_margin(r, lambda a: tables[a][row, action]) for r in self.rules
                ]

    def _least_bad(
        self, margins: np.ndarray, distance: np.ndarray, preference: np.ndarray | None
    ) -> np.ndarray:
        """Where nothing is allowed: the largest margin, then the fewest broken rules, then the nearest."""
        margins = np.where(np.isnan(margins), np.inf, margins)  # not asked: another rule forbids the action
        worst = margins.min(axis=0)
        best = worst >= worst.max(axis=-1, keepdims=True)
        broken = np.where(best, (margins < 0).sum(axis=0), np.inf)
        best &= broken <= broken.min(axis=-1, keepdims=True)
        return choose_nearest(best, distance, None, preference)

    def _table(self, reader: Reader, atom: Atom) -> np.ndarray:
        """Margins of one rule at every action [B, n]; NaN where it failed or is yet to be asked."""
        if atom.lazy:
            return np.full((reader.states.count, self.n), np.nan)
        if isinstance(atom.form, TableForm):
            return reader.table(atom, self._joint, self.n)
        columns = [
            reader.margin(atom, np.broadcast_to(a, (reader.states.count, *np.shape(a))))
            for a in self.catalogue
        ]
        return np.stack(columns, axis=-1)

    def _joint(self, masks: np.ndarray, by_component: bool) -> np.ndarray:
        """Masks [B, sum(nvec)] (one part per component) or [B, *nvec] (joint) as [B, n]."""
        count, width = len(masks), self.width
        if len(self.nvec) == 1 and masks.shape == (count, width):
            return masks
        if masks.shape == (count, width) and not by_component and len(self.nvec) > 1 and width == self.n:
            raise GxError(
                f"returned {width} values, which could be one mask per component or all {self.n} joint actions; "
                f"return a tuple of masks, or a joint mask of shape {tuple(self.nvec.tolist())}"
            )
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
    """MultiDiscrete spaces too large to enumerate: masks per component, each component projected on its own."""

    def __init__(
        self, space: gym.spaces.MultiDiscrete, rules: Sequence[Rule], embedding: npt.ArrayLike | None
    ) -> None:
        self.rules, self.space, self.nvec = rules, space, space.nvec.ravel()
        self.warned = set[str]()
        for r in rules:
            if not isinstance(r, Atom) or not isinstance(r.form, MaskForm):
                raise GxError(
                    f"{space} has more than {JOINT_LIMIT} joint actions: only mask rules per component joined "
                    f"with & can be judged there, not {r!r}; write it as gx.mask_rule whose function returns a tuple "
                    "with one mask for each component, or leave components out in a wrapper"
                )
        if embedding is not None:
            raise GxError(
                f"{space} has more than {JOINT_LIMIT} joint actions: an embedding cannot be used there"
            )

    def well_formed(self, proposed: Action) -> tuple[np.ndarray, dict[int, str]]:
        """Component values counted from zero [B, components]."""
        return _digits(self.space, self.nvec, proposed)

    def distance(self, proposed: Action, action: Action) -> float:
        return float(np.sqrt(np.count_nonzero(np.asarray(action) != np.asarray(proposed))))

    def judge(
        self, states: States, proposed: np.ndarray, preference: np.ndarray | None, complete: bool = False
    ) -> Judgement:
        reader = Reader(states, warned=self.warned)
        width = int(self.nvec.sum())
        tables = np.stack([reader.table(r, self._checked, width) for r in self.rules if isinstance(r, Atom)])
        allowed = (np.where(np.isnan(tables), -1.0, tables) > 0).all(axis=0)
        from_zero = ProductMask(allowed, self.nvec.tolist())
        offsets = np.concatenate([[0], np.cumsum(self.nvec)[:-1]])
        rows = np.arange(states.count)[:, None]

        def margin_at(digits: np.ndarray) -> np.ndarray:
            return tables[:, rows, offsets + digits].min(axis=-1)

        def margin_at_action(row: int, action: Action) -> np.ndarray:
            digits, wrong = self.well_formed(np.asarray(action)[None])
            return (
                np.full(len(self.rules), -np.inf)
                if wrong
                else tables[:, row, offsets + digits[0]].min(axis=-1)
            )

        point, found, _ = from_zero.nearest(proposed)
        # A component in which nothing is allowed keeps its value: no other one has a larger margin.
        point = np.where(point < 0, proposed, point)
        moved = (point != proposed).sum(axis=-1)
        margins = margin_at(proposed)
        return Judgement(
            action=(point + self.space.start.ravel()).reshape(-1, *self.space.shape).astype(self.space.dtype),
            status=np.where(found, np.where(moved > 0, PROJECTED, ALLOWED), INEVITABLE),
            distance=np.sqrt(moved),
            margins=margins,
            binding=np.concatenate([margins < 0, np.zeros((1, states.count), dtype=bool)]),
            exact=found,  # where nothing is allowed, how many rules a value breaks was not counted
            safe_set=ProductMask(allowed, self.nvec.tolist(), self.space.start.ravel().tolist()),
            failures=dict(reader.failures),
            margin_at=margin_at_action,
            executed_margins=margin_at(point),
        )

    def margins_at(self, states: States, action: Action) -> np.ndarray:
        digits, wrong = self.well_formed(np.asarray(action)[None])
        judgement = self.judge(states, digits, None)  # nothing is searched for
        return np.full(len(self.rules), -np.inf) if wrong else judgement.margins[:, 0]

    def _checked(self, masks: np.ndarray, by_component: bool) -> np.ndarray:
        if masks.shape[1:] != (self.nvec.sum(),):
            raise GxError(
                f"returned a mask of shape {masks.shape[1:]}, expected ({self.nvec.sum()},) for each state: with more "
                f"than {JOINT_LIMIT} joint actions, return a tuple with one mask for each component"
            )
        return masks


def _digits(
    space: gym.spaces.Discrete | gym.spaces.MultiDiscrete, nvec: np.ndarray, proposed: Action
) -> tuple[np.ndarray, dict[int, str]]:
    """Proposals as component values counted from zero [B, components], zero where they are no action at all."""
    values = np.asarray(proposed)
    count = len(values)
    shape = () if isinstance(space, gym.spaces.Discrete) else space.shape
    usable = values.dtype.kind in "iu" and values.shape in ((count, *shape), (count, *shape, 1))
    if usable:
        digits = values.reshape(count, -1).astype(np.int64) - np.asarray(space.start).ravel()
        inside: np.ndarray = np.all((digits >= 0) & (digits < nvec), axis=-1)
        if inside.all():
            return digits, {}
    else:
        digits, inside = np.zeros((count, len(nvec)), dtype=np.int64), np.zeros(count, dtype=bool)
    bad = np.flatnonzero(~inside)
    failures = {int(i): f"proposal {str(values[i])[:80]} is not an action of {space}" for i in bad}
    return np.where(inside[:, None], digits, 0), failures


def _refuse_continuous(rules: Sequence[Rule], space: gym.Space) -> None:
    for atom in (a for r in rules for a in r.atoms()):
        if not isinstance(atom.form, ActionForm | TableForm):
            raise GxError(
                f"{atom!r} describes continuous actions, but the action space is {space}; use a mask rule"
            )
