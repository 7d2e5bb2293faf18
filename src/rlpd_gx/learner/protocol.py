"""What the training loop and the evaluation need of a learner."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from rlpd_gx.config import LearnerConfig
from rlpd_gx.types import Array, Batch, Observation


class Learner(Protocol):
    """Proposes actions and learns from batches."""

    config: LearnerConfig
    device: torch.device
    log_temperature: torch.Tensor

    def act(
        self,
        observation: Observation,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Proposed actions [L, ...] for observations [L, ...] and, for `resample`, safe sets [L, width]."""

    def update(self, batch: Batch[Array], *, progress: float = 0.0) -> dict[str, float]:
        """Learn from [U, B] transitions after this fraction of the run; returns metrics."""

    def calibrate(self, observations: Sequence[Observation]) -> None:
        """Normalise observations by the statistics of these [B, ...]."""

    def probability(self, observation: Observation, action: Array, safe_set: Array) -> Array:
        """Probability [n] of each action under the guarded policy."""

    def state(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit: nested dicts of tensors and numbers."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
