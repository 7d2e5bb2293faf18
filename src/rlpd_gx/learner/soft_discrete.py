"""Soft Q-learning for discrete actions: the policy is the softmax of the critics, so there is no actor network."""

from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner.categorical import Allowed, Guarded, entropy, expectation, log_policy
from rlpd_gx.learner.networks import Observed, encoder_for
from rlpd_gx.learner.policy import SoftPolicy, soft_kind
from rlpd_gx.learner.q_learner import Following, QLearner, Step, above, critic_metrics
from rlpd_gx.safe_sets import Spec
from rlpd_gx.trees import index
from rlpd_gx.types import Array, Batch

ENTROPY_GAIN = 0.01  # by which log alpha falls in an update, for each nat above the target entropy


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
        policy = soft_kind(config)(
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
        self.compile()

    def _update(self, minibatches: Sequence[Batch[Tensor]], clone_weight: float) -> dict[str, Tensor]:
        for number, batch in enumerate(minibatches):
            place, allowed = self.policy.index(batch.executed_action), self.guarded.allowed(batch.safe_set)
            metrics, excess, finite = self._learn(
                self._following(batch),
                self._augmented(batch.observation),
                place,
                allowed,
                self._cloned(batch, place, allowed, clone_weight),
                self._return_of_data(batch),
            )
            if not finite:
                raise self.optimisers["critic"].diverged(number)
            self._update_target()
        self._follow_entropy(excess)
        return metrics | {"alpha": self.temperature}

    def _learn(
        self,
        following: Following | Tensor,
        observation: Observed,
        place: Tensor,
        allowed: Allowed | None,
        cloned: Tensor | None,
        floor: Tensor | None,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """One step of the critics: metrics, mean of entropy minus target entropy, and whether all was finite."""
        loss, metrics, excess = self._loss(
            observation, place, self._target_from(following), allowed, cloned, floor
        )
        return metrics, excess.nanmean(), self.optimisers["critic"].descend(loss)

    @torch.no_grad()
    def _follow_entropy(self, excess: Tensor) -> None:
        """Lower log alpha by a share of entropy minus target entropy, NaN where no state has a target.

        There is no actor network that would lag behind, so alpha may keep up with the values.
        """
        if self.config.target_entropy != "fixed" and not excess.isnan():
            self.log_temperature -= ENTROPY_GAIN * excess

    def _cloned(
        self, batch: Batch[Tensor], place: Tensor, allowed: Allowed | None, weight: float
    ) -> Tensor | None:
        """The weight [B] of cloning each row: offline rows whose action [B, 1] is allowed, which sum to `weight`."""
        counts = ~batch.is_online
        if allowed is not None:
            counts = counts & allowed.actions.gather(-1, place)[:, 0]
        return counts * (weight / counts.sum()) if weight > 0 and counts.any() else None

    def _loss(
        self,
        observation: Observed,
        place: Tensor,
        target: Tensor,
        allowed: Allowed | None,
        cloned: Tensor | None,
        floor: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Loss of the critics at actions [B, 1] towards targets [B]; metrics; entropy minus target entropy [B]."""
        q = self.critic["ensemble"](self.critic["encoder"](observation))
        taken = q.gather(-1, place.expand(len(q), -1, 1))[..., 0]
        goal = target.expand_as(taken)
        each = F.huber_loss(taken, goal, reduction="none")
        if self.config.backup == "project" and allowed is not None:
            each = each * allowed.actions.gather(-1, place)[:, 0] + _as_executed(q, allowed)
        if self.config.ood_weight:  # as in CQL
            others = above(q.scatter(-1, place.expand(len(q), -1, 1), -torch.inf), floor).logsumexp(dim=-1)
            each = each + self.config.ood_weight * (others - taken)
        loss = each.mean(dim=1).sum()
        metrics = critic_metrics(loss.detach(), taken.detach() - goal, taken.detach())
        if cloned is not None:
            # cross-entropy of the guarded policy times alpha: its gradient does not grow as alpha falls
            alpha, scale = self.temperature, taken.detach().abs().mean()
            choice = q if allowed is None else q.masked_fill(~allowed.actions, -torch.inf)
            loss = loss + scale * (cloned * (alpha * (choice / alpha).logsumexp(dim=-1) - taken)).sum()
        policy, excess = self._measured(q.detach(), observation, allowed)
        return loss, metrics | policy, excess

    def _logits(self, q: Tensor, observation: Observed) -> Tensor:
        """Logits [B, n] of the policy in states with values q [N, B, n]."""
        return self.policy.soft(q)

    def _measured(
        self, q: Tensor, observation: Observed, allowed: Allowed | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """From values q [N, B, n]: metrics of the policy, and its entropy minus the target entropy [B]."""
        logits = self._logits(q, observation)
        uncertainty = entropy(log_policy(logits, None if allowed is None else allowed.actions))
        metrics = {"entropy": uncertainty.mean(), "value_scale": q.mean(dim=0).abs().mean()}
        if allowed is not None:
            metrics["forbidden_mass"] = (logits.softmax(dim=-1) * ~allowed.actions).sum(dim=-1).mean()
        return metrics, self.guarded.excess(uncertainty, allowed)

    def _target(self, batch: Batch[Tensor]) -> Tensor:
        """r + gamma V(s') [B], or its corrected multi-step form."""
        return self._target_from(self._following(batch))

    @torch.no_grad()
    def _following(self, batch: Batch[Tensor]) -> Following | Tensor:
        """What the targets are made of, or the targets [B] themselves where they are corrected over several steps."""
        members, seen = self._subset(), self._augmented(batch.next_observation)
        after = self.guarded.allowed(batch.next_safe_set)
        if batch.span_steps is None:
            return Following(batch.reward, batch.discount, members, seen, after)
        steps, value = batch.span_steps, self._soft_value(seen, after, members)[0]

        def at_step(k: int) -> Step:
            seen = self._augmented(index(steps.observation, np.s_[:, k]))
            allowed, place = (
                self.guarded.allowed(steps.safe_set[:, k]),
                self.policy.index(steps.executed_action[:, k]),
            )
            value, policy, least = self._soft_value(seen, allowed, members)
            return Step(value, policy.gather(-1, place)[:, 0], least.gather(-1, place)[:, 0])

        return self._tree_backup(steps, batch.span_length, value, at_step)

    def _value_after(self, after: Following) -> Tensor:
        return self._soft_value(after.observation, after.policy, after.members)[0]

    def _soft_value(
        self, observation: Observed, allowed: Allowed | None, members: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """By the target critics: value of the states [B], their policy [B, n] and the least values [B, n]."""
        q = self.target["ensemble"](self.target["encoder"](observation))
        policy = self.guarded.policy(self._logits(q, observation), allowed)
        least = self._least(q if members is None else q[members])
        uncertainty = self.config.entropy_sign * self.temperature * entropy(policy.log())
        return expectation(policy, least) + uncertainty, policy, least

    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        policy = self.guarded.policy(self.policy.logits(features), self.guarded.allowed(safe_set))
        return policy.gather(-1, self.policy.index(action))[:, 0]


def _as_executed(q: Tensor, allowed: Allowed) -> Tensor:
    """[N, B] pulls the values [N, B, n] of forbidden actions to those of their corrections."""
    assert allowed.corrected is not None
    executed = q.detach().gather(-1, allowed.corrected.expand_as(q))
    return F.huber_loss(q, executed, reduction="none").mean(dim=-1)
