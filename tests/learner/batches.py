"""Batches for learner tests, made without the replay: every field is what the test says."""

from typing import Any

import numpy as np

from rlpd_gx.types import Batch


def batch(
    observation: Any,
    action: Any,
    reward: Any,
    next_observation: Any,
    discount: Any,
    safe_set: Any = None,
    next_safe_set: Any = None,
    updates: int = 1,
) -> Batch:
    """[n, ...] rows as [updates, n / updates, ...]."""
    count = len(reward)
    none = np.zeros((count, 0), np.uint8)
    columns = {
        "observation": observation,
        "next_observation": next_observation,
        "executed_action": action,
        "proposed_action": action,
        "reward": np.asarray(reward, np.float32),
        "discount": np.asarray(discount, np.float32),
        "terminated": np.asarray(discount) == 0,
        "truncated": np.zeros(count, bool),
        "safe_set": none if safe_set is None else safe_set,
        "next_safe_set": none if next_safe_set is None else next_safe_set,
        "margin": np.zeros(count, np.float32),
        "unsafe_event": np.zeros(count, bool),
        "is_online": np.ones(count, bool),
        "row": np.arange(count),
        "span_length": np.ones(count, np.int64),
    }
    shaped = {
        name: np.asarray(v).reshape(updates, count // updates, *np.shape(v)[1:])
        for name, v in columns.items()
    }
    return Batch(**shaped)
