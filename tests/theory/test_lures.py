"""Lure MDPs: the closed forms are right, the guard finds them, and an unguarded backup provably does not."""

import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.theory import LURES, guarded_value_iteration, lure_bandit, lure_corridor, lure_gate

VARIANTS = [
    *(family() for family in LURES),
    lure_bandit(0.99, (-3.0, -1.0, -1.0), 0.0),
    lure_bandit(0.0, (1.0,), 5.0),
    lure_corridor(1, 0.5, 1.0, 1.5),
    lure_corridor(12, 0.95, 2.0, 50.0),
    lure_gate(1, 0.01, 0.99, 5.0),
    lure_gate(6, 0.9, 0.5, 0.1),
]
each_lure = pytest.mark.parametrize("lure", VARIANTS, ids=lambda lure: lure.name)


@each_lure
def test_the_guarded_answer_is_the_closed_form(lure):
    solution = guarded_value_iteration(lure.mdp, 1e-9)
    np.testing.assert_allclose(solution.values, lure.values, rtol=0, atol=1e-9)


@each_lure
@pytest.mark.parametrize("alpha", [2.0, 0.2, 0.01])
def test_the_soft_guarded_answer_is_the_closed_form(lure, alpha):
    solution = guarded_value_iteration(lure.mdp, 1e-8, alpha=alpha)
    np.testing.assert_allclose(solution.values, lure.soft_values(alpha), rtol=0, atol=1e-8)


@each_lure
def test_the_lure_is_forbidden_and_worth_most(lure):
    q = guarded_value_iteration(lure.mdp, 1e-9).q[lure.state]
    assert not lure.mdp.allowed[lure.state, lure.action]
    assert q[lure.action] > np.delete(q, lure.action).max() + 1e-3


@each_lure
@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_unguarded_iteration_fails(lure, alpha):
    """It is wrong at the start, by far more than it claims to be exact, and walks into the lure."""
    unguarded = guarded_value_iteration(lure.unguarded_mdp, 1e-9, alpha=alpha)
    truth = lure.soft_values(alpha) if alpha else lure.values
    assert (
        unguarded.values[lure.start]
        > truth[lure.start] + 1e-3
        > truth[lure.start] + 1e3 * unguarded.error_bound
    )
    if not alpha:
        np.testing.assert_allclose(unguarded.values, lure.unguarded_values, rtol=0, atol=1e-8)
        assert unguarded.policy[lure.state] == lure.action


def test_the_error_reaches_states_that_do_not_see_the_lure():
    lure = lure_corridor(8)
    guarded = guarded_value_iteration(lure.mdp, 1e-9)
    unguarded = guarded_value_iteration(lure.unguarded_mdp, 1e-9)
    assert lure.mdp.allowed[: lure.state].all()
    assert (guarded.policy[: lure.state] == 0).all()
    assert (unguarded.policy[: lure.state] == 1).all()


def test_terminal_states_earn_no_entropy():
    for lure in VARIANTS:
        if lure.terminal is not None:
            assert guarded_value_iteration(lure.mdp, 1e-9, alpha=5.0).values[lure.terminal] == pytest.approx(
                0, abs=1e-9
            )


@pytest.mark.parametrize(
    ("family", "arguments"),
    [
        (lure_bandit, {"lure_reward": 1.0}),
        (lure_bandit, {"safe_rewards": ()}),
        (lure_corridor, {"length": 40}),
        (lure_corridor, {"exit_reward": 0.0}),
        (lure_gate, {"success": 1.0}),
        (lure_gate, {"num_tries": 0}),
    ],
)
def test_parameters_without_a_lure_are_refused(family, arguments):
    with pytest.raises(gx.GxError):
        family(**arguments)
