"""A slow and obvious replay: every row ever written, in lists, with its number in every field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlpd_gx.replay.ring import Ring
from rlpd_gx.replay.timeline import Layout, Timeline
from rlpd_gx.types import Transition

FRAME = np.dtype((np.uint8, (2, 2)))
FRAMES = Layout(FRAME, np.dtype(np.int64), np.dtype((np.uint8, (4,))))
LARGE_FRAME = np.dtype((np.uint8, (30, 40)))
LARGE = Layout(LARGE_FRAME, np.dtype(np.int64), np.dtype((np.uint8, (4,))))
MIXED = Layout(
    {"pixels": LARGE_FRAME, "joints": np.dtype((np.float32, (3,)))},
    np.dtype((np.float32, (2,))),
    np.dtype((np.float32, (5,))),
)


@dataclass(eq=False)
class Row:
    number: int
    lane: int
    episode: list[Row]
    is_step: bool = False
    terminated: bool = False
    truncated: bool = False

    @property
    def place(self) -> int:
        return self.episode.index(self)

    @property
    def fields(self) -> dict[str, float]:
        n = self.number
        forbidden = n % 7 == 3
        margin = np.nan if n % 11 == 5 else (-1 if forbidden else 1) * (n + 0.5)
        return {
            "proposed_action": 10 * n + 1,
            "executed_action": 10 * n + 2,
            "reward": n + 0.25,
            "margin": margin,
            "unsafe_event": n % 5 == 0,
            "safe_set": n,
            "observation": n,
        }


def coded(dtype: np.dtype, value: float) -> np.ndarray:
    """A number as a row of a column: in every four bytes of a frame or a mask, else in every element."""
    if dtype.base == np.uint8:
        return np.resize(np.array([value], np.uint32).view(np.uint8), dtype.shape)
    return np.full(dtype.shape, value, dtype.base)


def decoded(value: np.ndarray) -> int:
    return int(np.ascontiguousarray(value).reshape(-1).view(np.uint32)[0])


class Story:
    """Writes into a ring, if given one, and never forgets."""

    def __init__(self, layout: Layout, lanes: int = 1, lane_rows: int = 10**9, ring: Ring | None = None):
        self.layout, self.lane_rows, self.ring = layout, lane_rows, ring
        self.rows: list[Row] = []
        self.lanes: list[list[Row]] = [[] for _ in range(lanes)]
        self.running = [False] * lanes

    def begin(self, where: list[bool]) -> None:
        for lane in np.flatnonzero(where):
            rows = self.lanes[lane]
            if self.running[lane]:
                if rows[-1].place == 0:
                    rows.pop()
                else:
                    rows[-2].truncated = True
            self._append(int(lane), [])
            self.running[lane] = True
        if self.ring is not None:
            self.ring.begin(*self._arrival(), where=np.array(where))

    def add(self, where: list[bool], terminated: list[bool], truncated: list[bool]) -> None:
        taken = []
        for lane, rows in enumerate(self.lanes):
            taken.append(rows[-1] if rows else Row(0, lane, []))
            if where[lane]:
                rows[-1].is_step = True
                rows[-1].terminated, rows[-1].truncated = terminated[lane], truncated[lane]
                self._append(lane, rows[-1].episode)
                self.running[lane] = not (terminated[lane] or truncated[lane])
        if self.ring is not None:
            columns = self.layout.columns()
            names = ("proposed_action", "executed_action", "reward", "margin", "unsafe_event")
            step = {
                name: np.stack([coded(columns[name], row.fields[name]) for row in taken]) for name in names
            }
            observation, safe_set = self._arrival()
            self.ring.add(
                Transition(
                    **step,
                    terminated=np.array(terminated),
                    truncated=np.array(truncated),
                    next_observation=observation,
                    next_safe_set=safe_set,
                    executed=np.array(where),
                )
            )

    def _append(self, lane: int, episode: list[Row]) -> None:
        row = Row(len(self.rows), lane, episode)
        episode.append(row)
        self.rows.append(row)
        self.lanes[lane].append(row)

    def _arrival(self):
        newest = [rows[-1] if rows else Row(0, lane, []) for lane, rows in enumerate(self.lanes)]
        columns = self.layout.columns()
        coded_rows = {
            name: np.stack([coded(columns[name], row.number) for row in newest])
            for name in columns
            if name.startswith("observation") or name == "safe_set"
        }
        safe_set = coded_rows.pop("safe_set")
        if "observation" in coded_rows:
            return coded_rows["observation"], safe_set
        return {name.removeprefix("observation/"): part for name, part in coded_rows.items()}, safe_set

    def timeline(self) -> Timeline:
        """The story of one lane as finished data; its last episode must have ended."""
        flat: dict[str, list] = {name: [] for name in self.layout.columns()}
        for row in self.lanes[0]:
            facts = row.fields | {
                "is_step": row.is_step,
                "episode_step": row.place,
                "terminated": row.terminated,
                "truncated": row.truncated,
            }
            for name, dtype in self.layout.columns().items():
                flat[name].append(coded(dtype, facts[name.partition("/")[0]]))
        return Timeline.from_columns({name: np.stack(column) for name, column in flat.items()})

    def readable(self, lane: int) -> list[Row]:
        return self.lanes[lane][-self.lane_rows :]

    def at(self, number: int) -> Row:
        """The row that lies at a row number of the timeline."""
        lane, position = divmod(number, self.lane_rows)
        for age, row in enumerate(self.lanes[lane]):
            if age % self.lane_rows == position and row in self.readable(lane):
                return row
        raise AssertionError(f"row {number} is not readable")

    def stack(self, row: Row, stack: int) -> list[Row]:
        return [row.episode[max(0, row.place - back)] for back in reversed(range(stack))]

    def usable(self, stack: int) -> list[Row]:
        rows = []
        for lane in range(len(self.lanes)):
            readable = self.readable(lane)
            rows += [
                row
                for row in readable
                if row.is_step and all(frame in readable for frame in self.stack(row, stack))
            ]
        return rows

    def span(self, row: Row, interval: int, likely=lambda row: True) -> list[Row]:
        steps = [row]
        for later in row.episode[row.place + 1 :][: interval - 1]:
            if not later.is_step or later.fields["margin"] < 0 or not likely(later):
                break
            steps.append(later)
        return steps


def check_batch(batch, online: Story, offline: Story, *, stack, gamma, interval=1, likely=lambda row: True):
    """Every field of every transition against the story; `interval` above 1 means spans."""
    for spot in np.ndindex(batch.row.shape):
        story = online if batch.is_online[spot] else offline
        row = story.at(int(batch.row[spot]))
        assert row in story.usable(stack)
        steps = story.span(row, interval, likely)
        last, after = steps[-1], steps[-1].episode[steps[-1].place + 1]
        readable = story.readable(row.lane)
        assert after in readable
        for found, here in ((batch.observation, row), (batch.next_observation, after)):
            _check_observation(found, spot, story, here, stack, readable)
        columns = story.layout.columns()
        for name in ("proposed_action", "executed_action", "margin", "safe_set"):
            expected = coded(columns[name], row.fields[name])
            np.testing.assert_array_equal(getattr(batch, name)[spot], expected, err_msg=name)
        np.testing.assert_array_equal(batch.next_safe_set[spot], coded(columns["safe_set"], after.number))
        assert batch.span_length[spot] == len(steps)
        reward = sum(gamma**n * step.fields["reward"] for n, step in enumerate(steps))
        np.testing.assert_allclose(batch.reward[spot], reward, rtol=1e-6)
        discount = 0.0 if last.terminated else gamma ** len(steps)
        np.testing.assert_allclose(batch.discount[spot], discount, rtol=1e-6)
        assert batch.terminated[spot] == last.terminated
        assert batch.truncated[spot] == last.truncated
        assert batch.unsafe_event[spot] == any(step.fields["unsafe_event"] for step in steps)
        if batch.span_steps is not None:
            _check_steps(batch.span_steps, spot, story, steps, stack, gamma, readable)


def check_windows(draw, story: Story, *, width, interval, stack):
    """Windows are rows of one episode, `interval` apart, and as many as that episode has room for."""
    usable = story.usable(stack)
    for rows, filled in zip(draw.rows, draw.filled, strict=True):
        for start in range(0, len(rows), width):
            window = [story.at(number) for number in rows[start : start + width].tolist()]
            kept = [row for row, fill in zip(window, filled[start : start + width], strict=True) if not fill]
            assert kept == window[: len(kept)]
            assert all(row in usable for row in window)
            first = kept[0]
            assert kept == first.episode[first.place :: interval][: len(kept)]
            room = [row for row in first.episode[first.place % interval :: interval] if row in usable]
            assert len(kept) == min(len(window), len(room))


def _check_steps(found, spot, story, steps, stack, gamma, readable):
    columns = story.layout.columns()
    for n in range(found.reward.shape[-1]):
        at, step = (*spot, n), steps[min(n, len(steps) - 1)]
        inside = n < len(steps)
        _check_observation(found.observation, at, story, step, stack, readable)
        np.testing.assert_array_equal(found.safe_set[at], coded(columns["safe_set"], step.number))
        action = coded(columns["executed_action"], step.fields["executed_action"])
        np.testing.assert_array_equal(found.executed_action[at], action)
        assert found.reward[at] == (step.fields["reward"] if inside else 0)
        discount = gamma if inside and not step.terminated else 0
        np.testing.assert_allclose(found.discount[at], discount, rtol=1e-6)


def _check_observation(found, spot, story, row, stack, readable):
    frames = story.stack(row, stack)
    assert all(frame in readable for frame in frames)
    parts = found if isinstance(found, dict) else {"": found}
    dtypes = story.layout.observation if isinstance(found, dict) else {"": story.layout.observation}
    assert parts.keys() == dtypes.keys()
    for key, part in parts.items():
        expected = np.stack([coded(dtypes[key], frame.number) for frame in frames])
        np.testing.assert_array_equal(part[spot], expected if stack > 1 else expected[0], err_msg=key)
