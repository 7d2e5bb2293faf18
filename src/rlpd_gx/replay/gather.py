"""From row numbers to a batch: what a batch needs of each column is copied once, straight into its place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlpd_gx.replay.extent import Extent
from rlpd_gx.types import Array, Batch, Observation, SpanSteps


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of a batch that come from one source, minibatch after minibatch."""

    extent: Extent
    is_online: bool
    rows: Array
    """[n]"""
    length: Array
    """[n] steps that each span takes."""
    slots: Sequence[slice]
    """Where the rows go in the flat [U * B] batch, in order."""

    def after(self) -> Array:
        """[n] the row at which each target bootstraps."""
        return self.extent.shift(self.rows, self.length)

    def steps(self, horizon: int) -> Array:
        """[n, horizon] the rows of each span; its last one is repeated where the span is shorter."""
        return self.extent.shift(self.rows[:, None], np.minimum(np.arange(horizon), self.length[:, None] - 1))

    def stacks(self, rows: Array, stack: int) -> Array:
        """[n, m, stack] the rows of the stacks at rows [n, m]."""
        return self.extent.stack_rows(rows.ravel(), stack).reshape(*rows.shape, stack)


def stacked(extent: Extent, rows: Array, stack: int) -> Observation:
    """The observations at rows [n]: [n, ...], or [n, stack, ...] where frames are stacked."""
    index = extent.stack_rows(rows, stack) if stack > 1 else rows
    return _nested({name: extent.columns[name][index] for name in _observation_names(extent)})


def assemble(
    parts: Sequence[Part], shape: tuple[int, int], *, stack: int, gamma: float, horizon: int, all_steps: bool
) -> Batch:
    """A batch of `shape` [U, B] whose spans take `horizon` steps at most; `all_steps` adds `span_steps`."""

    def take(name: str, rows: Sequence[Array]) -> Array:
        return _take(parts, shape, name, rows)

    def observations(rows: Sequence[Array]) -> dict[str, Array]:
        return {name: take(name, rows) for name in _observation_names(parts[0].extent)}

    first, after = [part.rows for part in parts], [part.after() for part in parts]
    ends = [np.stack(pair, axis=1) for pair in zip(first, after, strict=True)]
    length = _place(parts, shape, [part.length for part in parts])
    span_steps = None
    if horizon == 1 and not all_steps:
        # s and s' share all frames but one: [n, stack + 1]
        frames = [part.extent.stack_rows(part.rows, stack, ahead=1) for part in parts]
        reward, unsafe_event = take("reward", first), take("unsafe_event", first)
        terminated, truncated = take("terminated", first), take("truncated", first)
    else:
        frames = [
            part.stacks(pair, stack).reshape(-1, 2 * stack) for part, pair in zip(parts, ends, strict=True)
        ]
        steps = [part.steps(horizon) for part in parts]
        inside = np.arange(horizon) < length[..., None]
        step_reward, step_terminated = take("reward", steps) * inside, take("terminated", steps)
        reward = (step_reward @ gamma ** np.arange(horizon)).astype(np.float32)
        unsafe_event = np.logical_or.reduce(take("unsafe_event", steps), axis=-1)
        terminated, truncated = step_terminated[..., -1], take("truncated", [rows[:, -1] for rows in steps])
        if all_steps:
            stacks = [part.stacks(rows, stack) for part, rows in zip(parts, steps, strict=True)]
            step_block = observations(stacks if stack > 1 else steps)
            span_steps = SpanSteps(
                observation=_nested(step_block),
                safe_set=take("safe_set", steps),
                executed_action=take("executed_action", steps),
                reward=step_reward,
                discount=(gamma * (inside & ~step_terminated)).astype(np.float32),
            )
    here, there = (slice(stack), slice(-stack, None)) if stack > 1 else (0, 1)
    block = observations(frames)
    safe_sets = take("safe_set", ends)
    return Batch(
        observation=_nested({name: part[:, :, here] for name, part in block.items()}),
        next_observation=_nested({name: part[:, :, there] for name, part in block.items()}),
        executed_action=take("executed_action", first),
        proposed_action=take("proposed_action", first),
        reward=reward,
        discount=(gamma**length * ~terminated).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        safe_set=safe_sets[:, :, 0],
        next_safe_set=safe_sets[:, :, 1],
        margin=take("margin", first),
        unsafe_event=unsafe_event,
        is_online=_place(parts, shape, [np.full(len(part.rows), part.is_online) for part in parts]),
        row=_place(parts, shape, first),
        span_length=length,
        span_steps=span_steps,
    )


def _take(parts: Sequence[Part], shape: tuple[int, int], name: str, rows: Sequence[Array]) -> Array:
    """[U, B, ...] of one column, at each part's rows [n, ...]."""
    column = parts[0].extent.columns[name]
    out = np.empty((shape[0] * shape[1], *rows[0].shape[1:], *column.shape[1:]), column.dtype)
    for part, index in zip(parts, rows, strict=True):
        column, start = part.extent.columns[name], 0
        for slot in part.slots:
            stop = start + slot.stop - slot.start
            # the rows are known to exist; any mode but "raise" lets numpy write into `out` directly
            column.take(index[start:stop], 0, out[slot], "clip")
            start = stop
    return out.reshape(*shape, *out.shape[1:])


def _place(parts: Sequence[Part], shape: tuple[int, int], values: Sequence[Array]) -> Array:
    """[U, B] of values [n] of each part."""
    out = np.empty(shape[0] * shape[1], values[0].dtype)
    for part, value in zip(parts, values, strict=True):
        start = 0
        for slot in part.slots:
            stop = start + slot.stop - slot.start
            out[slot] = value[start:stop]
            start = stop
    return out.reshape(shape)


def _observation_names(extent: Extent) -> list[str]:
    return [name for name in extent.columns if name.partition("/")[0] == "observation"]


def _nested(flat: Mapping[str, Array]) -> Observation:
    """One array, or a dict of them, from columns named `observation` or `observation/key`."""
    if "observation" in flat:
        return flat["observation"]
    return {name.removeprefix("observation/"): part for name, part in flat.items()}
