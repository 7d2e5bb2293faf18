"""Plain records that travel between the halves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Observation = Array | Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class SpanSteps:
    """Every step inside the spans of a batch, for a correction made by the Learner: [U, B, n, ...].

    Steps after the end of a span repeat its last state and action, with reward and discount 0.
    """

    observation: Observation
    safe_set: Array
    executed_action: Array
    reward: Array
    discount: Array
    """gamma, or 0 where that step terminated."""


@dataclass(frozen=True, eq=False)
class Batch:
    """U minibatches of B transitions, each [U, B, ...]; in each minibatch online rows come first.

    A transition spans `span_length` steps (1 unless sampled as spans): the target of its value is
    `reward + discount * V(next_observation)`. `observation` and `next_observation` are views of one block, so
    that frames which both stacks hold are copied once: `torch.from_numpy` takes them as they are.
    """

    observation: Observation
    """[U, B, ...], or [U, B, stack, ...] oldest first, where frames are stacked."""
    next_observation: Observation
    executed_action: Array
    """The span's first action, as are the next one and the margin."""
    proposed_action: Array
    reward: Array
    """float32. Discounted sum over the span."""
    discount: Array
    """float32. gamma^span_length, or 0 where the span ended in a terminal state."""
    terminated: Array
    """Of the span's last step, as is `truncated`."""
    truncated: Array
    safe_set: Array
    """[U, B, code_width] encoded, at `observation`."""
    next_safe_set: Array
    """[U, B, code_width] encoded, at `next_observation`."""
    margin: Array
    unsafe_event: Array
    """bool. An unsafe event was seen after any step of the span."""
    is_online: Array
    row: Array
    """int64. Row number in the timeline that `is_online` tells."""
    span_length: Array
    span_steps: SpanSteps | None = None
    """Only for spans that the Learner corrects."""
