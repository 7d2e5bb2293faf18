"""Coverage and visitation entropy of SimHash codes."""

import numpy as np
import pytest

from rlpd_gx.metrics import exploration as e


def test_coverage_and_entropy_of_known_counts() -> None:
    assert e.coverage(np.array([7, 7, 3, 7])) == 2
    assert e.visitation_entropy(np.array([1, 2, 3, 4])) == pytest.approx(np.log(4))
    assert e.visitation_entropy(np.array([1, 1, 1, 1])) == 0
    assert e.visitation_entropy(np.array([1, 1, 1, 2])) < np.log(2)  # distinct codes alone do not make it


def test_growth_is_read_every_thousand_steps_and_at_the_end() -> None:
    found = e.growth(np.arange(2_500) // 10)
    assert found["step"] == [1_000, 2_000, 2_500]
    assert found["coverage"] == [100, 200, 250]
    assert found["visitation_entropy"] == pytest.approx(np.log([100, 200, 250]))
    assert e.growth(np.zeros(0, int))["step"] == []


def test_near_states_share_a_code_and_far_ones_do_not() -> None:
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(500, 6))
    code = e.SimHash(reference)
    states = generator.normal(size=(200, 6))
    assert (code(states) == code(states + 1e-9)).mean() > 0.99
    assert (code(states) == code(-states)).mean() < 0.01
    assert e.coverage(code(states)) > 150
    assert (code(states) == e.SimHash(reference)(states)).all()  # the seed is fixed: runs can be compared
    assert (code(states) != e.SimHash(reference, seed=1)(states)).any()


def test_units_of_a_feature_do_not_decide() -> None:
    generator = np.random.default_rng(1)
    reference, scale = generator.normal(size=(300, 3)), np.array([1.0, 1e6, 1e-6])
    states = generator.normal(size=(50, 3))
    assert (e.SimHash(reference)(states) == e.SimHash(reference * scale)(states * scale)).all()


def test_images_are_averaged_into_small_frames() -> None:
    images = np.zeros((2, 84, 84), np.uint8)
    images[1, :12, :12] = 140
    rows = e.features(images)
    assert rows.shape == (2, 49)
    assert rows[1, 0] == 140
    assert rows[1, 1:].sum() == rows[0].sum() == 0
    assert e.features(np.zeros((2, 128), np.uint8)).shape == (2, 128)  # bytes that are no image
