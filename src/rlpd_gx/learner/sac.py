"""What both kinds of SAC share: the update as a table of contents, and how a critic target is made."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlpd_gx.config import LearnerConfig
from rlpd_gx.errors import GxError
from rlpd_gx.learner.networks import Ensemble, FlatEncoder, PixelEncoder, compiled, encoder_for, random_shift
from rlpd_gx.safe_sets import Spec
from rlpd_gx.types import Array, Batch

RANDOM_SHIFT = 4  # pixels, as in DrQ and RLPD


class Diverged(GxError):
    """A loss or a gradient is not finite. Nothing of that update was applied."""

    def __init__(self, what: str, minibatch: int) -> None:
        super().__init__(f"{what} is not finite in minibatch {minibatch} of the block")
        self.minibatch = minibatch


@dataclass(frozen=True, eq=False)
class Minibatch:
    """B transitions as tensors on the learner's device; safe sets stay encoded numpy rows [B, width]."""

    observation: Any
    next_observation: Any
    action: Tensor
    reward: Tensor
    discount: Tensor
    safe_set: Array
    next_safe_set: Array
    span_length: Array
    is_online: Tensor
    steps: Mapping[str, Any] | None
    """Inside the spans, [B, n, ...] each: observation, safe_set, action, reward, discount."""


