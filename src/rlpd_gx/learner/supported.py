"""Discrete BCQ: soft Q-learning over the actions that the offline data supports, in acting and in the backup."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from rlpd_gx.learner.networks import Observed
from rlpd_gx.learner.policy import SupportedPolicy
from rlpd_gx.learner.soft_discrete import SoftDiscrete
from rlpd_gx.types import Batch

LOGIT_PENALTY = 0.01  # on squared logits of the clone, as published


class SupportedDiscrete(SoftDiscrete):
    """Beside the critics it fits G(a|s), a clone of the offline rows, on features without gradient.

    Actions with G(a|s) below `support` times the largest have no part in the policy or in the value of a state, so the
    critics never bootstrap from actions that the data did not try. A guard's safe sets come on top.
    """

    policy: SupportedPolicy

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.optimisers["clone"] = self._adam("clone", self.policy.clone.parameters())

    def _update(self, minibatches: Sequence[Batch[Tensor]], clone_weight: float) -> dict[str, Tensor]:
        metrics: dict[str, Tensor] = {}
        for number, batch in enumerate(minibatches):
            metrics |= self._update_clone(batch, number)
        return metrics | super()._update(minibatches, clone_weight)

    def _update_clone(self, batch: Batch[Tensor], number: int) -> dict[str, Tensor]:
        """Cross-entropy of the executed actions of offline rows."""
        offline = ~batch.is_online
        if not offline.any():
            return {}
        features = self.encode(self._augmented(batch.observation))[offline]
        likely = self.policy.clone(features)[0]
        done = self.policy.index(batch.executed_action)[offline, 0]
        loss = F.cross_entropy(likely, done) + LOGIT_PENALTY * likely.square().mean()
        self.optimisers["clone"].step(loss, number)
        return {
            "clone_loss": loss.detach(),
            "supported_share": self.policy.supports(features).float().mean(),
        }

    def _logits(self, q: Tensor, observation: Observed) -> Tensor:
        return self.policy.restricted(super()._logits(q, observation), self.encode(observation))
