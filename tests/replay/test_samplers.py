"""Every sampler against the story, across seams, stacks and spans, and proof that the check can fail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_story import FRAMES, LARGE, MIXED, Story, check_batch, check_windows, decoded

from rlpd_gx.errors import GxError
from rlpd_gx.replay.extent import Extent
from rlpd_gx.replay.hybrid import Hybrid
from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.samplers import Span, Stride, Uniform, fixed
from rlpd_gx.replay.storage import Storage

SAMPLERS = {
    "uniform": Uniform(),
    "fixed": fixed(4),
    "stride": Stride(3),
    "span": Span(),
    "tree-backup": Span("tree-backup"),
}


def tell(story: Story, lengths: list[int]) -> Story:
    """Episodes of these lengths in every env, in turn terminated, truncated and cut short."""
    envs = len(story.envs)
    for episode, length in enumerate(lengths):
        story.begin([True] * envs)
        for n in range(length):
            last = n == length - 1
            story.add(
                [True] * envs,
                [last and (episode + env) % 3 == 0 for env in range(envs)],
                [last and (episode + env) % 3 == 1 for env in range(envs)],
            )
    return story


def offline_story(layout, lengths) -> Story:
    return tell(Story(layout), lengths)


def online_story(layout, lengths, num_envs=2, rows_per_env=12) -> Story:
    return tell(
        Story(layout, num_envs, rows_per_env, Ring(layout, num_envs * rows_per_env, num_envs)), lengths
    )


def sample(
    online, offline, sampler, *, stack=1, interval=1, online_ratio=0.5, seed=0, batch_size=24, updates=3
):
    hybrid = Hybrid(
        online=online.ring,
        offline=offline.timeline(),
        sampler=sampler,
        generator=np.random.default_rng(seed),
        batch_size=batch_size,
        updates=updates,
        stack=stack,
        gamma=0.9,
    )
    return hybrid, hybrid.sample(online_ratio, interval)


OFFLINE = offline_story(FRAMES, [6, 11])


@pytest.mark.parametrize("layout", [FRAMES, LARGE, MIXED], ids=["small", "large", "dict"])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("interval", [1, 2, 5])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_field_belongs_to_its_row(name, interval, stack, layout):
    online, offline = online_story(layout, [5, 1, 9, 4, 7, 2]), offline_story(layout, [6, 1, 11, 3])
    _, batch = sample(online, offline, SAMPLERS[name], stack=stack, interval=interval)
    span = interval if name in ("span", "tree-backup") else 1
    assert batch.is_online.any(axis=1).all()
    assert not batch.is_online.all(axis=1).any()
    assert (batch.span_steps is not None) == (name == "tree-backup")
    check_batch(batch, online, offline, stack=stack, gamma=0.9, interval=span)


lengths = st.lists(st.integers(1, 14), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    online=lengths,
    offline=lengths,
    name=st.sampled_from(sorted(SAMPLERS)),
    num_envs=st.integers(1, 3),
    rows_per_env=st.integers(2, 15),
    stack=st.integers(1, 5),
    interval=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_any_episodes_any_seam(online, offline, name, num_envs, rows_per_env, stack, interval, seed):
    told = online_story(FRAMES, online, num_envs, rows_per_env)
    fixed_data = offline_story(FRAMES, offline)
    _, batch = sample(
        told, fixed_data, SAMPLERS[name], stack=stack, interval=interval, seed=seed, batch_size=8, updates=2
    )
    span = interval if name in ("span", "tree-backup") else 1
    check_batch(batch, told, fixed_data, stack=stack, gamma=0.9, interval=span)


def wrong_usable(self, rows, stack):
    return self.timeline.is_step[rows]


def wrong_reaches(self, rows, offset):
    episode_step = self.timeline.episode_step
    return episode_step[self.shift(rows, offset)] - episode_step[rows] == offset


def wrong_episode(self, rows, offset):
    age = self.age(rows) + offset
    return (age >= 0) & (age < self.length[rows // self.rows_per_env])


def wrong_shift(self, rows, offset):
    return np.clip(rows + offset, 0, len(self.timeline) - 1)


def wrong_stack_rows(self, rows, stack, ahead=0):
    return self.shift(rows[:, None], np.arange(1 - stack, 1 + ahead))


def wrong_draw(self, count, stack, generator):
    return generator.integers(len(self.timeline), size=count)


@pytest.mark.parametrize(
    ("method", "mutant", "sampler"),
    [
        ("usable", wrong_usable, Uniform()),
        ("usable", wrong_usable, Stride(3)),
        ("reaches", wrong_reaches, Stride(3)),
        ("reaches", wrong_episode, Stride(3)),
        ("shift", wrong_shift, Uniform()),
        ("shift", wrong_shift, Span()),
        ("stack_rows", wrong_stack_rows, Uniform()),
        ("draw", wrong_draw, Uniform()),
    ],
)
def test_a_wrong_seam_is_caught(monkeypatch, without_numba, method, mutant, sampler):
    # In the second ring the newest row is 3 steps into its episode and the oldest, beside it, is 4 steps into
    # another: the count of steps alone would not tell them apart.
    rings = [online_story(FRAMES, [5, 9, 4, 7]), online_story(FRAMES, [10, 10, 3], rows_per_env=11)]

    def caught() -> bool:
        try:
            for online in rings:
                check_sample(sampler, online, stack=3, interval=2)
        except AssertionError:
            return True
        return False

    assert not caught()
    monkeypatch.setattr(Extent, method, mutant)
    assert caught()


def check_sample(sampler, online, *, stack, interval):
    draw = sampler.draw(online.ring.extent, (4, 30), interval, stack, np.random.default_rng(5))
    if isinstance(sampler, Stride):
        check_windows(draw, online, width=sampler.width, interval=interval, stack=stack)
    _, batch = sample(online, OFFLINE, sampler, stack=stack, interval=interval, batch_size=40)
    span = interval if isinstance(sampler, Span) else 1
    check_batch(batch, online, OFFLINE, stack=stack, gamma=0.9, interval=span)


@settings(max_examples=80, deadline=None)
@given(
    told=lengths,
    num_envs=st.integers(1, 3),
    rows_per_env=st.integers(2, 20),
    width=st.integers(1, 6),
    interval=st.integers(1, 7),
    stack=st.integers(1, 4),
    count=st.integers(1, 15),
    seed=st.integers(0, 10**6),
)
def test_windows_are_whole_wherever_the_episode_has_room(
    told, num_envs, rows_per_env, width, interval, stack, count, seed
):
    story = online_story(FRAMES, told, num_envs, rows_per_env)
    if story.usable(stack):
        generator = np.random.default_rng(seed)
        draw = Stride(width).draw(story.ring.extent, (2, count), interval, stack, generator)
        assert draw.rows.shape == draw.filled.shape == (2, count)
        check_windows(draw, story, width=width, interval=interval, stack=stack)


def test_fixed_windows_ignore_the_interval():
    extent = Extent.whole(OFFLINE.timeline())
    draws = [fixed(4).draw(extent, (2, 9), interval, 1, np.random.default_rng(3)) for interval in (1, 5)]
    np.testing.assert_array_equal(draws[0].rows, draws[1].rows)
    check_windows(draws[1], OFFLINE, width=4, interval=1, stack=1)


def test_filled_rows_are_counted():
    online, offline = online_story(FRAMES, [2, 2, 2]), offline_story(FRAMES, [2, 2])
    hybrid, batch = sample(online, offline, fixed(8), batch_size=16, updates=2)
    # per minibatch and source one window of 8, of which an episode of 2 steps gives 2
    assert hybrid.counts.filled == 2 * 2 * 6
    check_batch(batch, online, offline, stack=1, gamma=0.9)


def test_spans_are_cut_before_later_actions_that_are_unlikely():
    asked = []

    def probability(observation, executed_action, safe_set):
        numbers = [decoded(stack[-1]) for stack in observation]
        assert (executed_action == np.array(numbers) * 10 + 2).all()
        assert [decoded(code) for code in safe_set] == numbers
        asked.extend(numbers)
        return np.where(np.array(numbers) % 4 == 0, 0.2, 0.3)

    online, offline = online_story(FRAMES, [9, 8]), offline_story(FRAMES, [12])
    sampler = Span("cut", probability, threshold=0.25)
    _, batch = sample(online, offline, sampler, stack=2, interval=6)
    assert asked
    check_batch(
        batch, online, offline, stack=2, gamma=0.9, interval=6, likely=lambda row: row.number % 4 != 0
    )


def test_an_action_that_is_forbidden_cuts_only_later():
    """Rows 3 and 10 are forbidden: spans stop before them, but may begin with them."""
    extent = Extent.whole(offline_story(FRAMES, [14]).timeline())
    draw = Span().draw(extent, (1, 400), 20, 1, np.random.default_rng(0))
    length = dict(zip(draw.rows[0].tolist(), draw.length[0].tolist(), strict=True))
    expected = {0: 3, 1: 2, 2: 1, 3: 7, 4: 6, 5: 5, 6: 4, 7: 3, 8: 2, 9: 1, 10: 4, 11: 3, 12: 2, 13: 1}
    assert length == expected
    unguarded = Span(guarded=False).draw(extent, (1, 400), 20, 1, np.random.default_rng(0))
    assert (unguarded.rows + unguarded.length == 14).all()  # all go on to the end of the episode


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Stride(0), "1 transition wide or more"),
        (lambda: Stride(3, constant_interval=0), "constant_interval must be 1 step or more"),
        (lambda: Span("retrace"), "correction must be none, cut or tree-backup"),
        (lambda: Span("cut"), "needs the policy's probability"),
        (lambda: Span("none", lambda *_: np.ones(1)), "and the others do not"),
        (lambda: Extent.whole(Storage.allocate(FRAMES, 3).timeline), "the data holds no step"),
    ],
)
def test_bad_settings_get_one_sentence(make, sentence):
    with pytest.raises(GxError, match=sentence):
        make()
