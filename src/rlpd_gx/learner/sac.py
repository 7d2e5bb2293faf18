"""What both kinds of SAC share: the update as a table of contents, and the critic target."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner.networks import Encoder, Observed, encoder_for
from rlpd_gx.learner.q_learner import (
    Following,
    Policy,
    QLearner,
    Step,
    above,
    critic_metrics,
    critics_for,
    first_temperature,
)
from rlpd_gx.safe_sets import Spec
from rlpd_gx.trees import index
from rlpd_gx.types import Array, Batch

if TYPE_CHECKING:
    from rlpd_gx.learner.costs import CostCritics


class NextPolicy(Protocol):
    """What the guarded policy does in B states: a named tuple of tensors [B, ...]."""

    @property
    def uncertainty(self) -> Tensor:
        """Its entropy [B]."""


Next = TypeVar("Next", bound=NextPolicy)


class Sac(QLearner[Policy], Generic[Policy, Next]):
    """Critics and one actor network on shared features, with a guarded backup."""

    costs: "CostCritics | None" = None
    """Of constrained learning; the actor then maximises value minus priced cost."""

    def __init__(
        self,
        config: LearnerConfig,
        observation_space: gym.Space,
        *,
        policy: Callable[[Encoder, torch.Generator], Policy],
        critic_inputs: int,
        critic_outputs: int,
        safe_set_spec: Spec | None,
        seed: int,
        device: str | torch.device,
    ) -> None:
        initial = torch.Generator().manual_seed(seed)
        encoder = encoder_for(observation_space, initial)
        critics = critics_for(config, encoder, critic_inputs, critic_outputs, initial)
        super().__init__(
            config,
            encoder,
            critics,
            policy(encoder, initial),
            first_temperature(config, device),
            safe_set_spec=safe_set_spec,
            device=device,
        )
        self.actor = self.policy.actor
        self.optimisers["actor"] = self._adam("actor", self.actor.parameters())
        self.optimisers["temperature"] = self._adam("temperature", [self.log_temperature])
        self.compile()

    def state(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit: nested dicts of tensors and numbers."""
        return super().state() | {
            "critic": self.critic["ensemble"].state_dict(),
            "log_temperature": self.log_temperature.detach(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        super().load_state(state)
        self.critic["ensemble"].load_state_dict(state["critic"])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])

    # --- what differs between discrete and continuous actions --------------------------------------------

    @abstractmethod
    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        """log pi(a|s) of the raw policy [B] as cloning raises it, differentiable."""

    @abstractmethod
    def _values(
        self, features: Tensor, action: Tensor, others: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Q of every critic [N, B] at the action, and [N, B, k] at those others that `ood_penalty` lowers."""

    @abstractmethod
    def _next_policy(self, features: Tensor, safe_set: Array) -> Next:
        """What the guarded policy does in B states."""

    @abstractmethod
    def _expected(self, features: Tensor, policy: Next, members: Tensor | None) -> Tensor:
        """Value [B] of a next policy under some of the target critics, without its entropy."""

    @abstractmethod
    def _actor_loss(self, features: Tensor, safe_set: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The actor's loss, entropy minus target entropy [B] (NaN where a state has no target), and metrics."""

    @abstractmethod
    def _target_at(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        """Value of an action under some of the target critics [B]."""

    # --- the update --------------------------------------------------------------------------------------

    def _update(self, minibatches: Sequence[Batch[Tensor]], clone_weight: float) -> dict[str, Tensor]:
        metrics: dict[str, Tensor] = {}
        if self.config.actor != "clone":
            # the actor does not change within a block, so its next actions are sampled for all minibatches at once
            for number, policy in enumerate(self._next_policies(minibatches)):
                metrics |= self._update_critics(minibatches[number], policy, number)
                self._update_target()
                if self.costs is not None:
                    metrics |= self.costs.update(minibatches[number], policy, number)
        last = len(minibatches) - 1
        return metrics | self._update_actor(minibatches[last], last, clone_weight)

    @torch.no_grad()
    def _next_policies(self, minibatches: Sequence[Batch[Tensor]]) -> list[Next]:
        """The guarded policy at the next states of each minibatch."""
        features = [self.encode(self._augmented(batch.next_observation)) for batch in minibatches]
        safe_sets = np.concatenate([batch.next_safe_set for batch in minibatches])
        policy = self._next_policy(torch.cat(features), safe_sets)
        fields: Any = policy  # a named tuple
        parts = [tensor.split([len(f) for f in features]) for tensor in fields]
        return [type(fields)(*part) for part in zip(*parts, strict=True)]

    def _soft_value(self, features: Tensor, policy: Next, members: Tensor | None) -> Tensor:
        uncertainty = self.config.entropy_sign * self.temperature * policy.uncertainty
        return self._expected(features, policy, members) + uncertainty

    def _update_critics(self, batch: Batch[Tensor], next_policy: Next, number: int) -> dict[str, Tensor]:
        metrics, finite = self._learn(
            self._following(batch, next_policy),
            self._augmented(batch.observation),
            batch.executed_action,
            self._others(len(batch.reward)) if self.config.ood_weight else None,
            self._return_of_data(batch),
        )
        if not finite:
            raise self.optimisers["critic"].diverged(number)
        return metrics

    def _learn(
        self,
        following: Following | Tensor,
        observation: Observed,
        action: Tensor,
        others: Tensor | None,
        floor: Tensor | None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One step of the critics: metrics, and whether all was finite."""
        target = self._target_from(following)
        values, unseen = self._values(self.critic["encoder"](observation), action, others)
        error = values - target
        loss = error.square().mean(dim=1).sum()
        if self.config.ood_weight:  # as in CQL
            conservative = (above(unseen, floor).logsumexp(dim=-1) - values).mean(dim=1).sum()
            loss = loss + self.config.ood_weight * conservative
        metrics = critic_metrics(loss.detach(), error.detach(), values.detach())
        return metrics, self.optimisers["critic"].descend(loss)

    def _others(self, count: int) -> Tensor | None:
        """Actions [k, B, ...] drawn for `ood_penalty`, where critics do not value all at once."""
        return None

    def _update_actor(self, batch: Batch[Tensor], number: int, clone_weight: float) -> dict[str, Tensor]:
        features = self.encode(self._augmented(batch.observation))
        if self.config.actor == "clone":
            loss = -self._log_likelihood(features, batch.executed_action).mean()
            self.optimisers["actor"].step(loss, number)
            return {"actor_loss": loss.detach()}
        loss, excess, metrics = self._actor_loss(features, batch.safe_set)
        if clone_weight > 0 and not batch.is_online.all():
            # forbidden actions too: the guard moves what is proposed, so an expert's are still worth imitating
            likelihood = self._log_likelihood(features, batch.executed_action)[~batch.is_online].mean()
            loss = loss - clone_weight * metrics["value_scale"] * likelihood
        self.optimisers["actor"].step(loss, number)
        self._update_temperature(excess, number)
        return metrics | {"actor_loss": loss.detach(), "alpha": self.temperature}

    @torch.no_grad()
    def _update_temperature(self, excess: Tensor, number: int) -> None:
        """Move alpha by entropy minus target entropy [B], NaN where a state has no target."""
        mean = excess.nanmean()
        if self.config.target_entropy != "fixed" and not excess.isnan().all():
            # the gradient of log alpha * mean(excess)
            self.optimisers["temperature"].apply([mean], number)

    def _target(self, batch: Batch[Tensor], next_policy: Next) -> Tensor:
        """r + gamma V(s') [B], or its corrected multi-step form."""
        return self._target_from(self._following(batch, next_policy))

    @torch.no_grad()
    def _following(self, batch: Batch[Tensor], next_policy: Next) -> Following | Tensor:
        """What the targets are made of, or the targets [B] themselves where they are corrected over several steps."""
        after = Following(
            batch.reward, batch.discount, self._subset(), self._augmented(batch.next_observation), next_policy
        )
        if batch.span_steps is None:
            return after
        steps, members = batch.span_steps, after.members

        def at_step(k: int) -> Step:
            seen, safe_set = self._augmented(index(steps.observation, np.s_[:, k])), steps.safe_set[:, k]
            features, actor_features = self.target["encoder"](seen), self.encode(seen)
            return Step(
                self._soft_value(features, self._next_policy(actor_features, safe_set), members),
                self._probability(actor_features, steps.executed_action[:, k], safe_set),
                self._target_at(features, steps.executed_action[:, k], members),
            )

        return self._tree_backup(steps, batch.span_length, self._value_after(after), at_step)

    def _value_after(self, after: Following) -> Tensor:
        return self._soft_value(self.target["encoder"](after.observation), after.policy, after.members)
