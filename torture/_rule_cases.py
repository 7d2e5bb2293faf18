"""Random rule sets of one structure for a batch of states, with proposals: ordinary ones and hostile ones."""

from collections.abc import Callable
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np

import rlpd_gx as gx

FORMS: dict[str, Callable[..., gx.Rule]] = {
    "bounds": gx.bounds_rule,
    "halfspace": gx.halfspace_rule,
    "l1": gx.l1_rule,
    "positive_sum": gx.positive_sum_rule,
    "ellipsoid": gx.ellipsoid_rule,
}


@dataclass
class Part:
    """One structured rule: the two parameters of its form for each state [n, ...]."""

    form: str
    first: np.ndarray
    second: np.ndarray


@dataclass
class Case:
    """`branches`: alternatives, each a list of parts that must all hold. `inside` [n, d]: a point of the first."""

    name: str
    dtype: type[np.floating]
    low: np.ndarray
    high: np.ndarray
    branches: list[list[Part]]
    inside: np.ndarray
    proposed: np.ndarray
    parts: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = [part for branch in self.branches for part in branch]

    def __len__(self) -> int:
        return len(self.proposed)

    @property
    def space(self) -> gym.spaces.Box:
        return gym.spaces.Box(self.low, self.high, dtype=self.dtype)

    @property
    def states(self) -> dict[str, np.ndarray]:
        """What the rules read: their own parameters."""
        states = {"inside": self.inside}
        for i, part in enumerate(self.parts):
            states |= {f"first{i}": part.first, f"second{i}": part.second}
        return states

    def rule(self, batched: bool = True) -> gx.Rule:
        number = 0
        whole: gx.Rule | None = None
        for branch in self.branches:
            joined: gx.Rule | None = None
            for part in branch:
                atom = FORMS[part.form](
                    lambda s, i=number: (s[f"first{i}"], s[f"second{i}"]),
                    name=f"{part.form} {number}",
                    batched=batched,
                )
                joined = atom if joined is None else joined & atom
                number += 1
            assert joined is not None
            whole = joined if whole is None else whole | joined
        assert whole is not None
        return whole

    def __getitem__(self, rows: slice) -> "Case":
        branches = [[Part(p.form, p.first[rows], p.second[rows]) for p in b] for b in self.branches]
        return Case(
            self.name, self.dtype, self.low, self.high, branches, self.inside[rows], self.proposed[rows]
        )


def _around(
    rng: np.random.Generator, form: str, z: np.ndarray, room: np.ndarray, rows: int, scale: np.ndarray
) -> Part:
    """A part of which z [n, d] lies inside, by `room` [n] relative to its numbers."""
    n, d = z.shape
    shape = (n, rows, d) if form == "halfspace" else (n, d)
    w = rng.standard_normal(shape) * (scale[:, None, None] if form == "halfspace" else scale[:, None])
    w[rng.random(shape) < 0.15] = 0.0
    if form == "bounds":
        reach = room[:, None] * (0.2 + rng.random((n, d)))
        return Part(form, z - reach, z + reach * (0.2 + rng.random((n, d))))
    if form == "halfspace":
        terms = w * z[:, None, :]
        size = np.abs(terms).sum(-1) + np.abs(w).sum(-1)
        return Part(form, w, terms.sum(-1) + room[:, None] * (0.05 + rng.random((n, rows))) * size)
    if form == "ellipsoid":
        w = np.abs(w)
    terms = {"l1": np.abs(w * z), "positive_sum": np.maximum(w * z, 0), "ellipsoid": w * z * z}[form].sum(-1)
    size = np.abs(w).sum(-1)
    return Part(form, w, terms + room * (0.05 + rng.random(n)) * size)


def ordinary(rng: np.random.Generator, count: int, name: str = "ordinary") -> Case:
    """Rules as people write them: every set has an interior."""
    d = int(rng.integers(1, 13))
    dtype = np.float32 if rng.random() < 0.6 else np.float64
    reaches = np.array([1.0, 1.0, 0.4, 2.0])[rng.integers(0, 4, (2, d))]
    low, high = (-reaches[0]).astype(dtype), reaches[1].astype(dtype)
    simple = rng.random() < 0.7
    branches = 1 if rng.random() < 0.88 else 2
    made, inside = [], None
    for _ in range(branches):
        z = (low + (0.1 + 0.8 * rng.random((count, d))) * (high - low)).astype(dtype).astype(np.float64)
        inside = z if inside is None else inside
        forms = rng.choice(list(FORMS), 1 if simple else int(rng.integers(2, 4)), replace=False)
        scale = 10.0 ** rng.uniform(-1, 1, count)
        rows = 1 if simple else int(rng.integers(1, 9))
        room = rng.uniform(0.05, 1.0, count)
        made.append([_around(rng, str(form), z, room, rows, scale) for form in forms])
    reach = rng.choice([0.3, 1.0, 1.0, 5.0])
    proposed = (reach * rng.standard_normal((count, d))).astype(dtype)
    assert inside is not None
    return Case(name, dtype, low, high, made, inside, proposed)


def huge(rng: np.random.Generator, count: int) -> Case:
    case = ordinary(rng, count, "huge proposals")
    top = 37.0 if case.dtype is np.float32 else 300.0
    factor = 10.0 ** rng.uniform(5, top, (count, 1))
    case.proposed = (
        np.sign(case.proposed) * (0.01 + np.abs(np.tanh(case.proposed.astype(float)))) * factor
    ).astype(case.dtype)
    return case


