import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_story import FRAMES, LARGE, MIXED, Story, check_batch, check_windows
from test_samplers import offline_story, online_story, tell

from rlpd_gx.errors import GxError
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.samplers import Draw, Span, Stride, Uniform
from rlpd_gx.replay.segments import Segments
from rlpd_gx.schedules import Abrupt, Constant, Interval, Sigmoid
from rlpd_gx.types import Batch

OFFLINE = offline_story(FRAMES, [30, 40])
DATA = OFFLINE.timeline()


def make(online, offline=DATA, *, sampler=None, seed=0, kind=np.random.PCG64, **settings) -> Hybrid:
    generator = np.random.Generator(kind(seed))
    return Hybrid(
        online=online, offline=offline, sampler=sampler or Uniform(), generator=generator, **settings
    )


@pytest.mark.parametrize(
    "schedule",
    [Constant(0.1), Constant(1 / 3), Sigmoid(500, 0.03, 0.5), Abrupt(250, 0.0, 0.7), Abrupt(250, 0.0, 1.0)],
    ids=lambda schedule: repr(schedule),
)
def test_every_minibatch_of_a_schedule_has_the_exact_number_of_online_rows(schedule):
    batch_size, updates = 20, 3
    hybrid = make(online_story(FRAMES, [25], 1, 30).ring, batch_size=batch_size, updates=updates)
    total, handed_out = Fraction(0), 0
    for step in range(500):
        online_ratio = schedule(step)
        counts = np.count_nonzero(hybrid.sample(online_ratio).is_online, axis=1)
        for count in counts.tolist():
            exact = Fraction(online_ratio) * batch_size
            total += exact
            handed_out += count
            assert abs(count - exact) < 1
            # what was handed out is never further than half a row from what the schedule asked for so far
            assert abs(handed_out - total) <= Fraction(1, 2) + Fraction(1, 10**6)
    assert hybrid.counts.online == handed_out
    assert hybrid.counts.offline == 500 * updates * batch_size - handed_out
    assert hybrid.counts.missing_online == 0


@settings(max_examples=60, deadline=None)
@given(
    ratios=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    batch_size=st.integers(1, 40),
    updates=st.integers(1, 4),
)
def test_any_mixes_are_met_to_half_a_row(ratios, batch_size, updates):
    hybrid = make(online_story(FRAMES, [45], 1, 50).ring, batch_size=batch_size, updates=updates)
    total = handed_out = 0
    for online_ratio in ratios:
        batch = hybrid.sample(online_ratio)
        counts = batch.is_online.sum(axis=1)
        np.testing.assert_array_equal(batch.is_online, np.arange(batch_size) < counts[:, None])
        total += Fraction(online_ratio) * batch_size * updates
        handed_out += int(counts.sum())
        assert abs(handed_out - total) <= Fraction(1, 2) + Fraction(1, 10**6)


def test_online_rows_that_do_not_exist_yet_are_offline_and_counted():
    ring = Ring(FRAMES, 20)
    hybrid = make(ring, batch_size=10, updates=2)
    assert not hybrid.sample(0.5).is_online.any()
    assert hybrid.counts.missing_online == 10
    story = online_story(FRAMES, [3], 1, 20)
    hybrid = make(story.ring, batch_size=10, updates=2)
    batch = hybrid.sample(0.5)
    assert batch.is_online.sum(axis=1).tolist() == [3, 3]
    assert (hybrid.counts.online, hybrid.counts.offline, hybrid.counts.missing_online) == (6, 14, 4)
    check_batch(batch, story, OFFLINE, stack=1, gamma=0.99)


def test_windows_stay_whole_in_the_minibatch():
    story = online_story(FRAMES, [12, 9], 2, 30)
    hybrid = make(story.ring, sampler=Stride(4), batch_size=16, updates=3)
    batch = hybrid.sample(0.5, interval=2)
    for source, rows in ((story, batch.row[:, :8]), (OFFLINE, batch.row[:, 8:])):
        draw = Draw(rows, np.zeros_like(rows, np.bool_))
        check_windows(draw, source, width=4, interval=2, stack=1)
    assert hybrid.counts.filled == 0


def test_stacks_share_one_block():
    """The frames that s and s' have in common are copied once, and torch takes both as they are."""
    import torch

    data = offline_story(LARGE, [20]).timeline()
    hybrid = make(online_story(LARGE, [12], 1, 30).ring, data, batch_size=4, stack=3)
    batch = hybrid.sample(0.5)
    assert batch.observation.shape == batch.next_observation.shape == (1, 4, 3, 30, 40)
    assert np.shares_memory(batch.observation, batch.next_observation)
    assert torch.from_numpy(batch.observation).data_ptr() == batch.observation.ctypes.data


