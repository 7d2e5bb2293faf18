"""Segments against copies of the whole ring, taken at the same moments."""

import resource
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_story import FRAMES, LARGE, MIXED, Story, check_batch
from test_samplers import offline_story, online_story, tell

from rlpd_gx.errors import GxError
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.samplers import Uniform
from rlpd_gx.replay.segments import Segments


def whole(ring):
    arrays, state = ring.state()
    return {name: array.tobytes() for name, array in arrays.items()}, state


def turn(story, generator):
    """A step in some lanes, some of which end, or some lanes begin anew, even in the middle."""
    lanes = len(story.lanes)
    if generator.random() < 0.2:
        story.begin((generator.random(lanes) < 0.5).tolist())
    else:
        where = (generator.random(lanes) < 0.8) & story.running
        ended = generator.random(lanes) < 0.15
        story.add(where.tolist(), (ended & (generator.random(lanes) < 0.5)).tolist(), ended.tolist())


@settings(max_examples=25)
@given(
    layout=st.sampled_from([FRAMES, LARGE, MIXED]),
    lanes=st.integers(1, 3),
    lane_rows=st.integers(2, 9),
    gaps=st.lists(st.integers(0, 15), min_size=1, max_size=6),
    resumed=st.integers(0, 5),
    seed=st.integers(0, 999),
)
def test_every_kept_moment_comes_back_bit_for_bit(layout, lanes, lane_rows, gaps, resumed, seed):
    generator = np.random.default_rng(seed)
    with TemporaryDirectory() as folder:
        ring, segments, kept = Ring(layout, lanes * lane_rows, lanes), Segments(folder), []
        story = Story(layout, lanes, lane_rows, ring)
        story.begin([True] * lanes)
        for moment, gap in enumerate(gaps):
            for _ in range(gap):
                turn(story, generator)
            segments.append(ring)
            kept.append((segments.names, *whole(ring)))
            if moment == resumed:  # in another process, so to speak
                ring, segments = Ring(layout, lanes * lane_rows, lanes), Segments(folder)
                segments.restore(ring, kept[-1][0], kept[-1][2])
                story.ring = ring
        for names, arrays, state in kept:
            again = Ring(layout, lanes * lane_rows, lanes)
            tell(Story(layout, lanes, lane_rows, again), [3, 4])  # full of other things
            Segments(folder).restore(again, names, state)
            assert whole(again) == (arrays, state)
        if story.usable(stack=2):
            generator = np.random.default_rng(0)
            hybrid = Hybrid(online=again, offline=None, sampler=Uniform(), generator=generator, stack=2)
            check_batch(hybrid.sample(1.0), story, story, stack=2, gamma=0.99)


def test_a_segment_holds_only_what_is_new(tmp_path):
    """The files grow with what was added, and segments that the ring has overwritten are not needed."""
    story = online_story(FRAMES, [20], lanes=2, lane_rows=50)
    segments = Segments(tmp_path)
    segments.append(story.ring)
    assert [(e["first"], e["stop"]) for e in segments.names] == [([0, 0], [21, 21])]
    tell(story, [10])
    segments.append(story.ring)
    # from two rows before the newest: it has become a step since, or its predecessor was cut off
    assert [(e["first"], e["stop"]) for e in segments.names][1:] == [([19, 19], [32, 32])]
    tell(story, [30])
    segments.append(story.ring)
    assert [e["name"] for e in segments.names] == ["000001.zip", "000002.zip", "000003.zip"]
    tell(story, [20])  # 84 rows were written, 34 are gone: the whole first segment
    segments.append(story.ring)
    assert [e["name"] for e in segments.names] == ["000003.zip", "000004.zip"]
    assert len(list(tmp_path.iterdir())) == 4
    segments.prune({tmp_path / "000002.zip"})
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["000002.zip", "000003.zip", "000004.zip"]
    assert list(segments.files) == [tmp_path / "000003.zip", tmp_path / "000004.zip"]


@pytest.mark.parametrize("change", ["step", "cut"])
def test_rows_that_change_after_they_were_kept_are_kept_again(tmp_path, change):
    """A step completes the newest row, a cut truncates the one before it: forgetting either is noticed."""
    lost = {"step": 2, "cut": 1}[change]
    for forgotten in (0, lost):
        folder = tmp_path / str(forgotten)
        segments, told = Segments(folder), online_story(FRAMES, [5], lanes=1, lane_rows=20)
        told.begin([True])
        told.add([True], [False], [False])
        segments.append(told.ring)
        if change == "step":
            told.add([True], [False], [False])
        else:
            told.begin([True])
        segments._written += forgotten
        segments.append(told.ring)
        again = Ring(FRAMES, 20)
        Segments(folder).restore(again, segments.names, told.ring.state()[1])
        assert (whole(again) == whole(told.ring)) == (forgotten == 0)


def test_missing_damaged_or_foreign_segments_are_refused(tmp_path):
    story = online_story(FRAMES, [5, 5])
    segments = Segments(tmp_path)
    segments.append(story.ring)
    tell(story, [3])
    segments.append(story.ring)
    state, file = story.ring.state()[1], tmp_path / "000001.zip"
    with pytest.raises(GxError, match="the saved ring is 2 lanes of 12 rows"):
        segments.restore(Ring(FRAMES, 24), segments.names, state)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(GxError, match=r"000001.zip is damaged"):
        segments.restore(Ring(FRAMES, 24, 2), segments.names, state)
    file.unlink()
    with pytest.raises(GxError, match=r"000001.zip is missing"):
        segments.restore(Ring(FRAMES, 24, 2), segments.names, state)


def test_what_a_killed_process_left_is_cleaned_up_and_its_number_not_used(tmp_path):
    (tmp_path / ".000001.zip.abc").write_bytes(b"half")
    (tmp_path / "000007.zip").write_bytes(b"a segment that no checkpoint came to name")
    segments = Segments(tmp_path)
    segments.append(online_story(FRAMES, [5]).ring)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000007.zip", "000008.zip"]
    assert segments.names[0]["name"] == "000008.zip"
    segments.prune(())
    assert [p.name for p in tmp_path.iterdir()] == ["000008.zip"]


def test_a_full_disk_is_a_sentence_and_changes_nothing(tmp_path):
    """Files are limited to what the first segment takes: writing the second really fails."""
    story = online_story(LARGE, [5], lanes=1, lane_rows=100)
    segments = Segments(tmp_path)
    segments.append(story.ring)
    names, before = segments.names, sorted(tmp_path.iterdir())
    tell(story, [60])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[0].stat().st_size, limits[1]))
    try:
        with pytest.raises(GxError, match=r"000002.zip: cannot be written: File too large; make room for it"):
            segments.append(story.ring)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert segments.names == names
    assert sorted(tmp_path.iterdir()) == before
    segments.append(story.ring)  # once there is room again
    again = Ring(LARGE, 100)
    Segments(tmp_path).restore(again, segments.names, story.ring.state()[1])
    assert whole(again) == whole(story.ring)


def test_hybrid_state_goes_on_apart_from_the_ring():
    data = offline_story(FRAMES, [30]).timeline()

    def make(seed):
        ring = online_story(FRAMES, [9, 9]).ring
        generator = np.random.default_rng(seed)
        return Hybrid(online=ring, offline=data, sampler=Uniform(), generator=generator, batch_size=7)

    first, second = make(0), make(1)
    first.sample(0.3)
    second.load_state(first.state())
    assert first.sample(0.3).row.tolist() == second.sample(0.3).row.tolist()
    assert first.counts == second.counts
