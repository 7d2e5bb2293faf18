"""What both kinds of SAC share: the update as a table of contents, and the critic target."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlpd_gx.config import LearnerConfig
from rlpd_gx.errors import GxError
from rlpd_gx.learner.networks import (
    Encoder,
    Ensemble,
    FlatEncoder,
    Observed,
    PixelEncoder,
    compile_in_place,
    encoder_for,
    random_shift,
)
from rlpd_gx.learner.policy import PolicyNetwork
from rlpd_gx.safe_sets import Spec
from rlpd_gx.trees import index
from rlpd_gx.types import Array, Batch, Observation, SpanSteps

RANDOM_SHIFT = 4  # pixels, as in DrQ and RLPD
CODES = ("safe_set", "next_safe_set")  # columns that stay encoded numpy rows


class Diverged(GxError):
    """A loss or a gradient is not finite. Nothing of that update was applied."""

    def __init__(self, what: str, minibatch: int) -> None:
        super().__init__(f"{what} is not finite in minibatch {minibatch} of the block")
        self.minibatch = minibatch


class NextPolicy(Protocol):
    """What the guarded policy does in B states: a named tuple of tensors [B, ...]."""

    @property
    def uncertainty(self) -> Tensor:
        """Its entropy [B]."""


Next = TypeVar("Next", bound=NextPolicy)
Policy = TypeVar("Policy", bound=PolicyNetwork)


class Sac(ABC, Generic[Policy, Next]):
    """N critics and one actor on shared features, a learned temperature, and a guarded backup.

    Safe sets are stored codes that `safe_set_spec` describes; the rules behind them play no part here.
    """

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
        if safe_set_spec is None and not (config.backup == "none" and config.actor in ("raw", "clone")):
            raise GxError(
                "there are no stored safe sets (no rules, or rules without a finite description), so only "
                "backup=none with actor=raw can be used; write the rules as bounds, constraints or masks"
            )
        self.config, self.device, self.safe_set_spec = config, torch.device(device), safe_set_spec
        initial = torch.Generator().manual_seed(seed)
        encoder = encoder_for(observation_space, initial)
        critics = Ensemble(
            config.ensemble_size,
            (encoder.features + critic_inputs, *config.hidden_sizes, critic_outputs),
            layer_norm=config.layer_norm,
            generator=initial,
        )
        self.critic = nn.ModuleDict({"encoder": encoder, "ensemble": critics}).to(self.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy = policy(encoder, initial)
        self.actor, self.generator = self.policy.actor, self.policy.generator
        if config.compile:
            for critic in (self.critic, self.target):
                compile_in_place(critic["ensemble"], self.device)
        self.log_temperature = torch.tensor(
            np.log(config.temperature), dtype=torch.float32, device=self.device, requires_grad=True
        )
        self.parameters: dict[str, list[Tensor]] = {
            "critic": list(self.critic.parameters()),
            "target": list(self.target.parameters()),
            "actor": list(self.actor.parameters()),
            "temperature": [self.log_temperature],
        }
        self.optimisers = {
            name: torch.optim.Adam(
                self.parameters[name], config.learning_rate, fused=self.device.type != "mps"
            )
            for name in ("critic", "actor", "temperature")
        }

    # --- what the loop calls -----------------------------------------------------------------------------

    def act(
        self,
        observation: Observation,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Proposed actions [L, ...] for observations [L, ...] and, for `resample`, safe sets [L, width]."""
        return self.policy.act(observation, safe_set, explore=explore, generator=generator)

    @torch.no_grad()
    def probability(self, observation: Observation, action: Array, safe_set: Array) -> Array:
        """Probability [n] of each action under the guarded policy (continuous: density per component)."""
        seen, taken = self.policy.tensors((observation, action))
        return self._probability(self.encode(seen), taken, safe_set).cpu().numpy()

    def calibrate(self, observations: Sequence[Observation]) -> None:
        """Normalise observations (not images) by the statistics of these [B, ...]."""
        if isinstance(self.critic["encoder"], FlatEncoder):
            self.critic["encoder"].calibrate([self.policy.tensors(rows) for rows in observations])
            self.target["encoder"].load_state_dict(self.critic["encoder"].state_dict())

    def update(self, batch: Batch[Array], *, progress: float = 0.0) -> dict[str, float]:
        """Learn from [U, B] transitions: U critic updates, then one of actor and temperature.

        `progress` is the fraction of the run that is over; the weight of cloning falls with it.
        """
        minibatches = [self._minibatch(batch, index) for index in range(len(batch.reward))]
        metrics: dict[str, Tensor] = {}
        if self.config.actor != "clone":
            # the actor does not change within a block, so its next actions are sampled for all minibatches at once
            for index, policy in enumerate(self._next_policies(minibatches)):
                metrics |= self._update_critics(minibatches[index], policy, index)
                self._update_target()
        last = len(minibatches) - 1
        metrics |= self._update_actor(minibatches[last], last, self.config.clone_weight_at(progress))
        return {name: float(value.detach()) for name, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit: nested dicts of tensors and numbers."""
        return {
            "policy": self.policy.state_dict(),  # includes the encoder that actor and critics share
            "critic": self.critic["ensemble"].state_dict(),
            "target": self.target.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "optimisers": {name: _plain(o.state_dict()) for name, o in self.optimisers.items()},
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.policy.load_state_dict(state["policy"])
        self.critic["ensemble"].load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        for name, optimiser in self.optimisers.items():
            saved = state["optimisers"][name]
            optimiser.load_state_dict(
                {
                    "state": {int(k): v for k, v in saved["state"].items()},
                    "param_groups": optimiser.state_dict()["param_groups"],
                }
            )
        self.generator.set_state(state["generator"].cpu())

    @property
    def temperature(self) -> Tensor:
        """alpha."""
        return self.log_temperature.detach().exp()

    def encode(self, observation: Observed) -> Tensor:
        """Features [B, f] of observations, without gradient."""
        return self.policy.encode(observation)

    # --- what differs between discrete and continuous actions --------------------------------------------

    @abstractmethod
    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        """Probability [B] of each action under the guarded policy."""

    @abstractmethod
    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        """log pi(a|s) of the raw policy [B], differentiable."""

    @abstractmethod
    def _values(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Q of every critic [N, B] at the action, and [N, B, k] at the actions that `ood_penalty` lowers."""

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

    def _update_critics(self, batch: Batch[Tensor], next_policy: Next, index: int) -> dict[str, Tensor]:
        with torch.no_grad():
            target = self._target(batch, next_policy)
        features = self.critic["encoder"](self._augmented(batch.observation))
        values, unseen = self._values(features, batch.executed_action)
        error = values - target
        loss = error.square().mean(dim=1).sum()
        if self.config.ood_penalty:  # as in CQL
            conservative = (unseen.logsumexp(dim=-1) - values).mean(dim=1).sum()
            loss = loss + self.config.ood_penalty * conservative
        self._step("critic", loss, index)
        with torch.no_grad():
            return {
                "critic_loss": loss / len(values),
                "td_error": error.abs().mean(),
                "q_mean": values.mean(),
                "q_spread": values.std(dim=0).mean() if len(values) > 1 else torch.zeros(()),
            }

    def _update_actor(self, batch: Batch[Tensor], index: int, clone_weight: float) -> dict[str, Tensor]:
        features = self.encode(self._augmented(batch.observation))
        if self.config.actor == "clone":
            loss = -self._log_likelihood(features, batch.executed_action).mean()
            self._step("actor", loss, index)
            return {"actor_loss": loss.detach()}
        loss, excess, metrics = self._actor_loss(features, batch.safe_set)
        if clone_weight > 0 and not batch.is_online.all():
            likelihood = self._log_likelihood(features, batch.executed_action)[~batch.is_online].mean()
            loss = loss - clone_weight * metrics["value_scale"] * likelihood
        self._step("actor", loss, index)
        known = ~excess.isnan()
        if self.config.target_entropy != "fixed" and known.any():
            self._step("temperature", self.log_temperature * excess[known].mean().detach(), index)
        return metrics | {"actor_loss": loss.detach(), "alpha": self.temperature}

    def _target(self, batch: Batch[Tensor], next_policy: Next) -> Tensor:
        """r + gamma V(s') [B], or its corrected multi-step form."""
        members, seen = self._subset(), self._augmented(batch.next_observation)
        value = self._soft_value(self.target["encoder"](seen), next_policy, members)
        if batch.span_steps is None:
            # a terminal state has no value; 0 times an infinite value would be NaN
            return batch.reward + torch.where(batch.discount > 0, batch.discount * value, 0.0)
        return self._tree_backup(batch.span_steps, batch.span_length, value, members)

    def _tree_backup(
        self, steps: SpanSteps[Tensor], length: Tensor, value: Tensor, members: Tensor | None
    ) -> Tensor:
        """Backwards through the spans: later steps are weighted by the probability of their actions."""
        result = value
        for k in range(steps.reward.shape[1] - 1, -1, -1):
            reward, discount = steps.reward[:, k], steps.discount[:, k]
            here = reward + torch.where(discount > 0, discount * result, 0.0)
            if k:
                seen, safe_set = self._augmented(index(steps.observation, np.s_[:, k])), steps.safe_set[:, k]
                features, actor_features = self.target["encoder"](seen), self.encode(seen)
                probability = self._probability(actor_features, steps.executed_action[:, k], safe_set)
                q = self._target_at(features, steps.executed_action[:, k], members)
                local = self._soft_value(features, self._next_policy(actor_features, safe_set), members)
                here = local + probability * (here - q)
            result = torch.where(k < length, here, result)
        return result

    def _step(self, name: str, loss: Tensor, minibatch: int) -> None:
        """One step of an optimiser; raises `Diverged` if the loss or its gradient is not finite."""
        if not torch.isfinite(loss):
            raise Diverged(f"the loss of the {name}", minibatch)
        optimiser, parameters = self.optimisers[name], self.parameters[name]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not torch.isfinite(norm):
            raise Diverged(f"the gradient of the {name}", minibatch)
        optimiser.step()

    @torch.no_grad()
    def _update_target(self) -> None:
        """Move the target networks towards the critics by tau."""
        torch._foreach_lerp_(self.parameters["target"], self.parameters["critic"], self.config.tau)

    def _least(self, values: Tensor) -> Tensor:
        """Minimum over critics [M, ...] -> [...]."""
        return values.min(dim=0).values

    def _for_actor(self, values: Tensor) -> Tensor:
        """Mean or minimum over critics [N, ...] -> [...]."""
        return values.mean(dim=0) if self.config.actor_value == "mean" else self._least(values)

    def _subset(self) -> Tensor | None:
        """Critics for one target: M of N at random, or all."""
        size, count = self.config.ensemble_size, self.config.target_subset
        if count in (0, size):
            return None
        return torch.randperm(size, generator=self.generator, device=self.device)[:count]

    # --- numpy to torch ----------------------------------------------------------------------------------

    def _minibatch(self, batch: Batch[Array], number: int) -> Batch[Tensor]:
        """One minibatch as tensors on the learner's device; safe sets stay encoded numpy rows [B, width]."""
        part = batch.minibatch(number)
        steps = None if part.span_steps is None else SpanSteps[Tensor](**self._columns(vars(part.span_steps)))
        return Batch(**self._columns(part.arrays()), span_steps=steps)

    def _columns(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value if name in CODES else self.policy.tensors(value) for name, value in columns.items()
        }

    def _augmented(self, observation: Observed) -> Observed:
        if isinstance(self.critic["encoder"], PixelEncoder) and isinstance(observation, Tensor):
            return random_shift(observation, RANDOM_SHIFT, self.generator)
        return observation


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimiser's state with string keys; its settings come from the config."""
    return {"state": {str(k): dict(v) for k, v in state["state"].items()}}


def trainable_devices() -> Iterable[str]:
    """Devices of this machine, the fastest first."""
    if torch.cuda.is_available():
        yield "cuda"
    if torch.backends.mps.is_available():
        yield "mps"
    yield "cpu"