def test_either_source_may_be_left_out():
    story = online_story(FRAMES, [4], 1, 20)
    assert make(story.ring, None, batch_size=16).sample(1.0).is_online.all()
    assert not make(None, batch_size=16).sample(0.0).is_online.any()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: make(None, None), "there is nothing to sample from"),
        (lambda: make(Ring(MIXED, 9)), "online rows are .* but offline rows are"),
        (lambda: make(Ring(FRAMES, 9), stack=0), "must be 1 or more"),
        (lambda: make(Ring(FRAMES, 9)).sample(1.2), "online_ratio is the fraction of online rows"),
        (lambda: make(Ring(FRAMES, 9)).sample(float("nan")), "online_ratio is the fraction of online rows"),
        (lambda: make(Ring(FRAMES, 9)).sample(0.5, 0), "interval must be 1 step or more"),
        (lambda: make(None).sample(0.5), "no online ring"),
        (lambda: make(Ring(FRAMES, 9), None).sample(0.5), "no offline data for the rest"),
        (lambda: make(Ring(FRAMES, 9), None).sample(1.0), "holds no step yet"),
    ],
)
def test_what_cannot_be_sampled_gets_one_sentence(call, sentence):
    with pytest.raises(GxError, match=sentence):
        call()


def same(a: Batch, b: Batch) -> bool:
    """Bit for bit, whatever the record holds."""

    def leaves(value):
        if isinstance(value, np.ndarray):
            return [value.tobytes()]
        parts = value.values() if isinstance(value, dict) else vars(value).values()
        return [leaf for part in parts if part is not None for leaf in leaves(part)]

    return leaves(a) == leaves(b)


def run(hybrid, story, first, last) -> list[Batch]:
    """Steps and samples, with everything on a schedule."""
    online_ratio, interval = Sigmoid(60, 0.1, 0.6), Interval(60, 1, 5)
    batches = []
    for step in range(first, last):
        if not any(story.running):
            story.begin([True, True])
        story.add([True, True], [step % 7 == 6] * 2, [False, False])
        batches.append(hybrid.sample(online_ratio(step), interval(step)))
    return batches


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
@pytest.mark.parametrize(
    "sampler", [Uniform(), Stride(3), Span("tree-backup")], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("layout", [LARGE, MIXED], ids=["large", "dict"])
@pytest.mark.parametrize("saved_after", [0, 40])
def test_restored_goes_on_bit_for_bit(tmp_path, layout, sampler, kind, saved_after):
    data = offline_story(layout, [30, 40]).timeline()
    options = {"sampler": sampler, "batch_size": 7, "updates": 2, "stack": 2, "kind": kind}
    story = online_story(layout, [], 2, 12)
    hybrid = make(story.ring, data, **options)
    run(hybrid, story, 0, saved_after)
    segments = Segments(tmp_path)
    segments.append(story.ring)
    saved = json.dumps({"segments": segments.names, "ring": story.ring.state()[1], "hybrid": hybrid.state()})
    expected = run(hybrid, story, saved_after, 60)

    # another ring, full of other things, with another seed
    other = online_story(layout, [9, 9, 9], 2, 12)
    again = make(other.ring, data, seed=99, **options)
    again.sample(0.37)
    state = json.loads(saved)
    Segments(tmp_path).restore(other.ring, state["segments"], state["ring"])
    again.load_state(state["hybrid"])
    replayed = online_story(layout, [], 2, 12)
    run(make(replayed.ring, data, **options), replayed, 0, saved_after)  # the story so far
    replayed.ring = other.ring
    found = run(again, replayed, saved_after, 60)
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))
    assert again.counts == hybrid.counts
    for name, column in story.ring.timeline.columns().items():
        np.testing.assert_array_equal(other.ring.timeline.columns()[name], column)


def test_another_kind_of_generator_is_refused():
    state = make(online_story(FRAMES, [5]).ring).state()
    with pytest.raises(GxError, match="the generator saved is a PCG64"):
        make(online_story(FRAMES, [5]).ring, kind=np.random.MT19937).load_state(state)


def test_nothing_of_a_ring_that_could_not_be_read_is_sampled():
    ring = online_story(FRAMES, [7, 30]).ring
    hybrid = make(ring)

    def read(name, target):
        target[:1] = 1
        raise GxError("the rest is damaged")

    with pytest.raises(GxError, match="damaged"):
        ring.restore(read, online_story(FRAMES, [5, 5]).ring.state()[1])
    assert not hybrid.sample(0.5).is_online.any()
    story = tell(Story(FRAMES, 2, 12, ring), [3, 9, 5])  # the ring is empty, and works
    check_batch(hybrid.sample(0.5), story, OFFLINE, stack=1, gamma=0.99)
