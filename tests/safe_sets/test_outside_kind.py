"""A kind of safe set defined outside the package: it encodes, projects and certifies like the others."""

from typing import ClassVar

import clarabel
import gymnasium as gym
import numpy as np
import pytest
import torch
from scipy import sparse

import rlpd_gx as gx
from rlpd_gx.rules import maker
from rlpd_gx.rules.forms import SetForm
from rlpd_gx.safe_sets.convex import ConvexSet, Form
from rlpd_gx.safe_sets.separable import Rows


class GroupBudgets(ConvexSet):
    """For each group m of components: sum_i share[m, i] |a_i| + heat[m, i] a_i^2 <= budget[m]."""

    kind = "group_budgets"
    parameters: ClassVar = {"share": ("m", "d"), "heat": ("m", "d"), "budget": ("m",)}
    unbounded: ClassVar = {"share": 0.0, "heat": 0.0, "budget": np.inf}

    def _form(self):
        d = self.dimension
        return Form(
            np.full(d, -np.inf), np.full(d, np.inf), Rows(self.share, self.share, self.heat, self.budget)
        )

    def shifted(self, delta):
        return type(self)(self.share, self.heat, self.budget - np.asarray(delta)[..., None])


def used(share, heat, x):
    """What each group uses, from the definition."""
    return (share * np.abs(x[..., None, :]) + heat * x[..., None, :] ** 2).sum(-1)


def draw(count, groups=2, d=4, seed=0):
    rng = np.random.default_rng(seed)
    share, heat = rng.random((2, count, groups, d))
    return share, heat, rng.uniform(0.1, 1.0, (count, groups)), 2 * rng.normal(size=(count, d))


def reference(share, heat, budget, a):
    """The nearest point by Clarabel: t >= |x|, and |(sqrt(heat) x, (s - 1/4))| <= s + 1/4 with s = budget - share t."""
    groups, d = share.shape
    eye, zero = np.eye(d), np.zeros((d, d))
    blocks, right = [np.block([[eye, -eye], [-eye, -eye]])], [np.zeros(2 * d)]
    kinds = [clarabel.NonnegativeConeT(2 * d)]
    for g in range(groups):
        top = np.concatenate([np.zeros(d), share[g]])
        blocks.append(np.vstack([top, np.hstack([-np.diag(np.sqrt(heat[g])), zero]), top]))
        right.append(np.concatenate([[budget[g] + 0.25], np.zeros(d), [budget[g] - 0.25]]))
        kinds.append(clarabel.SecondOrderConeT(d + 2))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    objective = sparse.csc_matrix(np.diag(np.r_[np.ones(d), np.zeros(d)]))
    solver = clarabel.DefaultSolver(
        objective,
        np.r_[-a, np.zeros(d)],
        sparse.csc_matrix(np.vstack(blocks)),
        np.concatenate(right),
        kinds,
        settings,
    )
    return np.array(solver.solve().x)[:d]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_projects_onto_the_nearest_allowed_action(dtype):
    share, heat, budget, a = draw(200)
    a = a.astype(dtype)
    safe = GroupBudgets(share, heat, budget)
    found = safe.nearest(a)
    assert found.found.all()
    assert (used(share, heat, found.point.astype(float)) <= budget).all()
    for i in range(0, 200, 10):
        nearest = reference(share[i], heat[i], budget[i], a[i].astype(float))
        assert np.linalg.norm(found.point[i] - a[i]) <= np.linalg.norm(nearest - a[i]) * (1 + 1e-6) + 1e-7
    tensor = safe.project(torch.from_numpy(a))
    np.testing.assert_allclose(tensor.numpy(), found.point, atol=1e-6)


def test_it_is_stored_and_read_back_by_its_own_kind():
    share, heat, budget, a = draw(5)
    safe = GroupBudgets(share, heat, budget)
    assert safe.spec == {"kind": "group_budgets", "dimension": 4, "rows": 2}
    again = gx.decode(safe.encode(), safe.spec)
    assert type(again) is GroupBudgets
    assert np.array_equal(again.project(a), safe.project(a))
    whole = gx.Intersection(gx.Box(-np.ones(4), np.ones(4)), safe)
    again = gx.decode(whole.encode(), whole.spec)
    assert np.array_equal(again[3].project(a[3]), whole.project(a)[3])


def test_it_brings_everything_only_and_its_shapes():
    share, heat, budget, _ = draw(5)
    whole = gx.Intersection(gx.Box(-np.ones(4), np.ones(4)), GroupBudgets(share[0], heat[0], budget[0]))
    assert whole.everything().contains(np.ones(4))
    assert not whole.contains(np.ones(4))
    alone = whole.only(np.full(4, 0.7))
    assert alone.project(np.zeros(4)) == pytest.approx(np.full(4, 0.7))
    assert alone.encode().shape == whole.encode().shape
    assert GroupBudgets.shapes(3, rows=2) == {"share": (2, 3), "heat": (2, 3), "budget": (2,)}
    assert GroupBudgets(*GroupBudgets.unbounded_parameters(3)).contains(np.full(3, 1e6))


class Budgets(SetForm):
    """A rule from group budgets: fn(state) -> (share [m, d], heat [m, d], budget [m])."""

    name, kind = "budgets", GroupBudgets


def test_a_guardian_certifies_with_it():
    rule = maker(Budgets())(lambda state: ([[1.0, 1.0]], [[1.0, 1.0]], [0.75]), name="budget")
    guardian = gx.Guardian(gym.spaces.Box(-1, 1, (2,), np.float32), rule)
    verdict = guardian.certify(None, np.array([1.0, 0.0], np.float32))
    assert verdict.status == "projected"
    assert verdict.action == pytest.approx([0.5, 0.0], abs=1e-6)  # 0.5 + 0.25 = 0.75
    assert used(np.ones((1, 2)), np.ones((1, 2)), verdict.action.astype(float))[0] <= 0.75
