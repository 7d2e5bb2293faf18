"""The compiled projection: it answers like the reference, or leaves the answer to it."""

import os
import pickle
import subprocess
import sys
import time
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_projection import COMBINATIONS, both_ways, draw, set_of

import rlpd_gx as gx
from rlpd_gx.safe_sets import compiled
from rlpd_gx.safe_sets.separable import Rows

pytest.importorskip("numba")


def answers(safe, a):
    """What the kernel itself says about a batch of sets."""
    low, high, rows = safe.form
    d = a.shape[-1]
    low, high = (np.broadcast_to(v, a.shape) for v in (low, high))
    return compiled.nearest(a, low, high, rows, np.ones((1, d)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_kernel_and_reference_agree(name, dtype):
    rng = np.random.default_rng(7)
    settled = total = 0
    for d in (1, 2, 6, 12, 20):
        a, low, high, constraints = draw(rng, COMBINATIONS[name], 300, d)
        safe, a = set_of(low, high, constraints), a.astype(dtype)
        (point, found, empty), reference = both_ways(safe, a)
        assert np.array_equal(found, reference.found)
        assert np.array_equal(empty, reference.empty)
        far = np.linalg.norm(point.astype(float) - a, axis=-1)
        theirs = np.linalg.norm(reference.point.astype(float) - a, axis=-1)
        tolerance = 1e-7 if dtype is np.float64 else 1e-5
        assert far == pytest.approx(theirs, rel=tolerance, abs=tolerance)
        settled += (answers(safe, a).status != compiled.UNSURE).sum()
        total += len(a)
    assert settled > 0.95 * total


def test_compiling_is_announced_once_and_loading_is_not(tmp_path):
    module = "import numba\n@numba.njit(cache=True)\ndef double(x):\n    return 2 * x\n"
    (tmp_path / "small.py").write_text(module)
    script = (
        "from rlpd_gx.compilers import announced\nimport small\n"
        "with announced('compiling'):\n    small.double(1.0), small.double(1), small.double(2.0)\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": paths}
    said = [
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True).stderr
        for _ in range(2)
    ]
    assert said == ["compiling\n", ""]


wide = st.floats(-1e9, 1e9, allow_nan=False) | st.sampled_from(
    [0.1, 1 / 3, 5e-324, 1e-310, 1e200, 0.0, np.inf]
)


@given(st.data(), st.integers(1, 4), st.integers(0, 3))
def test_what_the_kernel_answers_satisfies_the_rows_exactly(data, d, k):
    """Whatever the numbers are: a point of the kernel breaks neither bounds nor rows, in fractions."""
    number = hnp.arrays(np.float64, (k, d), elements=wide)
    pos, size, quad = data.draw(number), np.abs(data.draw(number)), np.abs(data.draw(number))
    bound = data.draw(hnp.arrays(np.float64, k, elements=wide))
    low, high = np.sort(data.draw(hnp.arrays(np.float64, (2, d), elements=wide)), axis=0)
    a = data.draw(hnp.arrays(np.float64, (1, d), elements=wide))
    with np.errstate(all="ignore"):
        rows = Rows(pos[None], (size - pos)[None], quad[None], bound[None])
        a = a.astype(data.draw(st.sampled_from([np.float32, np.float64])))
        (point,), (status,), _ = compiled.nearest(a, low[None], high[None], rows, np.ones((1, d)))
    if status > compiled.MOVED:
        return
    assert (point == point.astype(a.dtype)).all()
    assert ((low <= point) & (point <= high)).all()
    for p, n, q, c in zip(rows.pos[0], rows.neg[0], quad, bound, strict=True):
        if c == np.inf:
            continue
        x = [Fraction(v) for v in point.tolist()]
        terms = zip(p.tolist(), n.tolist(), q.tolist(), x, strict=True)
        total = sum(
            (Fraction(f) if v >= 0 else -Fraction(g)) * v + Fraction(h) * v * v for f, g, h, v in terms
        )
        assert total <= Fraction(c)


def rules(name):
    return {
        "bounds": gx.bounds_rule(lambda s: (-np.abs(s[:3]), np.abs(s[3:6])), name="bounds"),
        "rows": gx.halfspace_rule(lambda s: (s.reshape(2, 3), [0.3, 0.2]), name="rows"),
        "two": gx.l1_rule(lambda s: (s[:3], 1.0), name="l1")
        & gx.ellipsoid_rule(lambda s: (np.abs(s[3:]), 0.5), name="ellipsoid"),
        "empty": gx.halfspace_rule(lambda s: (s.reshape(2, 3), [-9.0, 0.2]), name="rows"),
        "shifted": gx.positive_sum_rule(lambda s: (s[:3], 1.0), name="sum").shifted(0.25),
    }[name]


@pytest.mark.parametrize("mode", ["enforce", "monitor"])
@pytest.mark.parametrize("name", ["bounds", "rows", "two", "empty", "shifted"])
def test_a_single_verdict_is_that_of_a_batch(name, mode):
    rng = np.random.default_rng(3)
    for dtype in (np.float32, np.float64):
        space = gym.spaces.Box(-1, 1, (3,), dtype)
        one, many = (gx.Guardian(space, rules(name), mode=mode, metric=[1, 2, 3]) for _ in range(2))
        for _ in range(60):
            state, proposed = rng.normal(size=6), (1.5 * rng.normal(size=3)).astype(dtype)
            verdict = one.certify(state, proposed)
            other = many.certify_batch(state[None], proposed[None])[0]
            assert verdict.status == other.status
            assert verdict.binding == other.binding
            assert verdict.exact == other.exact
            assert verdict.action == pytest.approx(other.action, rel=1e-6, abs=1e-6)
            assert verdict.action.dtype == other.action.dtype
            assert verdict.distance == pytest.approx(other.distance, rel=1e-6, abs=1e-6)
            assert dict(verdict.margins) == pytest.approx(dict(other.margins), abs=1e-9)
            assert verdict.executed_margin == pytest.approx(other.executed_margin, abs=1e-6)
            assert np.array_equal(verdict.safe_set.encode(), other.safe_set.encode())
            assert verdict.safe_set.spec == other.safe_set.spec
        assert one.audit.tally.corrections == many.audit.tally.corrections > 0


def test_a_rule_is_asked_once_even_where_the_shortcut_gives_up():
    asked = []

    def rows(state):
        asked.append(state)
        return [[1.0, 0.0], [-1.0, 0.0]], [-1.0, -1.0]  # nothing satisfies both

    guardian = gx.Guardian(gym.spaces.Box(-1, 1, (2,), np.float64), gx.halfspace_rule(rows))
    assert guardian.certify(0, np.zeros(2)).inevitable
    assert asked == [0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_one_set_is_projected_like_a_batch(name, dtype):
    a, low, high, constraints = draw(np.random.default_rng(11), COMBINATIONS[name], 40, 5)
    batch = set_of(low, high, constraints)
    points = batch.project(a.astype(dtype))
    for i, proposal in enumerate(a.astype(dtype)):
        found = batch[i].nearest(proposal)
        assert found.found
        assert not found.empty
        assert found.point.dtype == dtype
        assert np.array_equal(found.point, points[i])


def test_a_set_that_has_projected_can_be_sent_to_another_process():
    safe = gx.Intersection(gx.Box([-1.0], [1.0]), gx.WeightedL1([2.0], 1.0))
    safe.project(np.array([0.9]))
    assert pickle.loads(pickle.dumps(safe)).project(np.array([0.9])) == pytest.approx([0.5])


def test_without_numba_the_reference_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "rlpd_gx.safe_sets.kernel", raising=False)
    monkeypatch.delattr("rlpd_gx.safe_sets.kernel", raising=False)
    compiled.kernel.cache_clear()
    try:
        assert compiled.kernel() is None
        safe = gx.Intersection(gx.Box([-1.0], [1.0]), gx.WeightedL1([2.0], 1.0))
        assert safe.project(np.array([0.9])) == pytest.approx([0.5])
    finally:
        monkeypatch.undo()
        compiled.kernel.cache_clear()
    assert compiled.kernel() is not None


def test_nothing_else_imports_numba():
    """Importing the package, and help, must not take the second that numba takes."""
    code = "import sys, rlpd_gx.safe_sets, rlpd_gx.guardian, rlpd_gx.cli; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0


def test_it_is_faster_than_the_reference(monkeypatch):
    """A ratio of interleaved runs, far below what is measured (bench/guardian.py), so that noise does not decide."""
    rng = np.random.default_rng(0)
    safe = gx.Intersection(
        gx.Box(-np.ones(6), np.ones(6)), gx.Polytope(rng.normal(size=(512, 4, 6)), np.full((512, 4), 0.5))
    )
    a = rng.normal(size=(512, 6))
    space = gym.spaces.Box(-1, 1, (6,), np.float64)
    w = rng.normal(size=6)
    quick = gx.Guardian(space, gx.l1_rule(lambda s: (w, 1.0)))
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "kernel", lambda: None)
        slow = gx.Guardian(space, gx.l1_rule(lambda s: (w, 1.0)))

    def seconds(call, without):
        with pytest.MonkeyPatch.context() as patch:
            if without:
                patch.setattr(compiled, "kernel", lambda: None)
            start = time.process_time()
            call()
            return time.process_time() - start

    batch, single = [], []
    for _ in range(7):
        batch.append(seconds(lambda: safe.project(a), True) / seconds(lambda: safe.project(a), False))
        verdicts = [
            seconds(lambda g=g: [g.certify(None, v) for v in a[:20]], g is slow) for g in (slow, quick)
        ]
        single.append(verdicts[0] / verdicts[1])
    assert np.median(batch) > 3
    assert np.median(single) > 2
