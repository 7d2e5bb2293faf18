"""The online buffer: a fixed number of rows, the oldest overwritten first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay.extent import Extent
from rlpd_gx.replay.storage import Storage
from rlpd_gx.replay.timeline import Layout
from rlpd_gx.trees import DType, Json, JsonMapping
from rlpd_gx.types import Array, Observation, Transition


class Ring:
    """Rows of experience from `num_envs` environments in one allocation (or one memory-mapped file).

    Each environment writes into its own `capacity // num_envs` rows, so its episodes stay side by side.
    The newest row of an environment is its current observation; a step from it is written into that row:

        ring.begin(observation, safe_set)               after a reset
        ring.add(transition)                            after each step
        ring.begin(observation, safe_set, where=ended)  after each reset of some environments

    Safe sets that become known later are written with `ring.complete(safe_set)`.

    An environment that resets itself at its *next* step takes no step then: it is not `executed` in that transition,
    and `begin` is called for it.
    """

    def __init__(
        self, layout: Layout, capacity: int, num_envs: int = 1, path: str | os.PathLike[str] | None = None
    ) -> None:
        if num_envs < 1 or capacity // num_envs < 2:
            raise GxError(
                f"a ring needs two rows or more for each environment, got {capacity} for {num_envs}"
            )
        rows_per_env = capacity // num_envs
        self.layout = layout
        self.storage = Storage.allocate(layout, rows_per_env * num_envs, path)
        self.timeline = self.storage.timeline
        self.extent = Extent(
            self.storage,
            rows_per_env,
            oldest=np.zeros(num_envs, np.int64),
            length=np.zeros(num_envs, np.int64),
            steps=0,
        )
        self._columns = self.timeline.columns()
        self._dtypes = layout.columns()
        self._observed = {name for name in self._dtypes if name.startswith("observation")}
        self._first_row = np.arange(num_envs) * rows_per_env
        # rows ever begun in each env: row n is at n % rows_per_env
        self._written = np.zeros(num_envs, np.int64)
        self._open = np.zeros(num_envs, np.bool_)  # whether a step may be taken from the newest row

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return len(self._written)

    def __repr__(self) -> str:
        return f"Ring({self.extent.steps} steps, {len(self.timeline)} rows in {self.num_envs} envs)"

    def begin(
        self,
        observation: Observation,
        safe_set: npt.ArrayLike | None = None,
        where: npt.ArrayLike | None = None,
    ) -> None:
        """Start an episode in each env (of `where` [envs] bool). Both arguments are [envs, ...].

        An episode that was still running ends there: its last step becomes truncated.
        """
        envs = self._chosen(where)
        values = self._checked_arrival(observation, safe_set)
        episode_step = self.timeline.episode_step
        newest = self._newest(envs)
        running = self._open[envs] & (episode_step[newest] > 0)
        self.timeline.truncated[self.extent.shift(newest[running], -1)] = True
        # an episode without a step leaves nothing: its only row is reused
        again = self._open[envs] & (episode_step[newest] == 0)
        self._advance(envs[~again])
        self._write_observation(envs, values, np.zeros(len(envs), np.int32))
        self._open[envs] = True

    def add(self, transition: Transition) -> None:
        """Write one step of each environment in which something was executed."""
        envs = self._chosen(transition.executed, "executed")
        if not self._open[envs].all():
            closed = envs[~self._open[envs]].tolist()
            raise GxError(f"no episode is running in envs {closed}: call begin after a reset, before add")
        action = self.layout.action.base
        step = self._checked(
            {
                "proposed_action": _cast(transition.proposed_action, action),
                "executed_action": _cast(transition.executed_action, action),
                "reward": transition.reward,
                "terminated": transition.terminated,
                "truncated": transition.truncated,
                "margin": transition.margin,
                "unsafe_event": transition.unsafe_event,
            }
        )
        arrived = self._checked_arrival(transition.next_observation, transition.next_safe_set)
        rows = self._newest(envs)
        for name, value in step.items():
            self._columns[name][rows] = value[envs]
        self.timeline.is_step[rows] = True
        self.extent.steps += len(envs)
        episode_step = self.timeline.episode_step[rows] + 1
        self._advance(envs)
        self._write_observation(envs, arrived, episode_step)
        self._open[envs] = ~(step["terminated"] | step["truncated"])[envs]

    def complete(self, safe_set: npt.ArrayLike, where: npt.ArrayLike | None = None) -> None:
        """Write safe sets [envs, code_width] into the newest row of each env (of `where` [envs] bool)."""
        envs = self._chosen(where)
        if not self._written[envs].all():
            raise GxError("there is no observation yet to complete with a safe set: call begin after a reset")
        checked = self._checked({"safe_set": safe_set})
        self.timeline.safe_set[self._newest(envs)] = checked["safe_set"][envs]

    def state(self) -> tuple[dict[str, Array], Json]:
        """Everything needed to resume: the used part of all arrays [envs, used, ...], and JSON values.

        Since an earlier state, rows have changed from `written - 2` of that state on: a step completes the
        newest row, and a cut truncates the one before it.
        """
        used = int(self.extent.length.max())
        return {name: column[:, :used] for name, column in self._by_env().items()}, {
            "used": used,
            "shape": self._shape(),
            "rows": self.extent.rows_per_env,
            "written": self._written.tolist(),
            "open": self._open.tolist(),
            "oldest": self.extent.oldest.tolist(),
            "length": self.extent.length.tolist(),
            "steps": self.extent.steps,
        }

    def restore(self, read: Callable[[str, Array], None], state: JsonMapping) -> None:
        """Restore a saved state; `read(name, target)` fills a target [envs, used, ...] with an array.

        A ring that was never full may be restored into a larger one.
        """
        if state["shape"] != self._shape():
            raise GxError(f"the saved ring is {state['shape']}, but this one is {self._shape()}")
        rows = self.extent.rows_per_env
        if state["rows"] != rows and max(state["written"]) > min(state["rows"], rows):
            raise GxError(
                f"the saved ring has {state['rows']} rows per environment and has been full; this one has {rows}"
            )
        try:
            for name, column in self._by_env().items():
                read(name, column[:, : state["used"]])
                column[:, state["used"] :] = 0
        except BaseException:
            self._clear()  # a half-restored ring must never be sampled
            raise
        self._written[:], self._open[:] = state["written"], state["open"]
        self.extent.oldest[:], self.extent.length[:] = state["oldest"], state["length"]
        self.extent.steps = state["steps"]

    def _clear(self) -> None:
        self.timeline.is_step[:] = False
        self._written[:], self._open[:] = 0, False
        self.extent.oldest[:], self.extent.length[:] = 0, 0
        self.extent.steps = 0

    def _shape(self) -> str:
        return f"{self.num_envs} envs of {self.layout}"

    def _by_env(self) -> dict[str, Array]:
        """The memory of the ring as arrays [envs, rows_per_env, ...]."""
        arrays = {"records": self.storage.record_bytes, **self.storage.large}
        return {name: array.reshape(self.num_envs, -1, *array.shape[1:]) for name, array in arrays.items()}

    def _chosen(self, where: npt.ArrayLike | None, name: str = "where") -> Array:
        if where is None:
            return np.arange(self.num_envs)
        mask = np.asarray(where)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise GxError(f"{name} must be bool ({self.num_envs},), got {mask.dtype} {mask.shape}")
        return np.flatnonzero(mask)

    def _checked(self, values: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """The values as arrays; all are checked before anything is written."""
        checked = {}
        for name, value in values.items():
            dtype, array = self._dtypes[name], np.asarray(value)
            expected = (self.num_envs, *dtype.shape)
            fits = array.dtype == dtype.base or np.can_cast(array.dtype, dtype.base, "same_kind")
            if array.shape != expected or not fits:
                raise GxError(f"{name} must be {dtype.base} {expected}, got {array.dtype} {array.shape}")
            checked[name] = array
        return checked

    def _checked_arrival(self, observation: Observation, safe_set: npt.ArrayLike | None) -> dict[str, Array]:
        parts = trees.named_leaves(observation, "observation")
        if parts.keys() != self._observed:
            raise GxError(f"the observation must be {self.layout.observation}, got {sorted(parts)}")
        if safe_set is None:  # zeros until it is completed: the row may still hold the set of an older state
            code = self._dtypes["safe_set"]
            safe_set = np.zeros((self.num_envs, *code.shape), code.base)
        return self._checked({**parts, "safe_set": safe_set})

    def _newest(self, envs: Array) -> Array:
        return self._first_row[envs] + (self._written[envs] - 1) % self.extent.rows_per_env

    def _advance(self, envs: Array) -> None:
        """Advance the newest row of each env by one, over the oldest where the env is full."""
        extent = self.extent
        self._written[envs] += 1
        rows = self._newest(envs)
        extent.steps -= int(np.count_nonzero(self.timeline.is_step[rows]))
        self.timeline.is_step[rows] = False
        full = envs[extent.length[envs] == extent.rows_per_env]
        extent.oldest[full] = (extent.oldest[full] + 1) % extent.rows_per_env
        extent.length[envs] = np.minimum(extent.length[envs] + 1, extent.rows_per_env)

    def _write_observation(self, envs: Array, values: Mapping[str, Array], episode_step: Array) -> None:
        rows = self._newest(envs)
        for name, value in values.items():
            self._columns[name][rows] = value[envs]
        self.timeline.episode_step[rows] = episode_step


def _cast(action: npt.ArrayLike, dtype: DType) -> Array:
    """Actions in the dtype of the buffer; environments are not strict about theirs."""
    array = np.asarray(action)
    same = array.dtype.kind == dtype.kind or {array.dtype.kind, dtype.kind} <= {"i", "u"}
    return array.astype(dtype, copy=False) if same else array
