"""SAC for discrete actions with an actor network: a categorical policy, and critics that value every action at once."""

from typing import NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner.categorical import Guarded, entropy, expectation, log_policy, moved
from rlpd_gx.learner.networks import Encoder
from rlpd_gx.learner.policy import CategoricalPolicy
from rlpd_gx.learner.sac import Sac
from rlpd_gx.safe_sets import Spec
from rlpd_gx.types import Array


class NextProbabilities(NamedTuple):
    """Probabilities of the next actions [B, n], and their entropy [B]."""

    probability: Tensor
    uncertainty: Tensor


class SacDiscrete(Sac[CategoricalPolicy, NextProbabilities]):
    """Expectations over actions are exact sums; `embedding` [n, k] is the Guardian's, for projections."""

    def __init__(
        self,
        config: LearnerConfig,
        observation_space: gym.Space,
        action_space: gym.spaces.Discrete,
        *,
        safe_set_spec: Spec | None = None,
        embedding: Array | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        def policy(encoder: Encoder, initial: torch.Generator) -> CategoricalPolicy:
            return CategoricalPolicy(
                config, encoder, action_space, safe_set_spec, initial=initial, seed=seed, device=device
            )

        self.n = int(action_space.n)
        self.guarded = Guarded(self.n, safe_set_spec, config, embedding, device)
        super().__init__(
            config,
            observation_space,
            policy=policy,
            critic_inputs=0,
            critic_outputs=self.n,
            safe_set_spec=safe_set_spec,
            seed=seed,
            device=device,
        )

    def _values(
        self, features: Tensor, action: Tensor, others: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q = self.critic["ensemble"](features)
        index = self.policy.index(action).expand(len(q), -1, 1)
        taken = q.gather(-1, index)[..., 0]
        if not self.config.ood_weight:
            return taken, q[..., :0]
        # all actions except the executed one: forbidden ones, and those the data has not tried here
        return taken, q.scatter(-1, index, -torch.inf)

    def _next_policy(self, features: Tensor, safe_set: Array) -> NextProbabilities:
        policy = self.guarded.policy(self.policy.logits(features), self.guarded.allowed(safe_set))
        return NextProbabilities(policy, entropy(policy.log()))

    def _expected(self, features: Tensor, policy: NextProbabilities, members: Tensor | None) -> Tensor:
        return expectation(policy.probability, self._least(self.target["ensemble"](features, members)))

    def _actor_loss(self, features: Tensor, safe_set: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        known = self.guarded.allowed(safe_set)
        allowed = None if known is None else known.actions
        logits = self.policy.logits(features)
        with torch.no_grad():
            q = self._for_actor(self.critic["ensemble"](features))
            if self.costs is not None:
                costly = self.costs.learner
                q = q + self.costs.multiplier * costly._for_actor(costly.critic["ensemble"](features))
        raw = log_policy(logits, None)
        safe = raw if allowed is None else log_policy(logits, allowed)
        log_p = safe if self.config.actor == "masked" else raw
        executed = log_p.exp()
        if self.config.actor == "projected":
            assert known is not None
            assert known.corrected is not None
            # No distance penalty: the projected policy has an exact derivative, and differences in value may be smaller
            # than any penalty.
            executed = moved(executed, known.corrected)
        loss = -(expectation(executed, q) + self.temperature * entropy(log_p)).mean()
        uncertainty = entropy(safe.detach())
        forbidden = torch.zeros(()) if allowed is None else (raw.detach().exp() * ~allowed).sum(dim=-1).mean()
        metrics = {
            "entropy": uncertainty.mean(),
            "forbidden_mass": forbidden,
            "value_scale": q.abs().mean(),
        }
        return loss, self.guarded.excess(uncertainty, known), metrics

    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        policy = self.guarded.policy(self.policy.logits(features), self.guarded.allowed(safe_set))
        return policy.gather(-1, self.policy.index(action))[:, 0]

    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        return log_policy(self.policy.logits(features), None).gather(-1, self.policy.index(action))[:, 0]

    def _target_at(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        q = self._least(self.target["ensemble"](features, members))
        return q.gather(-1, self.policy.index(action))[:, 0]
