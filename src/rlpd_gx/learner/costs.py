"""Cost critics beside the critics of the reward, for constrained learning: the actor pays a price for expected cost."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlpd_gx.learner.networks import Ensemble
from rlpd_gx.learner.sac import NextPolicy, Sac
from rlpd_gx.types import Batch

CRITICS = 4


class CostCritics:
    """An ensemble that learns minus the discounted cost (unsafe events) of the policy.

    Its minimum over critics is minus the largest estimate of the cost: pessimistic in targets and for the actor. It is
    the Learner itself with other critics and another reward, so encoder, policy and backup are shared.
    """

    multiplier = 0.0
    """Price of one discounted cost in units of reward."""

    def __init__(self, learner: Sac, seed: int) -> None:
        rewards = learner.critic["ensemble"]
        assert isinstance(rewards, Ensemble)
        sizes = [weight.shape[1] for weight in rewards.weights] + [rewards.weights[-1].shape[2]]
        initial = torch.Generator().manual_seed(seed)
        ensemble = Ensemble(CRITICS, sizes, layer_norm=rewards.layer_norm, generator=initial).to(
            learner.device
        )
        target = copy.deepcopy(ensemble).requires_grad_(False)
        own: Any = copy.copy(learner)
        self.learner = own
        own.config = replace(
            learner.config, ensemble_size=CRITICS, target_subset=0, actor_value="min", ood_penalty=0.0,
            backup_entropy="none",
        )  # fmt: skip
        own.critic = nn.ModuleDict({"encoder": learner.critic["encoder"], "ensemble": ensemble})
        own.target = nn.ModuleDict({"encoder": learner.target["encoder"], "ensemble": target})
        own.parameters = {"critic": list(ensemble.parameters()), "target": list(target.parameters())}
        own.optimisers = {"critic": own._adam("cost critics", own.parameters["critic"])}
        own.costs = None
        own.compile()

    def update(self, batch: Batch[Tensor], next_policy: NextPolicy, number: int) -> dict[str, Tensor]:
        """One update of the cost critics; a span costs 1 if any of its steps had an unsafe event."""
        priced = replace(batch, reward=-batch.unsafe_event.float(), span_steps=None)
        metrics = self.learner._update_critics(priced, next_policy, number)
        self.learner._update_target()
        return {
            "cost_mean": -metrics["q_mean"],
            "cost_td_error": metrics["td_error"],
            "cost_multiplier": torch.tensor(self.multiplier),
        }

    def state(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit."""
        return {
            "critic": self.learner.critic["ensemble"].state_dict(),
            "target": self.learner.target["ensemble"].state_dict(),
            "optimiser": self.learner.optimisers["critic"].state(),
            "multiplier": self.multiplier,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.learner.critic["ensemble"].load_state_dict(state["critic"])
        self.learner.target["ensemble"].load_state_dict(state["target"])
        self.learner.optimisers["critic"].load_state(state["optimiser"])
        self.multiplier = state["multiplier"]
