"""The observed contraction, and that observing it can tell a contraction from what is none."""

import numpy as np
import pytest

import rlpd_gx as gx
from rlpd_gx.theory import contraction_factor, guarded_max, random_mdp, soft_max, soft_policy
from rlpd_gx.theory.contraction import Observed, Verification, verify_discount
from rlpd_gx.theory.operators import policy_value


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99])
def test_guarded_operators_contract_by_gamma_and_no_faster(discount):
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, 20, 5, discount)
    for values_of in (lambda q: guarded_max(q, mdp.allowed), lambda q: soft_max(q, mdp.allowed, 0.5)):
        factor = contraction_factor(mdp, values_of, rng)
        assert discount * 0.999 <= factor <= discount + 1e-9


@pytest.mark.parametrize("sign", [-1.0, 0.0])
def test_operators_that_do_not_contract_are_found_out(sign):
    """The value of a softmax policy, entropy subtracted (as the paper prints it) or left out."""
    rng = np.random.default_rng(0)
    mdp = random_mdp(rng, 20, 5, 0.9)

    def values_of(q):
        policy = soft_policy(q, mdp.allowed, 0.5)
        return policy_value(q, policy) + sign * policy_value(np.zeros_like(q), policy, 0.5)

    assert contraction_factor(mdp, values_of, rng) > 0.95


def test_entropy_added_to_the_softmax_policys_value_is_the_soft_maximum():
    rng = np.random.default_rng(1)
    q, allowed = rng.standard_normal((6, 4)), np.array([[True, True, False, True]] * 6)
    np.testing.assert_allclose(
        policy_value(q, soft_policy(q, allowed, 0.7), 0.7), soft_max(q, allowed, 0.7), rtol=1e-13
    )


def test_random_mdps_repeat_with_their_seed_and_never_have_empty_sets():
    first, second = (random_mdp(np.random.default_rng(4), 50, 3, 0.9, allowed_share=0.0) for _ in range(2))
    np.testing.assert_array_equal(first.transitions.toarray(), second.transitions.toarray())
    assert (first.allowed.sum(axis=1) == 1).all()
    assert not first.inevitable.any()
    with pytest.raises(gx.GxError, match="at least one state"):
        random_mdp(np.random.default_rng(0), 0, 3, 0.9)


def test_verification_reports_and_can_fail():
    seen = verify_discount(np.random.default_rng(0), 0.9, 2, 20, 4, 20, 0.5)
    assert seen.holds
    assert 0 < seen.hard.error <= seen.hard.bound
    assert not Verification(0.9, Observed(0.91, 0.0, 1.0), seen.soft).holds
    assert not Verification(0.9, seen.hard, Observed(0.9, 1.0, 0.5)).holds
