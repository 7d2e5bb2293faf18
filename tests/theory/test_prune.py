"""Pruning for recursive feasibility, against a plain re-statement of its fixed point."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from rlpd_gx.theory import TabularMDP, guarded_value_iteration, prune


def cliff(length=4, as_sparse=False):
    """States 0..length-1, then a dead end, then a haven. Action 0 steps on, action 1 turns to the haven.

    Turning is forbidden in the last state, so that one is doomed; the one before it can still turn.
    """
    dead, haven = length, length + 1
    transitions = np.zeros((length + 2, 2, length + 2))
    transitions[range(length), 0, range(1, length + 1)] = 1.0
    transitions[range(length), 1, haven] = 1.0
    transitions[dead, :, dead] = transitions[haven, :, haven] = 1.0
    allowed = np.ones((length + 2, 2), dtype=bool)
    allowed[length - 1, 1] = False
    allowed[dead] = False
    rewards = np.zeros((length + 2, 2))
    rewards[:length, 0] = 1.0
    table = sparse.csr_array(transitions.reshape(-1, length + 2)) if as_sparse else transitions
    return TabularMDP(table, rewards, 0.9, allowed, fallback=1)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_prune_says_what_it_removed_and_who_is_doomed(as_sparse):
    pruning = prune(cliff(4, as_sparse))
    assert np.argwhere(pruning.removed).tolist() == [[2, 0], [3, 0]]
    assert pruning.doomed.tolist() == [3]
    assert pruning.steps_left.tolist() == [-1, -1, -1, 1, 0, -1]
    assert pruning.mdp.inevitable.tolist() == [False, False, False, True, True, False]
    assert pruning.mdp.allowed[3].tolist() == [True, False], (
        "a doomed state keeps what was allowed, not the fallback"
    )
    assert "state 2: action 0 removed" in str(pruning)
    assert "2 actions removed, 1 states doomed" in str(pruning)


def test_without_dead_ends_nothing_is_removed():
    mdp = TabularMDP(np.full((3, 2, 3), 1 / 3), np.zeros((3, 2)), 0.9, np.ones((3, 2), dtype=bool))
    pruning = prune(mdp)
    assert not pruning.removed.any()
    assert pruning.doomed.size == 0
    np.testing.assert_array_equal(pruning.mdp.allowed, mdp.allowed)


def test_a_doomed_state_holds_out_as_long_as_it_can():
    """From state 0, action 0 falls at once and action 1 after two more steps: all paths end in 3."""
    transitions = np.zeros((4, 2, 4))
    transitions[0, 0, 3] = transitions[0, 1, 1] = transitions[1, :, 2] = transitions[2, :, 3] = 1.0
    transitions[3, :, 3] = 1.0
    allowed = np.array([[True, True], [True, True], [True, True], [False, False]])
    pruning = prune(TabularMDP(transitions, np.zeros((4, 2)), 0.9, allowed, fallback=0))
    assert pruning.steps_left.tolist() == [3, 2, 1, 0]
    assert pruning.mdp.allowed[0].tolist() == [False, True]


def test_a_stored_zero_is_no_transition():
    rows = sparse.csr_array(
        (np.array([0.0, 1.0, 1.0]), np.array([1, 0, 1]), np.array([0, 2, 3])), shape=(2, 2)
    )
    pruning = prune(TabularMDP(rows, np.zeros((2, 1)), 0.9, np.array([[True], [False]]), fallback=0))
    assert not pruning.removed.any()


@st.composite
def graphs(draw):
    states, actions = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    bits = st.lists(st.booleans(), min_size=states * actions * states, max_size=states * actions * states)
    support = np.array(draw(bits)).reshape(states, actions, states)
    support[..., 0] |= ~support.any(axis=-1)
    mask = st.lists(st.booleans(), min_size=states * actions, max_size=states * actions)
    return support, np.array(draw(mask)).reshape(states, actions)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.booleans())
def test_prune_is_the_largest_safe_fixed_point(graph, as_sparse):
    support, allowed = graph
    transitions = support / support.sum(axis=-1, keepdims=True)
    table = sparse.csr_array(transitions.reshape(-1, len(support))) if as_sparse else transitions
    mdp = TabularMDP(table, np.zeros(allowed.shape), 0.9, allowed, fallback=0)
    pruning = prune(mdp)

    expected = allowed.copy()
    for _ in range(len(support)):
        bad = ~expected.any(axis=1)
        expected &= ~(support & bad).any(axis=-1)
    np.testing.assert_array_equal(allowed & ~pruning.removed, expected)
    np.testing.assert_array_equal(pruning.mdp.inevitable, ~expected.any(axis=1))
    np.testing.assert_array_equal(pruning.doomed, np.flatnonzero(~expected.any(axis=1) & allowed.any(axis=1)))

    runs = pruning.mdp.allowed
    assert not (runs & ~allowed)[allowed.any(axis=1)].any(), (
        "nothing forbidden runs where something was allowed"
    )
    assert not (support & pruning.mdp.inevitable)[runs & ~pruning.mdp.inevitable[:, None]].any()
    again = prune(pruning.mdp)
    assert not again.removed.any()
    np.testing.assert_array_equal(again.mdp.allowed, runs)


def test_the_pruned_mdp_can_be_solved():
    pruned = guarded_value_iteration(prune(cliff(4)).mdp, 1e-9)
    np.testing.assert_allclose(pruned.values, [1 + 0.9, 1.0, 0.0, 1.0, 0.0, 0.0], atol=1e-9)
    unpruned = guarded_value_iteration(cliff(4), 1e-9)
    assert unpruned.values[0] > pruned.values[0] + 1, "the cliff paid more, which is why pruning matters"
