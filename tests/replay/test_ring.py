from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replay_story import FRAMES, LARGE, MIXED, Story, check_batch

from rlpd_gx.errors import GxError
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.samplers import Span, Stride, Uniform, fixed
from rlpd_gx.replay.storage import nbytes
from rlpd_gx.types import Transition


class RingMachine(RuleBasedStateMachine):
    """Any sequence of vector steps, resets and samples agrees with the story."""

    @initialize(
        lanes=st.integers(1, 3), lane_rows=st.integers(2, 9), layout=st.sampled_from([FRAMES, LARGE, MIXED])
    )
    def start(self, lanes, lane_rows, layout):
        self.ring = Ring(layout, lanes * lane_rows, lanes)
        self.story = Story(layout, lanes, lane_rows, self.ring)
        self.story.begin([True] * lanes)

    @rule(data=st.data(), count=st.integers(1, 4))
    def steps(self, data, count):
        flags = st.lists(st.booleans(), min_size=self.ring.lanes, max_size=self.ring.lanes)
        for _ in range(count):
            where = [a and b for a, b in zip(data.draw(flags), self.story.running, strict=True)]
            rare = [a and b for a, b in zip(data.draw(flags), data.draw(flags), strict=True)]
            self.story.add(where, rare, data.draw(flags) if any(rare) else [False] * self.ring.lanes)

    @rule(data=st.data())
    def begin(self, data):
        flags = st.lists(st.booleans(), min_size=self.ring.lanes, max_size=self.ring.lanes)
        self.story.begin(data.draw(flags))

    @rule()
    def begin_where_ended(self):
        self.story.begin([not running for running in self.story.running])

    @rule(
        sampler=st.sampled_from([Uniform(), fixed(3), Stride(2), Span(), Span("tree-backup")]),
        stack=st.integers(1, 4),
        interval=st.integers(1, 4),
        seed=st.integers(0, 99),
    )
    def sample(self, sampler, stack, interval, seed):
        if self.story.usable(stack):
            hybrid = Hybrid(
                online=self.ring,
                offline=None,
                sampler=sampler,
                generator=np.random.default_rng(seed),
                batch_size=5,
                updates=2,
                stack=stack,
                gamma=0.9,
            )
            batch = hybrid.sample(1.0, interval)
            span = interval if isinstance(sampler, Span) else 1
            check_batch(batch, self.story, self.story, stack=stack, gamma=0.9, interval=span)

    @invariant()
    def the_same_rows_are_usable(self):
        if hasattr(self, "ring"):
            for stack in (1, 2, 4):
                usable = len(self.story.usable(stack))
                assert self.ring.extent.available(stack, enough=10**9) == usable
                assert (self.ring.extent.available(stack, enough=5) > 5) == (usable > 5)


RingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestRingMachine = RingMachine.TestCase


def two_lanes(path=None) -> tuple[Ring, Story]:
    """Two lanes of 7 rows after episodes of 5 and 3 steps and an open one: the seam lies inside episodes."""
    ring = Ring(MIXED, 14, lanes=2, path=path)
    story = Story(MIXED, 2, 7, ring)
    for length in (5, 3, 4):
        story.begin([True, True])
        for n in range(length):
            story.add([True, True], [n == length - 1 < 3, False], [False, n == length - 1 < 3])
    return ring, story


def test_each_row_is_drawn_equally_often():
    ring, story = two_lanes()
    draws = 40_000
    for stack in (1, 3):
        usable = story.usable(stack)
        rows = ring.extent.draw(draws, stack, np.random.default_rng(1))
        numbers, counts = np.unique(rows, return_counts=True)
        assert {story.at(number).number for number in numbers.tolist()} == {row.number for row in usable}
        share = 1 / len(usable)
        assert (abs(counts / draws - share) < 5 * np.sqrt(share / draws)).all()


def test_a_memory_mapped_ring_holds_the_same(tmp_path):
    mapped, _ = two_lanes(tmp_path / "ring.bin")
    plain, _ = two_lanes()
    assert (tmp_path / "ring.bin").stat().st_size == nbytes(MIXED, 14)
    for name, column in plain.timeline.columns().items():
        np.testing.assert_array_equal(mapped.timeline.columns()[name], column)


def test_a_lane_that_resets_itself_at_the_next_step_is_left_out():
    """Gymnasium's NEXT_STEP mode: the step after the end is no step, and brings the first observation."""
    ring = Ring(FRAMES, 20, lanes=2)
    story = Story(FRAMES, 2, 10, ring)
    story.begin([True, True])
    ended = [False, False]
    for n in range(12):
        story.begin(ended)
        terminated = [n % 3 == 2 and not ended[0], False]
        story.add([not end for end in ended], terminated, [False, False])
        ended = terminated
    assert ring.extent.available(4, enough=99) == len(story.usable(4))
    assert "lanes" in repr(ring)


