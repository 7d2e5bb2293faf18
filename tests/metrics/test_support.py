"""Action novelty and support KL."""

import numpy as np
import pytest
from scipy.stats import entropy, norm

from rlpd_gx.metrics import support


def test_novelty_is_measured_against_what_the_data_finds_unusual() -> None:
    held_out = np.arange(1, 101) / 100  # 5th percentile just below 0.06
    assert support.action_novelty(np.array([0.01, 0.05, 0.5, 0.9]), held_out) == 0.5
    assert support.action_novelty(held_out, held_out) == 0.05  # the data itself, by definition
    assert support.action_novelty(np.full(4, 0.01), np.full(100, 0.001)) == 0  # unlikely, but usual there


def test_kl_is_that_of_scipy_and_finite_outside_the_support() -> None:
    policy, clone = (
        np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]),
        np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]]),
    )
    mixed = 0.99 * clone + 0.01 / 3
    assert support.support_kl(policy, clone) == pytest.approx(entropy(policy, mixed, axis=1).mean())
    assert np.isfinite(support.support_kl(policy, clone))
    assert support.support_kl(policy, clone, floor=1e-9) > 2 * support.support_kl(policy, clone)
    assert support.support_kl(clone, clone) == pytest.approx(0, abs=0.02)
    assert support.support_kl(policy, clone) > 1  # a policy that leaves the data shows


def test_sampled_kl_of_gaussians() -> None:
    generator = np.random.default_rng(0)
    draws = generator.normal(0.0, 0.2, (4, 20_000))
    own, clone = norm.logpdf(draws, 0, 0.2), norm.logpdf(draws, 0.1, 0.3)
    exact = np.log(0.3 / 0.2) + (0.2**2 + 0.1**2) / (2 * 0.3**2) - 0.5
    assert support.support_kl_sampled(own, clone, -np.log(2), floor=1e-9) == pytest.approx(exact, abs=0.01)
    far = norm.logpdf(draws, 50.0, 0.3)
    floored = support.support_kl_sampled(own, far, -np.log(2))
    assert floored == pytest.approx(np.mean(own) - np.log(0.01) + np.log(2), abs=1e-6)
