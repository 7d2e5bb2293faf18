"""Judging proposals in Box action spaces."""

from collections.abc import Callable, Sequence
from itertools import combinations, product

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlpd_gx.errors import GxError
from rlpd_gx.guardian.asking import Asking
from rlpd_gx.guardian.judgement import ALLOWED, INEVITABLE, PROJECTED, Judgement
from rlpd_gx.guardian.reading import Reader, States, tree_margin
from rlpd_gx.guardian.search import find_allowed
from rlpd_gx.rules import Atom, Rule, alternatives
from rlpd_gx.rules.forms import SetForm, TableForm
from rlpd_gx.safe_sets import Box, ConvexSet, Intersection, SafeSet, Union
from rlpd_gx.safe_sets.backend import distances
from rlpd_gx.safe_sets.base import Nearest
from rlpd_gx.types import Action

LEAST_BAD = 1e-6  # the margin of the least bad action is the largest possible, up to this relative error
MAX_TRIALS = 512  # projections made to find the fewest rules that have to be broken
BINDING = 1e-6  # a rule binds when the executed action is this close to its boundary, in the rule's units


class BoxJudge:
    """Projects exactly onto structured rules, which are convex sets; searches where rules are bare predicates."""

    def __init__(self, space: gym.spaces.Box, rules: Sequence[Rule], metric: npt.ArrayLike | None) -> None:
        self.rules, self.space, self.warned = rules, space, set[str]()
        self.dimension = int(np.prod(space.shape))
        self.alternatives = alternatives(rules)
        self.branches = [alternatives([rule]) for rule in rules]
        opaque = [r for r in rules if not all(isinstance(a.form, SetForm) for a in r.atoms())]
        self.structured = alternatives([r for r in rules if r not in opaque])
        self.asking = Asking(opaque, space) if opaque else None
        self.hard = Box(space.low.ravel(), space.high.ravel())
        self.metric = (
            np.ones(self.dimension) if metric is None else np.asarray(metric, dtype=np.float64).ravel()
        )
        if self.metric.shape != (self.dimension,) or not (self.metric > 0).all():
            raise GxError(
                f"the metric must be {self.dimension} positive numbers, one for each action component"
            )
        for atom in (a for r in rules for a in r.atoms()):
            if isinstance(atom.form, TableForm):
                raise GxError(f"{atom!r} is for discrete actions, but the action space is {space}")

    def well_formed(self, proposed: Action) -> tuple[np.ndarray, dict[int, str]]:
        """Flat actions [B, d] in the space's dtype; zero where a proposal is no action at all."""
        given = np.asarray(proposed)
        count = len(given)
        if given.dtype.kind not in "biuf" or given.shape != (count, *self.space.shape):
            what = (
                f"proposal of shape {given.shape[1:]} and type {given.dtype} is not an action of {self.space}"
            )
            return np.zeros((count, self.dimension), self.space.dtype), dict.fromkeys(range(count), what)
        given = given.reshape(count, self.dimension)
        with np.errstate(over="ignore"):
            values = given.astype(self.space.dtype)
        # finite, but beyond the largest number of this type: as far out as that
        beyond = np.isinf(values) & np.isfinite(given)
        largest = np.finfo(self.space.dtype).max  # type: ignore[type-var]  # a Box of floats
        values[beyond] = np.copysign(largest, values[beyond])
        bad = np.flatnonzero(~np.isfinite(values).all(axis=-1))
        failures = {int(i): f"proposal {values[i].tolist()} is not finite" for i in bad}
        values[bad] = 0
        return values, failures

    def judge(
        self, states: States, proposed: np.ndarray, preference: np.ndarray | None, complete: bool = False
    ) -> Judgement:
        reader = Reader(states, warned=self.warned)
        return self.judge_read(reader, self._sets(reader), proposed, complete)

    def margins_at(self, states: States, action: Action) -> np.ndarray:
        reader = Reader(states, warned=self.warned)
        return self._margin_at(reader, self._sets(reader), 0, action)

    def _sets(self, reader: Reader) -> dict[Atom, ConvexSet]:
        """What structured rules describe."""
        atoms = [a for r in self.rules for a in r.atoms() if isinstance(a.form, SetForm)]
        return {a: reader.convex_set(a, self.dimension) for a in atoms}

    def judge_read(
        self, reader: Reader, sets: dict[Atom, ConvexSet], proposed: np.ndarray, complete: bool = False
    ) -> Judgement:
        """Judge proposals [B, d] under the sets that structured rules have already described."""
        margins = self._margins(reader, sets, proposed)
        outside = self.hard.margin(proposed) < 0
        count = reader.states.count
        judgement = Judgement(
            action=proposed.copy(),
            status=np.full(count, ALLOWED),
            distance=np.zeros(count),
            margins=margins,
            binding=np.concatenate([margins < 0, outside[None]]),
            exact=np.ones(count, dtype=bool),
            safe_set=self._safe_set(sets, reader.states),
            failures=reader.failures,
            margin_at=lambda row, action: self._margin_at(reader, sets, row, action),
        )
        wanted = ~(margins >= 0).all(axis=0) | outside
        todo = np.array([i for i in np.flatnonzero(wanted) if i not in reader.failures], dtype=int)
        if len(todo):
            self._move(reader, sets, todo, judgement, complete)
        judgement.action = judgement.action.reshape(count, *self.space.shape)
        return judgement

    def _move(
        self,
        reader: Reader,
        sets: dict[Atom, ConvexSet],
        rows: np.ndarray,
        judgement: Judgement,
        complete: bool,
    ) -> None:
        """Find an allowed action for the given rows and check it once more."""
        proposed = judgement.action[rows]
        asked = Reader(reader.states[rows], warned=self.warned)
        subsets = {a: s[rows] for a, s in sets.items()}
        best, possible = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
        action = proposed.copy()
        exact, empty, converged = np.ones((3, len(rows)), dtype=bool)
        strictly = np.zeros(len(rows), dtype=bool)
        for atoms in self.alternatives:
            here = Intersection(self.hard, *(subsets[a] for a in atoms if a in subsets))
            point, found, none = here.nearest(proposed, self.metric)
            converged &= found | none
            # No action of this alternative is nearer than its convex part; where that is unknown, it may be anywhere.
            distance = np.where(found, self._distance(point, proposed), np.inf)
            possible = np.minimum(possible, np.where(found | none, distance, 0.0))
            opaque = [a for a in atoms if a not in subsets]
            here_exact = np.ones(len(rows), dtype=bool)
            if opaque:
                point, here_exact, passed = find_allowed(
                    point, found, here, self._ask(asked, opaque), self._anchors(asked.states)
                )
                none, found = none & ~passed, passed
                distance = np.where(found, self._distance(point, proposed), np.inf)
            # A set too thin to hold a representable point yields one within the tolerance: only if no other does.
            strict = found & (here.margin(point) >= 0) if len(self.alternatives) > 1 else found
            nearer = (strict & ~strictly) | ((strict == strictly) & (distance < best))
            best, strictly = np.where(nearer, distance, best), strictly | strict
            action[nearer], exact[nearer] = point[nearer], here_exact[nearer]
            empty &= none
        exact &= best <= possible
        if empty.any() and not complete:  # where only safe sets are asked for, nothing is executed
            nothing = {a: s[empty] for a, s in subsets.items()}
            action[empty], exact[empty] = self._least_bad(nothing, proposed[empty])
        chosen = np.isfinite(best)
        holds = self._holds(asked, subsets, action)
        for i, row in enumerate(rows.tolist()):
            if i in asked.failures:
                judgement.failures[row] = asked.failures[i]
            elif not (chosen[i] or empty[i]):
                what = "no allowed action was found" if converged[i] else "the projection did not converge"
                judgement.failures[row] = what
            elif chosen[i] and not holds[i]:
                judgement.failures[row] = "the projected action did not pass the check by the rules"
        judgement.action[rows] = action
        judgement.status[rows] = np.where(empty, INEVITABLE, PROJECTED)
        judgement.distance[rows] = self._distance(action, proposed)
        judgement.exact[rows] = exact
        executed = self._margins(asked, subsets, action)
        judgement.binding[:-1, rows] |= executed <= BINDING
        assert judgement.executed_margins is not None
        judgement.executed_margins[:, rows] = executed

    def _ask(self, reader: Reader, opaque: list[Atom]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Whether predicates and margin rules all allow actions [n, d] in the states of the given rows [n]."""

        def allowed(rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
            part = Reader(reader.states[rows], warned=self.warned)
            answers = [part.margin(a, actions.reshape(-1, *self.space.shape)) >= 0 for a in opaque]
            for i, reason in part.failures.items():
                reader.failures.setdefault(int(rows[i]), reason)
            return np.logical_and.reduce(answers)

        return allowed

    def _anchors(self, states: States) -> list[np.ndarray]:
        """Where an allowed action may be found, the most likely first: each [B, d]."""
        middle = np.where(
            np.isfinite(self.hard.low + self.hard.high), (self.hard.low + self.hard.high) / 2, 0.0
        )
        anchors = [
            np.broadcast_to(middle, (states.count, self.dimension)),
            np.zeros((states.count, self.dimension)),
        ]
        if states.context.previous_action is not None:
            previous = np.asarray(states.context.previous_action, dtype=np.float64)
            anchors.insert(0, np.broadcast_to(previous.reshape(-1, self.dimension), anchors[0].shape))
        return anchors

    def _margins(self, reader: Reader, sets: dict[Atom, ConvexSet], actions: np.ndarray) -> np.ndarray:
        """Margin of each rule at actions [B, d] -> [R, B]; NaN where a rule failed."""
        shaped = actions.reshape(-1, *self.space.shape)

        def of_atom(atom: Atom) -> np.ndarray:
            if atom not in sets:
                return reader.margin(atom, shaped)
            margin = sets[atom].margin(actions)
            margin[list(reader.silent.get(atom, ()))] = np.nan
            return margin

        return np.stack([tree_margin(r, of_atom) for r in self.rules])

    def _holds(self, reader: Reader, sets: dict[Atom, ConvexSet], actions: np.ndarray) -> np.ndarray:
        """Whether every rule allows the actions [B], structured ones up to the stated tolerance."""

        def of_atom(atom: Atom) -> np.ndarray:
            if atom in sets:
                return np.where(sets[atom].contains(actions), 1.0, -1.0)
            return reader.margin(atom, actions.reshape(-1, *self.space.shape))

        rules_hold = np.stack([tree_margin(r, of_atom) >= 0 for r in self.rules]).all(axis=0)
        return rules_hold & self.hard.contains(actions)

    def _least_bad(self, sets: dict[Atom, ConvexSet], proposed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where nothing is allowed: the largest margin, then the fewest broken rules, then the nearest.

        Returns actions [B, d], and whether each is proven to be that [B].
        """
        action, depth, proven = self._largest_margin(sets, proposed)
        for i in range(len(action)):
            row = slice(i, i + 1)
            alone = {a: s[row] for a, s in sets.items()}
            action[row], fewest = self._fewest_broken(alone, proposed[row], action[row], depth[i])
            proven[i] &= fewest
        # Rules that are asked about single actions were not: another action may break fewer of them.
        return action, proven & (self.asking is None)

    def _largest_margin(
        self, sets: dict[Atom, ConvexSet], proposed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions [B, d] with the largest margin, by halving the relaxation of the rules.

        Also the relaxation within which an action has the largest margin up to `LEAST_BAD` [B], and whether that is
        proven [B].
        """
        start = np.asarray(self.hard.project(proposed))
        best, least = start.copy(), np.full(len(start), np.inf)
        depth, proven = least.copy(), np.ones(len(start), dtype=bool)
        for atoms in self.alternatives:
            parts = [sets[x] for x in atoms if x in sets]
            if not parts:
                continue
            low = np.zeros(len(start))
            high = np.max([-p.margin(start) for p in parts], axis=0)
            point, enough = start.copy(), 1e-3 * LEAST_BAD * high
            for _ in range(60):
                # Where no finite relaxation helps, any action is as bad.
                (todo,) = np.nonzero(np.isfinite(high) & (high - low > LEAST_BAD * high + enough))
                if not len(todo):
                    break
                middle = (low[todo] + high[todo]) / 2
                relaxed = Intersection(self.hard, *(p[todo].shifted(-middle) for p in parts))
                answer = relaxed.nearest(proposed[todo], self.metric, thorough=False)
                high[todo] = np.where(answer.found, middle, high[todo])
                low[todo] = np.where(answer.found, low[todo], middle)
                point[todo] = np.where(answer.found[:, None], answer.point, point[todo])
                proven[todo] &= answer.found | answer.empty
            better = high < least
            best[better], least[better] = point[better], high[better]
            depth[better] = np.maximum(high, low + LEAST_BAD * high)[better]
        return best, depth, proven

    def _fewest_broken(
        self, sets: dict[Atom, ConvexSet], proposed: np.ndarray, least_bad: np.ndarray, depth: float
    ) -> tuple[np.ndarray, bool]:
        """Of the actions [1, d] that break no rule by more than `depth`, the nearest of those that break the fewest.

        Also whether that is proven. `least_bad` is the nearest of all of them, in the branch it was found in.
        """

        def nearest(branch: Sequence[tuple[Atom, ...]], broken: frozenset[int]) -> Nearest:
            parts = []
            for k, atoms in enumerate(branch):
                described = [sets[a] for a in atoms if a in sets]
                if k not in broken:
                    parts += described
                elif np.isfinite(depth):
                    parts += [part.shifted(-depth) for part in described]
            return Intersection(self.hard, *parts).nearest(proposed, self.metric)

        def keeps(atoms: tuple[Atom, ...]) -> bool:
            return all(sets[a].margin(least_bad)[0] >= 0 for a in atoms if a in sets)

        every = frozenset(range(len(self.rules)))
        broken = sum(not any(map(keeps, branches)) for branches in self.branches)
        branches = list(product(*self.branches))
        if len(branches) > 1:
            branches = [b for b in branches if not nearest(b, every).empty]
        if len(branches) == 1 and broken <= 1:
            return least_bad, True
        lost = frozenset(k for k in every if all(nearest(b, every - {k}).empty for b in branches))
        trials, proven = 0, True
        for more in range(broken - len(lost) + 1):
            if len(branches) == 1 and len(lost) + more == broken:
                return least_bad, proven
            chosen = [lost.union(c) for c in combinations(sorted(every - lost), more)]
            trials += len(chosen) * len(branches)
            if trials > MAX_TRIALS:
                break
            answers = [nearest(b, c) for c in chosen for b in branches]
            proven &= all(a.found[0] or a.empty[0] for a in answers)
            points = [a.point for a in answers if a.found[0]]
            if points:
                return min(points, key=lambda x: float(self._distance(x, proposed)[0])), proven
        return least_bad, False

    def _safe_set(self, sets: dict[Atom, ConvexSet], states: States) -> SafeSet | None:
        branches = [Intersection(self.hard, *(sets[a] for a in atoms)) for atoms in self.structured]
        convex = branches[0] if len(branches) == 1 else Union(*branches)
        return convex if self.asking is None else self.asking.safe_set(convex, states)

    def _margin_at(self, reader: Reader, sets: dict[Atom, ConvexSet], row: int, action: Action) -> np.ndarray:
        """Margins at one action in the state of one row [R]; NaN for rules that fail, -inf outside the space."""
        values, failures = self.well_formed(np.asarray(action)[None])
        if failures or self.hard.margin(values)[0] < 0:
            return np.full(len(self.rules), -np.inf)
        rows = np.array([row])
        silent = {a: {0} for a, failed in reader.silent.items() if row in failed}
        alone = Reader(reader.states[rows], warned=self.warned, silent=silent)
        return self._margins(alone, {a: s[rows] for a, s in sets.items()}, values)[:, 0]

    def distance(self, proposed: Action, action: Action) -> float:
        given, chosen = (np.asarray(a, dtype=np.float64).ravel() for a in (proposed, action))
        return float(self._distance(chosen, given))

    def _distance(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return distances(x, a, self.metric)
