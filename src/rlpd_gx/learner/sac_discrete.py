"""SAC for discrete actions: a categorical policy, and critics that value every action at once."""

from typing import NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner.categorical import Nearest, entropy, expectation, log_policy, moved
from rlpd_gx.learner.networks import Encoder
from rlpd_gx.learner.policy import CategoricalPolicy
from rlpd_gx.learner.sac import Sac
from rlpd_gx.safe_sets import Mask, Spec, decode
from rlpd_gx.types import Array

TARGET_ENTROPY = 0.3  # of log |A_safe(s)|


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
        self.nearest = Nearest(self.n, embedding)
        self.target_entropy = (
            config.target_entropy if isinstance(config.target_entropy, float) else TARGET_ENTROPY
        )
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

    def _values(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        q = self.critic["ensemble"](features)
        index = self._index(action).expand(len(q), -1, 1)
        taken = q.gather(-1, index)[..., 0]
        if not self.config.ood_penalty:
            return taken, q[..., :0]
        # all actions except the executed one: forbidden ones, and those the data has not tried here
        return taken, q.scatter(-1, index, -torch.inf)

    def _next_policy(self, features: Tensor, safe_set: Array) -> NextProbabilities:
        policy = self._guarded(self.policy.logits(features), safe_set)
        return NextProbabilities(policy, entropy(policy.log()))

    def _expected(self, features: Tensor, policy: NextProbabilities, members: Tensor | None) -> Tensor:
        return expectation(policy.probability, self._least(self.target["ensemble"](features, members)))

    def _actor_loss(self, features: Tensor, safe_set: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        allowed = self.policy.allowed(safe_set)
        logits = self.policy.logits(features)
        with torch.no_grad():
            q = self._for_actor(self.critic["ensemble"](features))
        raw = log_policy(logits, None)
        log_p = log_policy(logits, allowed) if self.config.actor == "masked" else raw
        p = log_p.exp()
        executed = p
        if self.config.actor == "projected":
            assert allowed is not None
            # No distance penalty: the projected policy has an exact derivative, and differences in value may be smaller
            # than any penalty.
            executed = moved(p, self._targets(allowed))
        loss = -(expectation(executed, q) + self.temperature * entropy(log_p)).mean()
        count = torch.full_like(p[:, 0], self.n) if allowed is None else self._allowed_count(safe_set)
        uncertainty = entropy(log_p if allowed is None else log_policy(logits, allowed))
        excess = torch.where(count > 1, uncertainty - self.target_entropy * count.log(), torch.nan)
        forbidden = torch.zeros(()) if allowed is None else (raw.exp() * ~allowed).sum(dim=-1).mean()
        metrics = {
            "entropy": uncertainty.mean(),
            "forbidden_mass": forbidden,
            "value_scale": q.abs().mean(),
        }
        return loss, excess, metrics

    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        policy = self._guarded(self.policy.logits(features), safe_set)
        return policy.gather(-1, self._index(action))[:, 0]

    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        return log_policy(self.policy.logits(features), None).gather(-1, self._index(action))[:, 0]

    def _target_at(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        q = self._least(self.target["ensemble"](features, members))
        return q.gather(-1, self._index(action))[:, 0]

    def _index(self, action: Tensor) -> Tensor:
        return (action.long() - self.policy.start)[:, None]

    def _guarded(self, logits: Tensor, safe_set: Array) -> Tensor:
        """The policy of the backup [B, n]: renormalised over the safe set, projected onto it, or raw."""
        raw = log_policy(logits, None)
        allowed = None if self.config.backup == "none" else self.policy.allowed(safe_set)
        if allowed is None:
            return raw.exp()
        if self.config.backup == "renormalise":
            return log_policy(logits, allowed).exp()
        return moved(raw.exp(), self._targets(allowed))

    def _allowed_count(self, safe_set: Array) -> Tensor:
        """Number of actions that were tested and are allowed [B]."""
        assert self.safe_set_spec is not None
        mask = decode(safe_set, self.safe_set_spec)
        assert isinstance(mask, Mask)
        return torch.as_tensor(mask.allowed.sum(axis=-1), dtype=torch.float32, device=self.device)

    def _targets(self, allowed: Tensor) -> Tensor:
        return torch.as_tensor(self.nearest(allowed.cpu().numpy()), device=self.device)
