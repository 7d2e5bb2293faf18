"""The solver against exact answers: its certificate, linear programming, the soft operator."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from theory_reference import (
    ExactMDP,
    distance,
    exact_hard,
    exact_soft,
    lp_values,
    reachable_tolerance,
    tiny_mdps,
)

import rlpd_gx as gx
from rlpd_gx.theory import (
    GuardedSolution,
    TabularMDP,
    evaluate_policy,
    guarded_max,
    guarded_value_iteration,
    random_mdp,
    renormalise,
    soft_policy,
)


def build(arrays, as_sparse=False):
    transitions, rewards, discount, allowed = arrays
    if as_sparse:
        transitions = [sparse.csr_array(transitions[:, a]) for a in range(transitions.shape[1])]
    return TabularMDP(transitions, rewards, discount, allowed)


def certificate_holds(solution: GuardedSolution, exact) -> bool:
    values, q = exact
    return max(distance(solution.values, values), distance(solution.q, q)) <= Fraction(solution.error_bound)


@settings(max_examples=150, deadline=None)
@given(tiny_mdps(), st.integers(0, 12), st.booleans())
def test_certified_bound_holds_for_values_q_and_policy(arrays, digits, as_sparse):
    tolerance = reachable_tolerance(arrays, digits)
    solution = guarded_value_iteration(build(arrays, as_sparse), tolerance)
    values, q = exact_hard(arrays)
    assert solution.error_bound <= tolerance
    assert certificate_holds(solution, (values, q))
    assert arrays[3][np.arange(len(values)), solution.policy].all()
    exact = ExactMDP(*arrays, Fraction)
    achieved = exact.evaluate(exact.pure(solution.policy))
    assert max(v - a for v, a in zip(values, achieved, strict=True)) <= 2 * Fraction(solution.error_bound)


@settings(max_examples=40, deadline=None)
@given(tiny_mdps(), st.integers(0, 12), st.floats(1e-3, 1e3))
def test_certified_bound_holds_for_the_soft_operator(arrays, digits, alpha):
    tolerance = reachable_tolerance(arrays, digits) * (1 + alpha)
    solution = guarded_value_iteration(build(arrays), tolerance, alpha=alpha)
    assert solution.error_bound <= tolerance
    assert certificate_holds(solution, exact_soft(arrays, alpha))
    np.testing.assert_array_equal(solution.policy, soft_policy(solution.q, arrays[3], alpha))
    assert (solution.policy[~arrays[3]] == 0).all()


@settings(max_examples=60, deadline=None)
@given(tiny_mdps(), st.integers(0, 12), st.booleans(), st.randoms(use_true_random=False))
def test_certified_bound_holds_for_policy_evaluation(arrays, digits, as_sparse, random):
    mdp, exact = build(arrays, as_sparse), ExactMDP(*arrays, Fraction)
    weights = [
        [Fraction(random.randint(0, 4)) for _ in range(mdp.num_actions)] for _ in range(mdp.num_states)
    ]
    policy = [
        [w / sum(row) for w in row] if sum(row) else [Fraction(1, len(row))] * len(row) for row in weights
    ]
    tolerance = reachable_tolerance(arrays, digits)
    floats = np.array([[float(p) for p in row] for row in policy])
    solution = evaluate_policy(mdp, floats, tolerance)
    as_given = [[Fraction(p) / sum(map(Fraction, row)) for p in row] for row in floats.tolist()]
    values = exact.evaluate(as_given)
    assert certificate_holds(solution, (values, exact.q(values)))


def slow_chain():
    """Twelve states in a ring that mixes slowly: errors travel far, so careless stopping shows."""
    states = 12
    transitions = np.zeros((states, 2, states))
    for action, step in enumerate((1, -1)):
        transitions[range(states), action, (np.arange(states) + step) % states] = 1.0
    rewards = np.zeros((states, 2))
    rewards[0] = 1.0
    return transitions, rewards, 0.99, np.ones((states, 2), dtype=bool)


def test_the_check_of_the_certificate_can_fail():
    arrays = slow_chain()
    solution = guarded_value_iteration(build(arrays), 1e-1)
    exact = exact_hard(arrays)
    assert certificate_holds(solution, exact)
    true_error = float(max(distance(solution.values, exact[0]), distance(solution.q, exact[1])))
    assert true_error > 0
    assert not certificate_holds(replace(solution, error_bound=0.99 * true_error), exact)


def test_stopping_on_a_small_change_is_not_enough():
    """The careless rule, "stop when the change is below tolerance", is wrong by a hundred times here."""
    arrays = slow_chain()
    mdp, tolerance, values, change = build(arrays), 1e-3, np.zeros(12), np.inf
    while change > tolerance:
        q = mdp.q_from(values)
        backed_up = guarded_max(q, mdp.allowed)
        change, values = np.abs(backed_up - values).max(), backed_up
    careless = GuardedSolution(q, values, q.argmax(axis=1), tolerance, 0)
    exact = exact_hard(arrays)
    assert not certificate_holds(careless, exact)
    assert certificate_holds(guarded_value_iteration(mdp, tolerance), exact)


def test_the_bound_is_never_looser_than_the_plain_one():
    """The plain one is gamma/(1-gamma) * last change; the first change from zero is known here."""
    mdp = build(slow_chain())
    bounds = []
    guarded_value_iteration(mdp, 1e-6, progress=lambda iterations, bound: bounds.append(bound))
    first_change = guarded_max(mdp.q_from(np.zeros(12)), mdp.allowed)
    assert bounds[0] <= 0.99 / 0.01 * np.abs(first_change).max()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95, 0.99])
def test_agrees_with_linear_programming(seed, discount):
    mdp = random_mdp(np.random.default_rng(seed), 40, 5, discount, allowed_share=0.3)
    solution = guarded_value_iteration(mdp, 1e-9)
    expected = lp_values(mdp)
    np.testing.assert_allclose(solution.values, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(solution.q, mdp.q_from(expected), rtol=0, atol=1e-8)
    unguarded = guarded_value_iteration(mdp.unguarded(), 1e-9)
    assert np.abs(unguarded.values - expected).max() > 1e-3, "the comparison would not notice a missing guard"


def test_forms_of_the_same_mdp_agree():
    rng = np.random.default_rng(3)
    transitions = rng.dirichlet(np.ones(6) / 3, size=(6, 3))
    by_successor, allowed = rng.standard_normal((6, 3, 6)), rng.random((6, 3)) < 0.5
    allowed[:, 1] = True
    averaged = (transitions * by_successor).sum(axis=-1)
    by_action = [sparse.coo_array(transitions[:, a]) for a in range(3)]
    stacked = sparse.csr_matrix(transitions.reshape(18, 6))
    rewards_by_action = [sparse.csr_array(by_successor[:, a]) for a in range(3)]
    solutions = [
        guarded_value_iteration(TabularMDP(t, r, 0.9, allowed), 1e-11)
        for t in (transitions, by_action, stacked)
        for r in (averaged, by_successor, rewards_by_action, sparse.csr_array(by_successor.reshape(18, 6)))
    ]
    assert len(solutions) == 12
    for solution in solutions:
        np.testing.assert_allclose(solution.q, solutions[0].q, rtol=0, atol=2e-11)
        np.testing.assert_array_equal(solution.policy, solutions[0].policy)


@pytest.mark.parametrize("seed", range(5))
def test_soft_tends_to_hard_as_alpha_falls(seed):
    mdp = random_mdp(np.random.default_rng(seed), 30, 4, 0.9)
    hard = guarded_value_iteration(mdp, 1e-9)
    gaps = []
    for alpha in (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-300):
        soft = guarded_value_iteration(mdp, 1e-9, alpha=alpha)
        gap = (soft.values - hard.values).max()
        assert (soft.values - hard.values).min() > -2e-9, "entropy can only add"
        assert gap <= alpha * np.log(4) / (1 - 0.9) + 2e-9
        gaps.append(gap)
    assert gaps[0] > 1e-2, "a solver that ignores alpha would pass otherwise"
    assert all(later <= earlier + 2e-9 for earlier, later in pairwise(gaps))
    assert gaps[-1] < 2e-9
    np.testing.assert_array_equal(soft.policy.argmax(axis=1), hard.policy)
    np.testing.assert_allclose(soft.policy.max(axis=1), 1.0)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_policy_found_is_worth_the_values_found(alpha):
    mdp = random_mdp(np.random.default_rng(5), 30, 4, 0.95)
    solution = guarded_value_iteration(mdp, 1e-8, alpha=alpha)
    worth = evaluate_policy(mdp, solution.policy, 1e-8, alpha=alpha)
    np.testing.assert_allclose(worth.values, solution.values, rtol=0, atol=4e-8)
    uniform = renormalise(np.full((30, 4), 0.25), mdp.allowed)
    assert (evaluate_policy(mdp, uniform, 1e-8, alpha=alpha).values < solution.values - 1e-3).any()


def test_policy_evaluation_takes_forbidden_actions_as_they_are():
    lure = gx.theory.lure_bandit()
    always_lured = evaluate_policy(lure.mdp, np.array([lure.action]), 1e-9)
    np.testing.assert_allclose(always_lured.values, lure.unguarded_values)
    half = evaluate_policy(lure.mdp, np.array([[0.5, 0.0, 0.5]]), 1e-9)
    np.testing.assert_allclose(half.values, (0.25 + 1.0) / 0.1)


def test_discount_zero_is_one_backup_and_exact():
    mdp = random_mdp(np.random.default_rng(0), 5, 3, 0.0)
    solution = guarded_value_iteration(mdp, 1e-12)
    assert solution.iterations == 1
    np.testing.assert_array_equal(solution.q, mdp.rewards)


def test_rows_a_little_off_one_are_normalised():
    """float32 tables miss one by some 1e-7: at gamma = 0.999 that would move values by 1e-1 if left alone."""
    transitions = np.array([[[0.3, 0.7]], [[0.6, 0.4]]])
    rewards, allowed = np.array([[1.0], [2.0]]), np.ones((2, 1), dtype=bool)
    exact = guarded_value_iteration(TabularMDP(transitions, rewards, 0.999, allowed), 1e-6)
    blurred = TabularMDP(transitions * (1 + 5e-7), rewards, 0.999, allowed)
    np.testing.assert_allclose(guarded_value_iteration(blurred, 1e-6).values, exact.values, rtol=0, atol=2e-6)


def test_progress_reports_every_backup():
    seen = []
    mdp = build(slow_chain())
    solution = guarded_value_iteration(
        mdp, 1e-6, progress=lambda iterations, bound: seen.append((iterations, bound))
    )
    assert [iterations for iterations, _ in seen] == list(range(1, solution.iterations + 1))
    assert seen[-1][1] == solution.error_bound <= 1e-6 < seen[-2][1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tolerance": 0.0}, "tolerance is 0.0; give a number above 0"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"alpha": -1.0}, "alpha is -1.0; give a temperature of 0 or more"),
        ({"tolerance": 1e-15}, "finer than float64 can certify"),
        ({"tolerance": 1e-15, "alpha": 0.1}, "finer than float64 can certify"),
    ],
)
def test_impossible_requests_get_a_sentence(arguments, sentence):
    with pytest.raises(gx.GxError, match=sentence):
        guarded_value_iteration(build(slow_chain()), **arguments)


def test_the_tolerance_offered_instead_is_reachable():
    mdp = build(slow_chain())
    with pytest.raises(gx.GxError) as refusal:
        guarded_value_iteration(mdp, 1e-16)
    offered = float(str(refusal.value).split("ask for ")[1].split()[0])
    assert guarded_value_iteration(mdp, offered).error_bound <= offered < 1e-9


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ([0, 7], "takes action 7 in state 1; actions are 0 to 1"),
        ([[0.5, 0.5], [1.5, -0.5]], "probability of action 1 in state 1 is -0.5"),
        ([[0.5, 0.5], [np.nan, 1.0]], "probability of action 0 in state 1 is nan"),
        ([[0.5, 0.5], [0.5, 0.4]], "in state 1 sum to 0.9, not 1"),
        ([[0.5, 0.5]], r"shape \(1, 2\)"),
    ],
)
def test_malformed_policies_get_a_sentence(policy, sentence):
    mdp = TabularMDP(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), 0.9, np.ones((2, 2), dtype=bool))
    with pytest.raises(gx.GxError, match=sentence):
        evaluate_policy(mdp, policy)


def test_renormalise_keeps_proportions_and_names_hopeless_states():
    allowed = np.array([[True, True, False], [False, True, False]])
    safe = renormalise([[0.2, 0.2, 0.6], [0.5, 0.5, 0.0]], allowed)
    np.testing.assert_allclose(safe, [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    with pytest.raises(gx.GxError, match="any allowed action of state 1"):
        renormalise([[0.2, 0.2, 0.6], [0.5, 0.0, 0.5]], allowed)
