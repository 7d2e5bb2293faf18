"""Masks are decoded once and looked up after that."""

import numpy as np
import pytest

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner import categorical
from rlpd_gx.learner.categorical import Guarded, counted
from rlpd_gx.safe_sets import Mask

N = 5
JOYSTICK = np.array([[0, 0], [0, 1], [1, 0], [-1, 0], [0, -1]], dtype=float)


@pytest.mark.parametrize("untested", ["allowed", "forbidden"])
@pytest.mark.parametrize("most", [1_000, 3])  # with room for three, the table begins again all the time
def test_looked_up_masks_are_the_decoded_ones(untested, most, monkeypatch):
    monkeypatch.setattr(categorical, "MOST_MASKS", most)
    config = LearnerConfig(backup="project", untested=untested)
    spec = Mask(np.ones(N)).spec
    guarded = Guarded(N, spec, config, JOYSTICK, "cpu")
    generator = np.random.default_rng(0)
    for _ in range(20):
        masks = Mask(*(generator.random((2, 16, N)) < 0.6))
        found = guarded.allowed(masks.encode())
        allowed = counted(masks, untested)
        assert np.array_equal(found.actions.numpy(), allowed)
        assert np.array_equal(found.tested.numpy(), masks.allowed.sum(axis=-1))
        every = np.broadcast_to(np.arange(N), (16, N))
        nearest = Mask(allowed[:, None], None, JOYSTICK).nearest(every).point
        assert np.array_equal(found.corrected.numpy(), nearest)


def test_rows_may_be_strided():
    guarded = Guarded(N, Mask(np.ones(N)).spec, LearnerConfig(backup="project"), JOYSTICK, "cpu")
    masks = Mask(np.random.default_rng(1).random((6, 3, N)) < 0.5)
    found = guarded.allowed(masks.encode()[:, 1])
    assert np.array_equal(found.actions.numpy(), counted(masks[:, 1], "allowed"))