def step(**changed):
    zeros = np.zeros(2, np.float32)
    flags = np.zeros(2, np.bool_)
    values = {
        "proposed_action": np.zeros(2, np.int64),
        "executed_action": np.zeros(2, np.int64),
        "reward": zeros,
        "terminated": flags,
        "truncated": flags,
        "margin": zeros,
        "unsafe_event": flags,
        "next_observation": np.zeros((2, 2, 2), np.uint8),
        "next_safe_set": np.zeros((2, 4), np.uint8),
        "executed": ~flags,
    }
    return Transition(**(values | changed))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"reward": np.zeros(3)}, r"reward must be float32 \(2,\), got float64 \(3,\)"),
        ({"executed_action": np.zeros(2)}, r"executed_action must be int64 \(2,\), got float64"),
        ({"terminated": np.zeros(2, np.int64)}, "terminated must be bool"),
        ({"next_observation": {"pixels": np.zeros((2, 2, 2), np.uint8)}}, "the observation must be"),
        ({"next_observation": np.zeros((2, 4, 2, 2), np.uint8)}, "observation must be uint8"),
        ({"executed": np.array([True])}, r"executed must be bool \(2,\)"),
    ],
)
def test_a_bad_step_is_refused_and_leaves_no_trace(changed, sentence):
    ring = Ring(FRAMES, 8, lanes=2)
    ring.begin(np.zeros((2, 2, 2), np.uint8), np.zeros((2, 4), np.uint8))
    before = {name: column.copy() for name, column in ring.timeline.columns().items()}
    with pytest.raises(GxError, match=sentence):
        ring.add(step(**changed))
    for name, column in ring.timeline.columns().items():
        np.testing.assert_array_equal(column, before[name])
    assert ring.extent.steps == 0


def test_a_step_needs_a_running_episode():
    ring = Ring(FRAMES, 8, lanes=2)
    with pytest.raises(GxError, match=r"no episode is running in lanes \[0, 1\]"):
        ring.add(step())
    ring.begin(np.zeros((2, 2, 2), np.uint8), np.zeros((2, 4), np.uint8))
    ring.add(step(truncated=np.array([False, True])))
    with pytest.raises(GxError, match=r"no episode is running in lanes \[1\]"):
        ring.add(step())
    ring.add(step(executed=np.array([True, False])))


def test_a_ring_needs_room():
    with pytest.raises(GxError, match="two rows or more for each environment, got 5 for 3"):
        Ring(FRAMES, 5, lanes=3)


def test_a_safe_set_may_come_later():
    """Loops that ask the rules once for a state know its safe set only after the row was begun."""
    with_it, later = Ring(MIXED, 14, lanes=2), Ring(MIXED, 14, lanes=2)
    first, second = Story(MIXED, 2, 7, with_it), Story(MIXED, 2, 7, LateSafeSets(later))
    for story in (first, second):
        for length in (5, 3, 4):  # more than the lanes hold: zeros are written over old codes too
            story.begin([True, True])
            for n in range(length):
                story.add([True, n % 2 == 0], [False, False], [False, False])
    for name, column in with_it.timeline.columns().items():
        np.testing.assert_array_equal(later.timeline.columns()[name], column)


class LateSafeSets:
    """A ring that is told each safe set in two calls, one for each lane, after its row."""

    def __init__(self, ring):
        self.ring = ring

    def begin(self, observation, safe_set, where):
        self.ring.begin(observation, where=where)
        self._complete(safe_set, where)

    def add(self, transition):
        self.ring.add(replace(transition, next_safe_set=None))
        self._complete(transition.next_safe_set, transition.executed)

    def _complete(self, safe_set, where):
        newest = self.ring.timeline.safe_set[self.ring._newest(np.flatnonzero(where))]
        assert not newest.any()
        for lane in (0, 1):
            self.ring.complete(safe_set, where & (np.arange(2) == lane))


def test_what_cannot_be_completed_gets_one_sentence():
    ring = Ring(FRAMES, 8, lanes=2)
    codes = np.zeros((2, 4), np.uint8)
    with pytest.raises(GxError, match="no observation yet to complete"):
        ring.complete(codes)
    ring.begin(np.zeros((2, 2, 2), np.uint8), where=np.array([True, False]))
    ring.complete(codes, where=np.array([True, False]))
    with pytest.raises(GxError, match="no observation yet to complete"):
        ring.complete(codes)
    with pytest.raises(GxError, match=r"safe_set must be uint8 \(2, 4\)"):
        ring.complete(codes[:, :3], where=np.array([True, False]))
