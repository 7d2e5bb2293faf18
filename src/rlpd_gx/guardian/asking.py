"""Rules without a finite description, as safe sets that can be stored: with the state from which they are asked."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from rlpd_gx import trees
from rlpd_gx.guardian.reading import Reader, States, tree_margin
from rlpd_gx.rules import Atom, Rule, fingerprint
from rlpd_gx.rules.forms import SetForm
from rlpd_gx.safe_sets import ConvexSet, Union
from rlpd_gx.safe_sets.asked import Asked, register
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.trees import DType, Tree
from rlpd_gx.types import Context

STATE_LIMIT = 1024  # numbers in a stored state; an image would cost more than the rest of a transition


class Asking:
    """Rules of a Box space that are asked about single actions."""

    def __init__(self, rules: Sequence[Rule], space: gym.spaces.Box) -> None:
        self.rules, self.space = rules, space
        atoms = [atom for rule in rules for atom in rule.atoms()]
        self.needs = tuple(sorted({need for atom in atoms for need in atom.needs}))
        self.names = {atom.name for atom in atoms}
        self.fingerprint = fingerprint(space, [rule.fingerprint for rule in rules])

    def safe_set(self, convex: ConvexSet | Union, states: States) -> Asked | None:
        """The sets of a batch of states within `convex`; None where their state cannot be stored as numbers."""
        tree = states.all(self.needs)
        parts = [_numbers(leaf, states.count) for leaf in trees.leaves(tree)]
        layout = [(part.shape[1:], part.dtype) for part in parts if part is not None]
        if len(layout) < len(parts) or sum(int(np.prod(shape)) for shape, _ in layout) > STATE_LIMIT:
            return None
        key = f"{self.fingerprint} {[(shape, dtype.str) for shape, dtype in layout]}"
        register(key, lambda codes, actions: self._allowed(_unpacked(tree, layout, codes), actions))
        flat = [np.asarray(part, np.float64).reshape(states.count, -1) for part in parts if part is not None]
        return Asked(convex, np.concatenate(flat, axis=-1), key, d=int(np.prod(self.space.shape)))

    def _allowed(self, tree: Tree, actions: np.ndarray) -> np.ndarray:
        """Whether every rule allows the actions [n, d] in the states of an unpacked tree."""
        state, context = tree
        reader = Reader(States(len(actions), state, Context(**context)), warned=self.names)
        shaped = actions.reshape(-1, *self.space.shape).astype(self.space.dtype)

        def of_atom(atom: Atom) -> np.ndarray:
            if isinstance(atom.form, SetForm):
                return np.asarray(reader.convex_set(atom, actions.shape[-1]).margin(actions))
            return reader.margin(atom, shaped)

        margins = np.stack([tree_margin(rule, of_atom) for rule in self.rules])
        return np.asarray((margins >= 0).all(axis=0))


def _numbers(leaf: Tree, count: int) -> np.ndarray | None:
    """A batch of numbers [count, ...], or None where a leaf is something else."""
    if isinstance(leaf, list) or leaf is None:
        return None
    array = np.asarray(to_numpy(leaf))
    return array if array.dtype.kind in "biuf" and array.shape[:1] == (count,) else None


def _unpacked(tree: Tree, layout: Sequence[tuple[tuple[int, ...], DType]], codes: np.ndarray) -> Tree:
    """The tree whose leaves were packed into codes [n, w]."""
    ends = np.cumsum([int(np.prod(shape)) for shape, _ in layout])[:-1]
    parts = iter(zip(np.split(codes, ends, axis=-1), layout, strict=True))

    def leaf(_: Tree) -> np.ndarray:
        part, (shape, dtype) = next(parts)
        return part.reshape(len(codes), *shape).astype(dtype)

    return trees.map_leaves(leaf, tree)
