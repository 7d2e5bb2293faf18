"""Which rows of a timeline can be read now, and how to step between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay import compiled
from rlpd_gx.replay.storage import Storage
from rlpd_gx.replay.timeline import Timeline, nested_observation
from rlpd_gx.types import Array, Observation


@dataclass(eq=False)
class Extent:
    """The readable rows of a timeline that is split into equal parts, one ring for each environment (env).

    Rows are numbered as in the timeline. The *age* of a row counts the readable rows before it in its env:
    the seam between the newest and the oldest row is at the two ends of the ages.
    """

    storage: Storage
    rows_per_env: int
    oldest: Array
    """[envs] position of the oldest readable row in its env."""
    length: Array
    """[envs] number of readable rows."""
    steps: int
    """Readable rows that are steps."""

    def __post_init__(self) -> None:
        self.timeline = self.storage.timeline
        self.observation_columns = {
            name: column
            for name, column in self.timeline.columns().items()
            if name.partition("/")[0] == "observation"
        }

    @classmethod
    def whole(cls, timeline: Timeline) -> Extent:
        """All of a finished timeline."""
        timeline.check_episodes()
        if not (steps := int(np.count_nonzero(timeline.is_step))):
            raise GxError("the data holds no step")
        return cls(
            Storage.of(timeline), len(timeline), np.zeros(1, np.int64), np.array([len(timeline)]), steps
        )

    def shift(self, rows: Array, offset: Array | int) -> Array:
        """The row numbers `offset` rows later in the same env, around the seam."""
        if len(self.oldest) == 1:
            return (rows + offset) % self.rows_per_env
        inside = rows % self.rows_per_env
        return rows - inside + (inside + offset) % self.rows_per_env

    def age(self, rows: Array) -> Array:
        """Readable rows before each row in its env."""
        return (rows - self._of_env(self.oldest, rows)) % self.rows_per_env

    def reaches(self, rows: Array, offset: Array | int) -> Array:
        """Whether the row `offset` rows later (earlier if negative) is readable and of the same episode."""
        age = self.age(rows) + offset
        readable = (age >= 0) & (age < self._of_env(self.length, rows))
        # an episode border resets the count, so only rows of one episode differ by the offset
        episode_step = self.timeline.episode_step
        return readable & (episode_step[self.shift(rows, offset)] - episode_step[rows] == offset)

    def usable(self, rows: Array, stack: int) -> Array:
        """Whether a row is a step whose stack of frames has not lost its beginning at the seam."""
        is_step = self.timeline.is_step[rows]
        if stack == 1:
            return is_step
        return is_step & (self.age(rows) >= np.minimum(self.timeline.episode_step[rows], stack - 1))

    def available(self, stack: int, enough: int) -> int:
        """How many rows are usable, or some number above `enough`."""
        # only the oldest few rows of an env can have lost a part of their stack
        few = min(stack - 1, self.rows_per_env)
        if not few or self.steps - few * len(self.length) > enough:
            return self.steps
        envs, ages = np.nonzero(np.arange(few) < self.length[:, None])
        rows = envs * self.rows_per_env + (self.oldest[envs] + ages) % self.rows_per_env
        return self.steps - int(np.count_nonzero(self.timeline.is_step[rows] & ~self.usable(rows, stack)))

    def draw(self, count: int, stack: int, generator: np.random.Generator) -> Array:
        """[count] usable rows, each equally likely, with replacement. At least one must be available."""
        kernel = compiled.kernel()
        ends = np.cumsum(self.length) if len(self.length) > 1 else self.length
        rows, found = np.empty(count, np.int64), 0
        while found < count:
            # A few more than needed, since some are not usable: a second round is rare. For less than 2^53 rows,
            # floats are as good as `integers` and take half the time.
            numbers = generator.random(count - found + count // 16 + 4)
            if kernel is not None:
                found += kernel.usable_rows(
                    numbers,
                    ends,
                    self.length,
                    self.oldest,
                    self.timeline.is_step,
                    self.timeline.episode_step,
                    self.rows_per_env,
                    stack,
                    rows[found:],
                )
            else:
                drawn = self._readable(numbers, ends)
                drawn = drawn[self.usable(drawn, stack)][: count - found]
                rows[found : found + len(drawn)] = drawn
                found += len(drawn)
        return rows

    def stack_rows(self, rows: Array, stack: int, ahead: int = 0) -> Array:
        """[n, stack + ahead] the rows of each stack, oldest first, and `ahead` rows more.

        Before the episode began, its first frame is repeated.
        """
        if (kernel := compiled.kernel()) is not None:
            index = np.empty((len(rows), stack + ahead), np.int64)
            kernel.stack_rows(rows, self.timeline.episode_step, self.rows_per_env, stack, index)
            return index
        offsets = np.arange(1 - stack, 1 + ahead)
        if stack > 1:
            offsets = np.maximum(offsets, -self.timeline.episode_step[rows][:, None])
        return self.shift(rows[:, None], offsets)

    def observation(self, rows: Array, stack: int) -> Observation:
        """The observations at rows [n]: [n, ...], or [n, stack, ...] where frames are stacked."""
        index = self.stack_rows(rows, stack) if stack > 1 else rows
        return nested_observation({name: column[index] for name, column in self.observation_columns.items()})

    def _readable(self, numbers: Array, ends: Array) -> Array:
        """The readable rows that numbers [n] in [0, 1) choose; `ends` [envs] counts those up to the end of each env."""
        # an env is filled from its first row on, and readable everywhere once it is full
        ticket = (numbers * ends[-1]).astype(np.int64)
        if len(ends) == 1:
            return ticket
        envs = np.searchsorted(ends, ticket, side="right")
        return envs * self.rows_per_env + ticket - (ends - self.length)[envs]

    def _of_env(self, values: Array, rows: Array) -> Array:
        """The value of each row's env, from values [envs]."""
        return values[0] if len(values) == 1 else values[rows // self.rows_per_env]
