"""Compiled sampling against numpy: the same batches, bit for bit."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_story import FRAMES, LARGE, MIXED, check_batch
from test_hybrid import same
from test_samplers import SAMPLERS, offline_story, online_story

from rlpd_gx.replay import compiled
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.samplers import Draw, Uniform

pytest.importorskip("numba")

lengths = st.lists(st.integers(1, 14), min_size=1, max_size=6)


def batches(kernel, online, offline, ratios, interval=1, **options):
    """A batch for each ratio, and the state of the buffer after them, with this kernel (None: with numpy)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "kernel", lambda: kernel)
        options = {"sampler": Uniform(), "generator": np.random.default_rng(5)} | options
        hybrid = Hybrid(online=online, offline=offline, **options)
        return [hybrid.sample(ratio, interval) for ratio in ratios], hybrid.state()


@settings(max_examples=200)
@given(
    online=lengths,
    offline=lengths,
    layout=st.sampled_from([FRAMES, LARGE, MIXED]),
    name=st.sampled_from(sorted(SAMPLERS)),
    ratios=st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0]), min_size=1, max_size=3),
    num_envs=st.integers(1, 3),
    rows_per_env=st.integers(2, 15),
    stack=st.integers(1, 5),
    interval=st.integers(1, 6),
    updates=st.integers(1, 3),
    batch_size=st.integers(1, 9),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1]),
    seed=st.integers(0, 10**6),
)
def test_compiled_batches_are_those_of_numpy(
    online, offline, layout, name, ratios, num_envs, rows_per_env, interval, seed, **options
):
    ring = online_story(layout, online, num_envs, rows_per_env).ring
    sources = (ring, offline_story(layout, offline).timeline())

    def run(kernel):
        generator = np.random.default_rng(seed)
        return batches(
            kernel, *sources, ratios, interval, sampler=SAMPLERS[name], generator=generator, **options
        )

    (found, state), (expected, expected_state) = run(compiled.kernel()), run(None)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    assert [dtypes(a) for a in found] == [dtypes(b) for b in expected]
    assert state == expected_state


def dtypes(batch):
    return {name: (v.dtype, v.shape) for name, v in batch.arrays().items() if isinstance(v, np.ndarray)}


@pytest.mark.parametrize("broken", ["usable_rows", "stack_rows", "copy_rows", "copy_steps"])
def test_a_wrong_loop_would_be_seen(broken):
    kernel = compiled.kernel()

    def usable_rows(*arguments):
        return kernel.usable_rows(*arguments[:-2], 1, arguments[-1])  # whole stacks or not

    def stack_rows(rows, episode_step, *rest):
        # across episodes
        kernel.stack_rows(rows, np.repeat(99, 2 * len(episode_step)).astype(np.int32)[::2], *rest)

    def copy_rows(source, index, places, out):
        kernel.copy_rows(source, index, places[::-1].copy(), out)

    def copy_steps(records, terminated, rows_per_env, *rest):
        kernel.copy_steps(records, terminated, rows_per_env - 1, *rest)  # the seam one row early

    wrong = SimpleNamespace(**vars(kernel) | {broken: locals()[broken]})
    ring = online_story(LARGE, [10, 10, 3], rows_per_env=11).ring  # its oldest row is within an episode
    sources = (ring, offline_story(LARGE, [6, 11]).timeline())
    options = {"stack": 3, "batch_size": 64}
    (expected,), _ = batches(None, *sources, [0.5], **options)
    assert same(batches(kernel, *sources, [0.5], **options)[0][0], expected)
    assert not same(batches(wrong, *sources, [0.5], **options)[0][0], expected)


def test_columns_of_a_read_only_file_are_read():
    online, offline = online_story(MIXED, [9, 12]), offline_story(MIXED, [6, 11])
    data = offline.timeline()
    for column in data.columns().values():
        column.flags.writeable = False
    (batch,), _ = batches(compiled.kernel(), online.ring, data, [0.5], stack=2, batch_size=32)
    check_batch(batch, online, offline, stack=2, gamma=0.99)


@pytest.mark.parametrize("row", [-1, 10**6])
@pytest.mark.parametrize("stack", [1, 3])
def test_a_row_that_does_not_exist_is_refused(row, stack):
    """Samplers may come from outside, and compiled code would read any memory."""

    class Wrong:
        def draw(self, extent, shape, interval, stack, generator):
            return Draw(np.full(shape, row))

    with pytest.raises(IndexError, match="does not exist"):
        batches(compiled.kernel(), online_story(LARGE, [9]).ring, None, [1.0], sampler=Wrong(), stack=stack)


def test_a_batch_that_is_kept_stays_as_it_is():
    ring = online_story(MIXED, [9, 12]).ring
    (first, second), _ = batches(compiled.kernel(), ring, None, [1.0, 1.0], batch_size=8)
    for name, column in vars(first).items():
        if isinstance(column, np.ndarray):
            assert not np.shares_memory(column, vars(second)[name])


def test_no_sample_waits_for_a_compiler():
    """All that samplers and layouts need is compiled, or loaded, when the buffer is made."""
    script = """
from test_compiled_sampling import *
kernel = compiled.kernel()
functions = (kernel.usable_rows, kernel.stack_rows, kernel.copy_rows, kernel.copy_steps)
before = [len(function.signatures) for function in functions]
for layout in (FRAMES, MIXED):
    ring = online_story(layout, [9, 12]).ring
    for sampler in SAMPLERS.values():
        for stack, updates in ((1, 1), (3, 2)):
            data = offline_story(layout, [6, 11]).timeline()
            for name, column in data.columns().items():
                column.flags.writeable = name.startswith("observation")
            batches(kernel, ring, data, [0.5, 0.3], 2, sampler=sampler, stack=stack, updates=updates)
assert [len(function.signatures) for function in functions] == before
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_without_numba_numpy_samples(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "rlpd_gx.replay.kernel", raising=False)
    compiled.kernel.cache_clear()
    try:
        assert compiled.kernel() is None
        story = online_story(FRAMES, [9])
        hybrid = Hybrid(
            online=story.ring, offline=None, sampler=Uniform(), generator=np.random.default_rng(0)
        )
        check_batch(hybrid.sample(1.0), story, story, stack=1, gamma=0.99)
    finally:
        monkeypatch.undo()
        compiled.kernel.cache_clear()
    assert compiled.kernel() is not None
