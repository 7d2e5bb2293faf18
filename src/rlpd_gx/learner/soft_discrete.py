"""Soft Q-learning for discrete actions: the policy is the softmax of the critics, so there is no actor network."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner.categorical import Allowed, Guarded, entropy, expectation, log_policy
from rlpd_gx.learner.networks import encoder_for
from rlpd_gx.learner.policy import SoftPolicy
from rlpd_gx.learner.q_learner import QLearner, Step, critic_metrics
from rlpd_gx.safe_sets import Spec
from rlpd_gx.trees import index
from rlpd_gx.types import Array, Batch


class SoftDiscrete(QLearner[SoftPolicy]):
    """The guarded soft operator of `rlpd_gx.theory` with function approximation.

    Under `backup = project` the value of a forbidden action is that of its correction, which is what proposing it leads
    to: raw proposals need no safe set. Under `renormalise` it is never counted, so proposals need the safe set
    (`execution = resample`).
    """

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
        initial = torch.Generator().manual_seed(seed)
        encoder = encoder_for(observation_space, initial)
        policy = SoftPolicy(
            config, encoder, action_space, safe_set_spec, initial=initial, seed=seed, device=device
        )
        super().__init__(
            config,
            encoder,
            policy.actor,
            policy,
            policy.log_temperature,
            safe_set_spec=safe_set_spec,
            device=device,
        )
        self.n = int(action_space.n)
        self.guarded = Guarded(self.n, safe_set_spec, config, embedding, device)

    def _update(self, minibatches: Sequence[Batch[Tensor]], clone_weight: float) -> dict[str, Tensor]:
        metrics: dict[str, Tensor] = {}
        for number, batch in enumerate(minibatches):
            with torch.no_grad():
                target = self._target(batch)
            q = self.critic["ensemble"](self.critic["encoder"](self._augmented(batch.observation)))
            allowed = self.guarded.allowed(batch.safe_set)
            loss, metrics = self._loss(q, target, batch, allowed, clone_weight)
            self.optimisers["critic"].step(loss, number)
            self._update_target()
        return metrics | self._update_policy(q.detach(), allowed, number)

    def _loss(
        self, q: Tensor, target: Tensor, batch: Batch[Tensor], allowed: Allowed | None, clone_weight: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the critics from values q [N, B, n] and targets [B], and metrics."""
        place = self.policy.index(batch.executed_action).expand(len(q), -1, 1)
        taken = q.gather(-1, place)[..., 0]
        goal = target.expand_as(taken)
        each = F.huber_loss(taken, goal, reduction="none")
        if self.config.backup == "project" and allowed is not None:
            each = each * allowed.actions.gather(-1, place[0])[:, 0]
            each = each + self._as_executed(q, allowed)
        loss = each.mean(dim=1).sum()
        metrics = critic_metrics(loss.detach(), taken.detach() - goal, taken.detach())
        if self.config.ood_penalty:  # as in CQL
            others = q.scatter(-1, place, -torch.inf).logsumexp(dim=-1)
            loss = loss + self.config.ood_penalty * (others - taken).mean(dim=1).sum()
        if clone_weight > 0 and not batch.is_online.all():
            # cross-entropy of the soft policy times alpha: its gradient does not grow as alpha falls
            alpha, scale = self.temperature, taken.detach().abs().mean()
            unlikely = alpha * (q / alpha).logsumexp(dim=-1) - taken
            loss = loss + clone_weight * scale * unlikely[:, ~batch.is_online].mean(dim=1).sum()
        return loss, metrics

    def _as_executed(self, q: Tensor, allowed: Allowed) -> Tensor:
        """[N, B] pulls the values of forbidden actions to those of their corrections."""
        executed = q.detach().gather(-1, self.guarded.corrected(allowed).expand_as(q))
        return F.huber_loss(q, executed, reduction="none").mean(dim=-1)

    @torch.no_grad()
    def _update_policy(self, q: Tensor, allowed: Allowed | None, number: int) -> dict[str, Tensor]:
        """Move the temperature; values q [N, B, n]."""
        raw = self.policy.soft(q)
        uncertainty = entropy(log_policy(raw, None if allowed is None else allowed.actions))
        with torch.enable_grad():
            self._update_temperature(self.guarded.excess(uncertainty, allowed), number)
        forbidden = (
            torch.zeros(())
            if allowed is None
            else (raw.softmax(dim=-1) * ~allowed.actions).sum(dim=-1).mean()
        )
        return {
            "entropy": uncertainty.mean(),
            "forbidden_mass": forbidden,
            "value_scale": q.mean(dim=0).abs().mean(),
            "alpha": self.temperature,
        }

    def _target(self, batch: Batch[Tensor]) -> Tensor:
        """r + gamma V(s') [B], or its corrected multi-step form."""
        members, seen = self._subset(), self._augmented(batch.next_observation)
        following = self.target["ensemble"](self.target["encoder"](seen))
        value = self._soft_value(following, batch.next_safe_set, members)[0]
        if batch.span_steps is None:
            return self._bootstrapped(batch.reward, batch.discount, value)
        steps = batch.span_steps

        def at_step(k: int) -> Step:
            seen = self._augmented(index(steps.observation, np.s_[:, k]))
            q = self.target["ensemble"](self.target["encoder"](seen))
            value, policy, least = self._soft_value(q, steps.safe_set[:, k], members)
            place = self.policy.index(steps.executed_action[:, k])
            return Step(value, policy.gather(-1, place)[:, 0], least.gather(-1, place)[:, 0])

        return self._tree_backup(steps, batch.span_length, value, at_step)

    def _soft_value(
        self, q: Tensor, safe_set: Array, members: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From target values q [N, B, n]: value of the states [B], their policy [B, n] and the least values [B, n]."""
        policy = self.guarded.policy(self.policy.soft(q), self.guarded.allowed(safe_set))
        least = self._least(q if members is None else q[members])
        uncertainty = self.config.entropy_sign * self.temperature * entropy(policy.log())
        return expectation(policy, least) + uncertainty, policy, least

    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        policy = self.guarded.policy(self.policy.logits(features), self.guarded.allowed(safe_set))
        return policy.gather(-1, self.policy.index(action))[:, 0]
