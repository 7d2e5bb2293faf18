"""What SAC shares where critics value single actions, which are part of their input."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner.q_learner import Policy
from rlpd_gx.learner.sac import Sac

OOD_ACTIONS = 8  # uniform actions per state whose values `ood_penalty` lowers


class NextActions(NamedTuple):
    """K actions [B, K, d] in each state, their weights [B, K], and the entropy [B] of that policy."""

    action: Tensor
    weight: Tensor
    uncertainty: Tensor


class ActionCritics(Sac[Policy, NextActions]):
    """Critics of features [B, f] and the numbers [B, d] that stand for an action."""

    def __init__(self, config: LearnerConfig, *args: Any, **options: Any) -> None:
        if config.actor == "auto":
            config = replace(config, actor="raw" if config.backup == "none" else "projected")
        super().__init__(config, *args, critic_outputs=1, **options)

    def _expected(self, features: Tensor, policy: NextActions, members: Tensor | None) -> Tensor:
        values = self._target_q(features, policy.action.transpose(0, 1), members)
        return (policy.weight.T * values).sum(dim=0)

    def _target_q(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        """Minimum target value of actions [B, d] or [K, B, d] -> [B] or [K, B]."""
        return self._least(self._q(self.target, features, action, members))

    def _actor_q(self, features: Tensor, action: Tensor) -> Tensor:
        """What the actor maximises at actions [B, d] or [K, B, d]: value minus priced cost."""
        value = self._for_actor(self._q(self.critic, features, action))
        if self.costs is None:
            return value
        return value + self.costs.multiplier * self.costs.learner._actor_q(features, action)

    def _q(
        self, critic: nn.ModuleDict, features: Tensor, action: Tensor, members: Tensor | None = None
    ) -> Tensor:
        """Q of critics: features [B, f], actions [B, d] or [K, B, d] -> [N, B] or [N, K, B]."""
        joint = torch.cat([features.expand(*action.shape[:-1], -1), action], dim=-1)
        q = critic["ensemble"](joint.flatten(0, -2), members)
        return q.reshape(len(q), *action.shape[:-1])
