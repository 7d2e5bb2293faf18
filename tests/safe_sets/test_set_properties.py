"""What every safe set promises, as properties."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rlpd_gx as gx

# Zeros are frequent, and there is nothing between zero and 1e-4: a threshold of 1e-15 is a rounding error in disguise,
# for which a projection may honestly say that it did not converge.
numbers = st.floats(-3, 3, allow_nan=False).map(lambda v: round(v, 4))
thresholds = st.floats(0, 4, allow_nan=False).map(lambda v: round(v, 4))


def vectors(n, elements=numbers):
    return hnp.arrays(np.float64, n, elements=elements)


@st.composite
def convex_sets(
    draw, kinds=("box", "polytope", "weighted_l1", "positive_sum", "ellipsoid", "intersection", "union")
):
    """(set, actions): a set that contains zero, with a batch of four actions."""
    d = draw(st.integers(1, 6))
    safe = draw(_set(d, kinds))
    return safe, draw(hnp.arrays(np.float64, (4, d), elements=numbers))


@st.composite
def _set(draw, d, kinds):
    kind = draw(st.sampled_from(kinds))
    if kind == "box":
        return gx.Box(-draw(vectors(d, thresholds)), draw(vectors(d, thresholds)))
    if kind == "polytope":
        m = draw(st.integers(1, 4))
        return gx.Polytope(
            draw(hnp.arrays(np.float64, (m, d), elements=numbers)), draw(vectors(m, thresholds))
        )
    if kind == "ellipsoid":
        return gx.Ellipsoid(np.abs(draw(vectors(d))), draw(thresholds))
    if kind in ("weighted_l1", "positive_sum"):
        return {"weighted_l1": gx.WeightedL1, "positive_sum": gx.PositiveSum}[kind](
            draw(vectors(d)), draw(thresholds)
        )
    simple = ("box", "polytope", "weighted_l1", "positive_sum", "ellipsoid")
    parts = [draw(_set(d, simple)) for _ in range(draw(st.integers(2, 3)))]
    return gx.Intersection(*parts) if kind == "intersection" else gx.Union(*parts)


@given(convex_sets())
def test_the_projection_is_allowed_and_stays_where_it_is(case):
    safe, actions = case
    found = safe.nearest(actions)
    assert found.found.all()  # zero is in every set drawn
    assert safe.contains(found.point).all()
    again = safe.project(found.point)
    inside = safe.margin(found.point) >= 0
    assert np.array_equal(again[inside], found.point[inside])
    np.testing.assert_allclose(again, found.point, rtol=0, atol=1e-6)


wild = st.floats(-3, 3, allow_nan=False, width=32).map(float)
wild_thresholds = st.floats(0, 4, allow_nan=False, width=32).map(float)


@given(st.data())
def test_with_numbers_of_any_size_an_answer_is_right_or_it_is_none(data):
    """Down to subnormal weights and thresholds: what is found is allowed and stays, and no set is called empty."""
    d = data.draw(st.integers(1, 4))
    parts = [
        gx.WeightedL1(data.draw(vectors(d, wild)), data.draw(wild_thresholds)),
        gx.Ellipsoid(np.abs(data.draw(vectors(d, wild))), data.draw(wild_thresholds)),
        gx.Polytope(
            data.draw(hnp.arrays(np.float64, (2, d), elements=wild)), data.draw(vectors(2, wild_thresholds))
        ),
    ]
    actions = data.draw(hnp.arrays(np.float64, (4, d), elements=wild))
    for safe in (*parts, gx.Intersection(*parts)):
        found = safe.nearest(actions)
        assert not found.empty.any()  # zero is in every set drawn
        assert np.isnan(found.point[~found.found]).all()
        point = found.point[found.found]
        assert safe.contains(point).all()
        assert (
            np.linalg.norm(point - actions[found.found], axis=-1)
            <= np.linalg.norm(actions[found.found], axis=-1) + 1e-8
        ).all()


@given(convex_sets())
def test_an_allowed_action_is_never_moved(case):
    safe, actions = case
    allowed = safe.margin(actions) >= 0
    assert np.array_equal(safe.project(actions)[allowed], actions[allowed])


@given(convex_sets())
def test_no_allowed_action_is_nearer(case):
    """Independent of any solver: no other allowed action we can name lies nearer than the projection."""
    safe, actions = case
    point = safe.project(actions)
    others = np.concatenate([point, np.zeros_like(actions), 0.5 * point, safe.project(-actions)])
    others = others[safe.margin(others) >= 0]
    if len(others):
        distance = np.linalg.norm(actions[:, None] - others, axis=-1).min(axis=1)
        assert (np.linalg.norm(actions - point, axis=-1) <= distance + 1e-8).all()


@given(convex_sets())
def test_a_batch_is_the_same_as_one_by_one(case):
    safe, actions = case
    together = safe.project(actions)
    alone = np.stack([safe.project(a) for a in actions])
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-9)
    assert np.array_equal(safe.contains(actions), [safe.contains(a) for a in actions])
    np.testing.assert_allclose(
        safe.margin(actions), [safe.margin(a) for a in actions], rtol=1e-12, atol=1e-12
    )


@given(convex_sets())
def test_torch_is_the_same_as_numpy(case):
    safe, actions = case
    tensor = torch.from_numpy(actions)
    projected = safe.project(tensor)
    assert isinstance(projected, torch.Tensor)
    np.testing.assert_allclose(projected.numpy(), safe.project(actions), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(safe.margin(tensor).numpy(), safe.margin(actions), rtol=1e-12, atol=1e-12)
    assert np.array_equal(safe.contains(tensor).numpy(), safe.contains(actions))


@given(convex_sets())
def test_decoding_gives_back_the_set(case):
    safe, actions = case
    again = gx.decode(safe.encode(), safe.spec)
    assert type(again) is type(safe)
    assert np.array_equal(again.encode(), safe.encode())
    assert np.array_equal(again.margin(actions), safe.margin(actions))
    assert np.array_equal(safe.decode(safe.encode()).project(actions), safe.project(actions))


@given(
    convex_sets(kinds=("box", "polytope", "weighted_l1", "positive_sum", "ellipsoid", "intersection")),
    thresholds,
)
def test_shifting_moves_the_margin_by_just_that(case, delta):
    safe, actions = case
    np.testing.assert_allclose(safe.shifted(delta).margin(actions), safe.margin(actions) - delta, atol=1e-9)


@settings(max_examples=50)
@given(st.integers(1, 4), st.data())
def test_batched_sets_are_the_sets_one_by_one(d, data):
    w = data.draw(hnp.arrays(np.float64, (5, d), elements=numbers))
    c = data.draw(vectors(5, thresholds))
    actions = data.draw(hnp.arrays(np.float64, (5, d), elements=numbers))
    for kind in (gx.WeightedL1, gx.PositiveSum):
        batch = gx.Intersection(gx.Box(-np.ones(d), np.ones(d)), kind(w, c))
        alone = [gx.Intersection(gx.Box(-np.ones(d), np.ones(d)), kind(w[i], c[i])) for i in range(5)]
        expected = np.stack([s.project(a) for s, a in zip(alone, actions, strict=True)])
        np.testing.assert_allclose(batch.project(actions), expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(batch[2].project(actions[2]), expected[2], rtol=1e-9, atol=1e-9)
        assert np.array_equal(gx.decode(batch.encode(), batch.spec).encode(), batch.encode())


masks = hnp.arrays(bool, st.tuples(st.just(4), st.integers(1, 20)))


@given(masks, st.data())
def test_masks_keep_every_promise(allowed, data):
    n = allowed.shape[-1]
    ids = data.draw(hnp.arrays(np.int64, 4, elements=st.integers(0, n - 1)))
    embedding = data.draw(st.none() | hnp.arrays(np.float64, (n, 2), elements=numbers))
    mask = gx.Mask(allowed, embedding=embedding)
    found = mask.nearest(ids)
    assert np.array_equal(found.found, allowed.any(axis=-1))
    assert np.array_equal(found.empty, ~allowed.any(axis=-1))
    for i in range(4):
        if not found.found[i]:
            assert found.point[i] == -1
            continue
        assert allowed[i, found.point[i]]
        if allowed[i, ids[i]]:
            assert found.point[i] == ids[i]
        if embedding is not None:
            distance = np.linalg.norm(embedding - embedding[ids[i]], axis=-1)
            assert distance[found.point[i]] <= distance[allowed[i]].min() + 1e-12
    one_by_one = np.stack([gx.Mask(allowed[i], embedding=embedding).project(ids[i]) for i in range(4)])
    assert np.array_equal(found.point, one_by_one)
    assert np.array_equal(mask.project(torch.from_numpy(ids)).numpy(), found.point)
    again = gx.decode(mask.encode(), mask.spec)
    assert np.array_equal(again.allowed, mask.allowed)
    assert np.array_equal(again.tested, mask.tested)


def test_untested_actions_are_neither_allowed_nor_forbidden():
    mask = gx.Mask([True, True, False], tested=[True, False, True])
    assert mask.contains(np.arange(3)).tolist() == [True, False, False]
    assert np.array_equal(mask.margin(np.arange(3)), [1.0, np.nan, -1.0], equal_nan=True)
    assert gx.decode(mask.encode(), mask.spec).tested.tolist() == [True, False, True]


@given(st.data())
def test_component_masks_keep_every_promise(data):
    nvec = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    allowed = data.draw(hnp.arrays(bool, (3, sum(nvec))))
    actions = np.stack([data.draw(st.tuples(*(st.integers(0, n - 1) for n in nvec))) for _ in range(3)])
    mask = gx.ProductMask(allowed, nvec)
    found = mask.nearest(actions)
    ends = np.cumsum(nvec)
    for i in range(3):
        parts = [allowed[i, e - n : e] for e, n in zip(ends, nvec, strict=True)]
        assert found.found[i] == all(p.any() for p in parts)
        assert mask.contains(actions)[i] == all(p[x] for p, x in zip(parts, actions[i], strict=True))
        if found.found[i]:
            assert all(p[x] for p, x in zip(parts, found.point[i], strict=True))
    assert np.array_equal(gx.decode(mask.encode(), mask.spec).allowed, allowed)


def test_a_code_that_does_not_fit_is_refused():
    box = gx.Box(np.zeros(3), np.ones(3))
    with pytest.raises(gx.GxError, match="6 numbers, not 5"):
        gx.decode(box.encode()[:5], box.spec)
    with pytest.raises(gx.GxError, match="unknown kind"):
        gx.decode(np.zeros(3), {"kind": "banana"})
