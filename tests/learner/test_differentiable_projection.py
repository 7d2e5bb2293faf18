"""The projection's gradient against finite differences, for every kind of convex set and for combinations."""

import numpy as np
import pytest
import torch

import rlpd_gx as gx
from rlpd_gx.safe_sets.differentiable import project

D = 3


def _sets(kind: str, generator: np.random.Generator, count: int) -> gx.Intersection | gx.Union:
    box = gx.Box(-np.ones(D), np.ones(D))
    w = generator.normal(size=(count, D)) * 2
    small = np.full(count, 0.5)
    parts = {
        "halfspace": [gx.Polytope(w[:, None, :], small[:, None])],
        "corner": [gx.Polytope(generator.normal(size=(count, 2, D)), np.full((count, 2), 0.1))],
        "l1": [gx.WeightedL1(w, small)],
        "positive sum": [gx.PositiveSum(w, small)],
        "ellipsoid": [gx.Ellipsoid(w**2 + 0.1, small)],
        "two curved": [gx.Ellipsoid(w**2 + 0.1, small), gx.WeightedL1(w, small)],
    }[kind.removeprefix("union of ")]
    whole = gx.Intersection(box, *parts)
    other = gx.Intersection(gx.Box(np.full(D, 0.5), np.ones(D)), *(p.shifted(-np.inf) for p in parts))
    return gx.Union(whole, other) if kind.startswith("union") else whole


KINDS = ["halfspace", "corner", "l1", "positive sum", "ellipsoid", "two curved", "union of l1"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_finite_differences(kind: str) -> None:
    generator = np.random.default_rng(1)
    count, step = 300, 1e-6
    sets = _sets(kind, generator, count)
    a = torch.tensor(generator.uniform(-1.5, 1.5, (count, D)), requires_grad=True)
    direction = torch.tensor(generator.normal(size=(count, D)))
    (gradient,) = torch.autograd.grad((project(sets, a) * direction).sum(), a)
    numeric = np.empty((count, D))
    for i in range(D):
        moved = [(a.detach() + s * step * torch.eye(D)[i]).numpy() for s in (1, -1)]
        ahead, behind = (sets.project(m) for m in moved)
        numeric[:, i] = ((ahead - behind) / (2 * step) * direction.numpy()).sum(axis=-1)
    error = np.abs(gradient.numpy() - numeric).max(axis=-1)
    # at a corner or a kink the derivative jumps: such points are few, and there no number is right
    assert np.mean(error < 1e-3) > 0.97, np.sort(error)[-12:]


def test_the_identity_would_fail_the_comparison() -> None:
    generator = np.random.default_rng(1)
    sets = _sets("l1", generator, 300)
    a = torch.tensor(generator.uniform(-1.5, 1.5, (300, D)), requires_grad=True)
    (gradient,) = torch.autograd.grad(project(sets, a).sum(), a)
    moved = (project(sets, a) != a).any(dim=-1)
    assert moved.sum() > 100
    assert (gradient[moved] - 1).abs().max() > 0.5
    assert torch.equal(gradient[~moved], torch.ones_like(gradient[~moved]))