def parallel(rng: np.random.Generator, count: int) -> Case:
    """Half-spaces that differ from one another by as little as 1e-12."""
    case = ordinary(rng, count, "near-parallel rows")
    d, rows = len(case.low), int(rng.integers(2, 9))
    base = rng.standard_normal((count, 1, d)) * rng.choice([-1.0, 1.0], (count, rows, 1))
    A = base + 10.0 ** rng.uniform(-12, -3, (count, rows, 1)) * rng.standard_normal((count, rows, d))
    slack = 10.0 ** rng.uniform(-9, 0, (count, rows))
    part = Part("halfspace", A, (A * case.inside[:, None]).sum(-1) + slack)
    case.branches = [[part]]
    case.__post_init__()
    return case


def scaled(rng: np.random.Generator, count: int) -> Case:
    """Rows and columns of very different size."""
    case = ordinary(rng, count, "bad scaling")
    d, rows = len(case.low), int(rng.integers(1, 9))
    A = rng.standard_normal((count, rows, d)) * 10.0 ** rng.uniform(-8, 8, (count, rows, 1))
    A *= 10.0 ** (rng.uniform(-8, 8, (count, 1, d)) * (rng.random((count, 1, 1)) < 0.5))
    size = (np.abs(A) * (1 + np.abs(case.inside[:, None]))).sum(-1)
    b = (A * case.inside[:, None]).sum(-1) + size * 10.0 ** rng.uniform(-6, 0, (count, rows))
    other = str(rng.choice(["l1", "positive_sum", "ellipsoid"]))
    scale = 10.0 ** rng.uniform(-8, 8, count)
    case.branches = [
        [Part("halfspace", A, b), _around(rng, other, case.inside, np.full(count, 0.5), 1, scale)]
    ]
    case.__post_init__()
    return case


def slabs(rng: np.random.Generator, count: int) -> Case:
    """Two opposite half-spaces a few roundings apart."""
    case = ordinary(rng, count, "thin slabs")
    d = len(case.low)
    eps = float(np.finfo(case.dtype).eps)
    a = rng.standard_normal((count, d))
    terms = a * case.inside
    width = np.abs(terms).sum(-1) * eps * 2.0 ** rng.uniform(-1, 24, count)
    middle = terms.sum(-1)
    A = np.stack([a, -a], axis=1)
    b = np.stack([middle + width, width - middle], axis=1)
    case.branches = [[Part("halfspace", A, b)]]
    case.__post_init__()
    return case


def tiny(rng: np.random.Generator, count: int) -> Case:
    """Sets of a diameter down to 1e-12, by every form of rule."""
    case = ordinary(rng, count, "tiny sets")
    forms = rng.choice(list(FORMS), int(rng.integers(1, 4)), replace=False)
    room = 10.0 ** rng.uniform(-12, -4, count)
    if rng.random() < 0.5:
        case.inside = np.zeros_like(case.inside)
    parts = [_around(rng, str(f), case.inside, room, int(rng.integers(1, 9)), np.ones(count)) for f in forms]
    case.branches = [parts]
    case.__post_init__()
    return case


def empty(rng: np.random.Generator, count: int) -> Case:
    """Parts that exclude one another, by a gap from 1e-15 to 1, or that just touch."""
    case = ordinary(rng, count, "empty and touching sets")
    d = len(case.low)
    gap = 10.0 ** rng.uniform(-15, 0, count) * (rng.random(count) < 0.8)
    a = rng.standard_normal((count, d))
    middle = (a * case.inside).sum(-1)
    A, b = np.stack([a, -a], axis=1), np.stack([middle, -middle - gap], axis=1)
    parts = [Part("halfspace", A, b)]
    if rng.random() < 0.5:
        w = np.abs(rng.standard_normal((count, d))) + 0.1
        middle = (w * np.abs(case.inside)).sum(-1)
        A, b = -np.sign(case.inside)[:, None] * w[:, None], -(middle + gap)[:, None]
        parts = [Part("l1", w, middle), Part("halfspace", A, b)]
    case.branches = [parts] if rng.random() < 0.7 else [parts, *case.branches]
    case.__post_init__()
    return case


def denormal(rng: np.random.Generator, count: int) -> Case:
    """Weights, thresholds and proposals near the smallest numbers there are."""
    case = ordinary(rng, count, "denormal numbers")
    d = len(case.low)
    small = 10.0 ** rng.uniform(-320, -290, (count, 1))
    form = str(rng.choice(["l1", "positive_sum", "ellipsoid"]))
    w = np.abs(rng.standard_normal((count, d)))
    weights_too = rng.random((count, 1)) < 0.5
    case.inside = np.zeros_like(case.inside)
    case.branches = [[Part(form, np.where(weights_too, w * small, w), small[:, 0] * rng.random(count))]]
    case.proposed = np.where(rng.random((count, 1)) < 0.3, case.proposed * small, case.proposed).astype(
        case.dtype
    )
    case.__post_init__()
    return case


HOSTILE = (huge, parallel, scaled, slabs, tiny, empty, denormal)


def hostile(rng: np.random.Generator, count: int) -> Case:
    """One of the attacks above."""
    return HOSTILE[int(rng.integers(len(HOSTILE)))](rng, count)