class Sac(ABC):
    """N critics and one actor on shared features, a learned temperature, and a guarded backup.

    It knows safe sets only as stored codes with their `spec`: which rules made them is not its business.
    """

    def __init__(
        self,
        config: LearnerConfig,
        observation_space: gym.Space,
        *,
        actor_outputs: int,
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
        start = torch.Generator().manual_seed(seed)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        encoder = encoder_for(observation_space, config, start)
        features, hidden = encoder.features, config.hidden_sizes
        critics = Ensemble(
            config.ensemble_size,
            (features + critic_inputs, *hidden, critic_outputs),
            layer_norm=config.layer_norm,
            generator=start,
        )
        self.critic = nn.ModuleDict({"encoder": encoder, "ensemble": critics}).to(self.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor = Ensemble(1, (features, *hidden, actor_outputs), layer_norm=False, generator=start).to(
            self.device
        )
        if config.compile:
            for critic in (self.critic, self.target):
                compiled(critic["ensemble"], self.device)
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

    @torch.no_grad()
    def act(
        self,
        observation: Any,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Proposed actions [L, ...] for observations [L, ...] and, for `resample`, safe sets [L, width]."""
        features = self.encode(self._tensors(observation))
        safe_set = safe_set if self.config.execution == "resample" else None
        return self._act(features, safe_set, explore, generator or self.generator)

    @torch.no_grad()
    def probability(self, observation: Any, action: Array, safe_set: Array) -> Array:
        """How likely the guarded policy takes each action [n] (continuous: density for each component)."""
        features = self.encode(self._tensors(observation))
        return self._probability(features, self._tensors(action), safe_set).cpu().numpy()

    def calibrate(self, observations: Sequence[Any]) -> None:
        """Centre and scale what networks see by these observations [B, ...], from now on."""
        if isinstance(self.critic["encoder"], FlatEncoder):
            self.critic["encoder"].calibrate([self._tensors(rows) for rows in observations])
            self.target["encoder"].load_state_dict(self.critic["encoder"].state_dict())

    def update(self, batch: Batch, *, progress: float = 0.0) -> dict[str, float]:
        """Learn from [U, B] transitions: U critic updates, then one of actor and temperature.

        `progress` is the fraction of the run that is over; behaviour cloning fades with it.
        """
        minibatches = [self._minibatch(batch, index) for index in range(len(batch.reward))]
        metrics: dict[str, Any] = {}
        if self.config.actor != "clone":
            # the actor stays as it is within a block, so what it does next is drawn at once
            for index, policy in enumerate(self._next_policies(minibatches)):
                metrics |= self._update_critics(minibatches[index], policy, index)
                self._follow()
        last = len(minibatches) - 1
        metrics |= self._update_actor(minibatches[last], last, self.config.clone_weight_at(progress))
        return {name: float(value.detach()) for name, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        """All that it takes to go on, bit for bit: nested dicts of tensors and numbers."""
        return {
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "actor": self.actor.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "optimisers": {name: _plain(o.state_dict()) for name, o in self.optimisers.items()},
            "generator": self.generator.get_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        for name in ("critic", "target", "actor"):
            getattr(self, name).load_state_dict(state[name])
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

    def policy_state(self) -> dict[str, Tensor]:
        """What acting needs: the actor, and the encoder it looks through."""
        encoder = {f"encoder.{k}": v for k, v in self.critic["encoder"].state_dict().items()}
        return {**encoder, **{f"actor.{k}": v for k, v in self.actor.state_dict().items()}}

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `policy_state`; critics stay as they are."""
        for name, module in (("encoder", self.critic["encoder"]), ("actor", self.actor)):
            module.load_state_dict(
                {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
            )

    @property
    def temperature(self) -> Tensor:
        """alpha."""
        return self.log_temperature.detach().exp()

    def encode(self, observation: Any) -> Tensor:
        """Features [B, f] of observations, without gradient."""
        with torch.no_grad():
            return self.critic["encoder"](observation)

    # --- what differs between discrete and continuous actions --------------------------------------------

    @abstractmethod
    def _act(
        self, features: Tensor, safe_set: Array | None, explore: bool, generator: torch.Generator
    ) -> Array:
        """Actions [L, ...] of the environment."""

    @abstractmethod
    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        """Of each action under the guarded policy [B]."""

    @abstractmethod
    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        """log pi(a|s) of the raw policy [B], differentiable."""

    @abstractmethod
    def _values(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Q of every critic at the action [N, B], and at actions to be held down [N, B, k] (k may be 0)."""

    @abstractmethod
    def _next_policy(self, features: Tensor, safe_set: Array) -> Any:
        """What the guarded policy does in B states: a named tuple of tensors [B, ...], one of them `uncertainty`."""

    @abstractmethod
    def _expected(self, features: Tensor, policy: Any, members: Tensor | None) -> Tensor:
        """Value [B] of a next policy under some of the target critics, its entropy left out."""

    @abstractmethod
    def _actor_loss(self, features: Tensor, safe_set: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The actor's loss, entropy minus target entropy of each state (NaN: none) [B], and metrics."""

    @abstractmethod
    def _target_at(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        """Value of an action under some of the target critics [B]."""

    # --- the update --------------------------------------------------------------------------------------

    @torch.no_grad()
    def _next_policies(self, minibatches: Sequence[Minibatch]) -> list[Any]:
        """What the policy does next in each minibatch."""
        features = [self.encode(self._augmented(batch.next_observation)) for batch in minibatches]
        safe_sets = np.concatenate([batch.next_safe_set for batch in minibatches])
        policy = self._next_policy(torch.cat(features), safe_sets)
        parts = [tensor.split([len(f) for f in features]) for tensor in policy]
        return [type(policy)(*part) for part in zip(*parts, strict=True)]

    def _soft_value(self, features: Tensor, policy: Any, members: Tensor | None) -> Tensor:
        uncertainty = self.config.entropy_sign * self.temperature * policy.uncertainty
        return self._expected(features, policy, members) + uncertainty

    def _update_critics(self, batch: Minibatch, next_policy: Any, index: int) -> dict[str, Tensor]:
        with torch.no_grad():
            target = self._target(batch, next_policy)
        features = self.critic["encoder"](self._augmented(batch.observation))
        values, held_down = self._values(features, batch.action)
        error = values - target
        loss = error.square().mean(dim=1).sum()
        if held_down.shape[-1]:
            conservative = (held_down.logsumexp(dim=-1) - values).mean(dim=1).sum()
            loss = loss + self.config.ood_penalty * conservative
        self._step("critic", loss, index)
        with torch.no_grad():
            return {
                "critic_loss": loss / len(values),
                "td_error": error.abs().mean(),
                "q_mean": values.mean(),
                "q_spread": values.std(dim=0).mean() if len(values) > 1 else torch.zeros(()),
            }

    def _update_actor(self, batch: Minibatch, index: int, clone_weight: float) -> dict[str, Tensor]:
        features = self.encode(self._augmented(batch.observation))
        if self.config.actor == "clone":
            loss = -self._log_likelihood(features, batch.action).mean()
            self._step("actor", loss, index)
            return {"actor_loss": loss.detach()}
        loss, excess, metrics = self._actor_loss(features, batch.safe_set)
        if clone_weight > 0 and not batch.is_online.all():
            likelihood = self._log_likelihood(features, batch.action)[~batch.is_online].mean()
            loss = loss - clone_weight * metrics["value_scale"] * likelihood
        self._step("actor", loss, index)
        known = ~excess.isnan()
        if self.config.target_entropy != "fixed" and known.any():
            self._step("temperature", self.log_temperature * excess[known].mean().detach(), index)
        return metrics | {"actor_loss": loss.detach(), "alpha": self.temperature}

    def _target(self, batch: Minibatch, next_policy: Any) -> Tensor:
        """r + gamma V(s') [B], or its corrected multi-step form."""
        members, seen = self._subset(), self._augmented(batch.next_observation)
        value = self._soft_value(self.target["encoder"](seen), next_policy, members)
        if batch.steps is None:
            # a terminal state has no value, not even 0 times infinity
            return batch.reward + torch.where(batch.discount > 0, batch.discount * value, 0.0)
        return self._tree_backup(batch, batch.steps, value, members)

    def _tree_backup(
        self, batch: Minibatch, steps: Mapping[str, Any], value: Tensor, members: Tensor | None
    ) -> Tensor:
        """Backwards through the span: each later step counts as far as the policy would have taken it."""
        length = torch.as_tensor(batch.span_length, device=self.device)
        result = value
        for k in range(steps["reward"].shape[1] - 1, -1, -1):
            reward, discount = steps["reward"][:, k], steps["discount"][:, k]
            here = reward + torch.where(discount > 0, discount * result, 0.0)
            if k:
                seen, safe_set = self._augmented(_at(steps["observation"], k)), steps["safe_set"][:, k]
                features, actor_features = self.target["encoder"](seen), self.encode(seen)
                probability = self._probability(actor_features, steps["action"][:, k], safe_set)
                q = self._target_at(features, steps["action"][:, k], members)
                local = self._soft_value(features, self._next_policy(actor_features, safe_set), members)
                here = local + probability * (here - q)
            result = torch.where(k < length, here, result)
        return result

    def _step(self, name: str, loss: Tensor, index: int) -> None:
        """One step of an optimiser, unless the loss or its gradient is not finite."""
        if not torch.isfinite(loss):
            raise Diverged(f"the loss of the {name}", index)
        optimiser, parameters = self.optimisers[name], self.parameters[name]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not torch.isfinite(norm):
            raise Diverged(f"the gradient of the {name}", index)
        optimiser.step()

    @torch.no_grad()
    def _follow(self) -> None:
        """Target parameters move a little towards the critics'."""
        torch._foreach_lerp_(self.parameters["target"], self.parameters["critic"], self.config.tau)

    def _least(self, values: Tensor) -> Tensor:
        """The least of the critics' values [M, ...] -> [...]."""
        return values.min(dim=0).values

    def _for_actor(self, values: Tensor) -> Tensor:
        """Mean or least of the critics' values [N, ...] -> [...]."""
        return values.mean(dim=0) if self.config.actor_value == "mean" else self._least(values)

    def _subset(self) -> Tensor | None:
        """Critics for one target: M of N at random, or all."""
        size, count = self.config.ensemble_size, self.config.target_subset
        if count in (0, size):
            return None
        return torch.randperm(size, generator=self.generator, device=self.device)[:count]

    # --- numpy to torch ----------------------------------------------------------------------------------

    def _minibatch(self, batch: Batch, index: int) -> Minibatch:
        inside = None
        if (steps := batch.span_steps) is not None:
            inside = {
                "observation": self._tensors(_at(steps.observation, index, axis=0)),
                "safe_set": steps.safe_set[index],
                "action": self._tensors(steps.executed_action[index]),
                "reward": self._tensors(steps.reward[index]),
                "discount": self._tensors(steps.discount[index]),
            }
        return Minibatch(
            observation=self._tensors(_at(batch.observation, index, axis=0)),
            next_observation=self._tensors(_at(batch.next_observation, index, axis=0)),
            action=self._tensors(batch.executed_action[index]),
            reward=self._tensors(batch.reward[index]),
            discount=self._tensors(batch.discount[index]),
            safe_set=batch.safe_set[index],
            next_safe_set=batch.next_safe_set[index],
            span_length=batch.span_length[index],
            is_online=self._tensors(batch.is_online[index]),
            steps=inside,
        )

    def _tensors(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._tensors(part) for key, part in value.items()}
        return torch.as_tensor(value, device=self.device)

    def _augmented(self, observation: Any) -> Any:
        if isinstance(self.critic["encoder"], PixelEncoder):
            return random_shift(observation, RANDOM_SHIFT, self.generator)
        return observation


def _at(value: Any, index: int, axis: int = 1) -> Any:
    """value[index], or value[:, index] for axis 1; also for a dict of arrays."""
    if isinstance(value, Mapping):
        return {key: _at(part, index, axis) for key, part in value.items()}
    return value[index] if axis == 0 else value[:, index]


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimiser's state with names for keys; its settings come from the config."""
    return {"state": {str(k): dict(v) for k, v in state["state"].items()}}


def trainable_devices() -> Iterable[str]:
    """Devices of this machine, best first."""
    if torch.cuda.is_available():
        yield "cuda"
    if torch.backends.mps.is_available():
        yield "mps"
    yield "cpu"
