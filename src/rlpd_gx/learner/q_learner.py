"""What all learners share: an ensemble of critics, its target, the temperature, and the block of updates."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlpd_gx.config import LearnerConfig
from rlpd_gx.errors import GxError
from rlpd_gx.learner.adam import Adam
from rlpd_gx.learner.networks import (
    Encoder,
    Ensemble,
    Observed,
    PixelEncoder,
    compiled,
    random_shift,
)
from rlpd_gx.learner.policy import PolicyNetwork
from rlpd_gx.learner.products import fast_products
from rlpd_gx.safe_sets import Spec
from rlpd_gx.types import Array, Batch, Observation, SpanSteps

RANDOM_SHIFT = 4  # pixels, as in DrQ and RLPD
CODES = ("safe_set", "next_safe_set")  # columns that stay encoded numpy rows

Policy = TypeVar("Policy", bound=PolicyNetwork)


class Step(NamedTuple):
    """One step inside a span, each [B]: value of the state, probability of its action, and the value of that."""

    value: Tensor
    probability: Tensor
    q: Tensor


class Following(NamedTuple):
    """What one-step targets of B rows are made of."""

    reward: Tensor
    discount: Tensor
    members: Tensor | None
    """Critics whose minimum counts; None for all."""
    observation: Observed
    policy: Any
    """What the learner knows of its policy there: its next actions, or which actions are allowed."""


class QLearner(ABC, Generic[Policy]):
    """N critics on the features of an encoder, target critics, and a learned temperature.

    Safe sets are stored codes that `safe_set_spec` describes; the rules behind them play no part here.
    """

    _learn: Callable[..., Any]
    """One step of the critics, from tensors alone, so that it can be one graph."""

    def __init__(
        self,
        config: LearnerConfig,
        encoder: Encoder,
        critics: Ensemble,
        policy: Policy,
        log_temperature: Tensor,
        *,
        safe_set_spec: Spec | None,
        device: str | torch.device,
    ) -> None:
        if safe_set_spec is None and not (
            config.backup == "none" and config.actor in ("auto", "raw", "clone")
        ):
            raise GxError(
                "there are no stored safe sets (no rules, or rules without a finite description), so only "
                "backup=none with actor=raw can be used; write the rules as bounds, constraints or masks"
            )
        self.config, self.device, self.safe_set_spec = config, torch.device(device), safe_set_spec
        self.critic = nn.ModuleDict({"encoder": encoder, "ensemble": critics}).to(self.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy, self.generator = policy, policy.generator
        self.average = policy if config.policy_tau == 1 else _twin(policy)
        """What is evaluated and exported: a running average of the policy that learns, or that itself."""
        self.averaged_blocks = 0
        self.parameters: dict[str, list[Tensor]] = {
            "critic": list(self.critic.parameters()),
            "target": list(self.target.parameters()),
            "policy": list(policy.parameters()),
            "average": list(self.average.parameters()),
        }
        self.log_temperature = log_temperature
        self.data_returns: Tensor | None = None
        """Discounted return [n] from each offline row on, for `ood_penalty = calibrated`."""
        self.optimisers = {"critic": self._adam("critic", self.parameters["critic"])}

    def compile(self) -> None:
        """Make one graph of a step of the critics, from target to parameters, if the settings ask for it."""
        if self.config.compile:
            self._learn = compiled(MethodType(type(self)._learn, self), self.device)

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
        return self.average.act(observation, safe_set, explore=explore, generator=generator)

    def explore(self, observation: Observation, safe_set: Array | None = None) -> Array:
        """The same in training: drawn from the policy that learns, so that its mistakes are seen."""
        return self.policy.act(observation, safe_set)

    @torch.no_grad()
    def probability(self, observation: Observation, action: Array, safe_set: Array) -> Array:
        """Probability [n] of each action under the guarded average (continuous: density per component)."""
        averaged = copy.copy(self)
        averaged.policy = self.average
        seen, taken = self.policy.tensors((observation, action))
        return averaged._probability(averaged.encode(seen), taken, safe_set).cpu().numpy()

    @property
    def calibrates(self) -> bool:
        """Whether `calibrate` is wanted before the first update: the mean image is always subtracted from images."""
        return self.config.normalise or isinstance(self.critic["encoder"], PixelEncoder)

    def calibrate(self, observations: Iterable[Observation]) -> None:
        """Before the first update: normalise observations by the statistics of these [B, ...]."""
        seeing: Any = self.critic["encoder"]
        seeing.calibrate(map(self.policy.tensors, observations))
        for encoder in (self.target["encoder"], self.average.encoder):
            encoder.load_state_dict(seeing.state_dict())

    def update(self, batch: Batch[Array], *, progress: float = 0.0) -> dict[str, float]:
        """Learn from [U, B] transitions: U critic updates, then one of the policy.

        `progress` is the fraction of the run that is over; the weight of cloning falls with it.
        """
        minibatches = [self._minibatch(batch, index) for index in range(len(batch.reward))]
        with fast_products(self.device):
            metrics = self._update(minibatches, self.config.clone_weight_at(progress))
        self._update_average()
        return {name: float(value) for name, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        """Everything needed to resume bit for bit: nested dicts of tensors and numbers."""
        learning = {"learning_policy": self.policy.state_dict(), "averaged_blocks": self.averaged_blocks}
        return {
            "policy": self.average.state_dict(),  # all that an exported policy needs
            "target": self.target.state_dict(),
            "optimisers": {name: optimiser.state() for name, optimiser in self.optimisers.items()},
            "generator": self.generator.get_state(),
        } | (learning if self.average is not self.policy else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.average.load_state_dict(state["policy"])
        self.policy.load_state_dict(state.get("learning_policy", state["policy"]))
        self.averaged_blocks = state.get("averaged_blocks", 0)
        self.target.load_state_dict(state["target"])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state(state["optimisers"][name])
        self.generator.set_state(state["generator"].cpu())

    @property
    def temperature(self) -> Tensor:
        """alpha."""
        return self.log_temperature.detach().exp()

    def encode(self, observation: Observed) -> Tensor:
        """Features [B, f] of observations, without gradient."""
        return self.policy.encode(observation)

    # --- what differs between learners -------------------------------------------------------------------

    @abstractmethod
    def _update(self, minibatches: Sequence[Batch[Tensor]], clone_weight: float) -> dict[str, Tensor]:
        """One block of updates; returns metrics."""

    @abstractmethod
    def _value_after(self, after: Following) -> Tensor:
        """Value of the following states [B] under the target critics and the guarded policy."""

    @abstractmethod
    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        """Probability [B] of each action under the guarded policy."""

    # --- shared parts of an update -----------------------------------------------------------------------

    def _adam(self, name: str, parameters: Iterable[Tensor]) -> Adam:
        return Adam(name, list(parameters), self.config.learning_rate)

    @torch.no_grad()
    def _update_target(self) -> None:
        """Move the target networks towards the critics by tau."""
        torch._foreach_lerp_(self.parameters["target"], self.parameters["critic"], self.config.tau)

    @torch.no_grad()
    def _update_average(self) -> None:
        """Move the average towards the policy that learns; at first it is the plain mean, which does not lag."""
        if self.average is not self.policy:
            self.averaged_blocks += 1
            rate = max(self.config.policy_tau, 1 / self.averaged_blocks)
            torch._foreach_lerp_(self.parameters["average"], self.parameters["policy"], rate)

    def _return_of_data(self, batch: Batch[Tensor]) -> Tensor | None:
        """The return [B] below which a calibrated penalty lowers no value; -inf for online rows."""
        if self.data_returns is None:
            return None
        known = self.data_returns[torch.where(batch.is_online, 0, batch.row)]
        return torch.where(batch.is_online, -torch.inf, known)

    def _least(self, values: Tensor) -> Tensor:
        """Minimum over critics [M, ...] -> [...]."""
        return values.amin(dim=0)

    def _for_actor(self, values: Tensor) -> Tensor:
        """Mean or minimum over critics [N, ...] -> [...]."""
        return values.mean(dim=0) if self.config.actor_value == "mean" else self._least(values)

    def _subset(self) -> Tensor | None:
        """Critics for one target: M of N at random, or all."""
        size, count = self.config.ensemble_size, self.config.target_subset
        if count in (0, size):
            return None
        return torch.randperm(size, generator=self.generator, device=self.device)[:count]

    def _bootstrapped(self, reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
        """r + gamma V(s'); a terminal state has no value, and 0 times an infinite one would be NaN."""
        return reward + torch.where(discount > 0, discount * value, 0.0)

    @torch.no_grad()
    def _target_from(self, after: Following | Tensor) -> Tensor:
        """The targets [B]: r + gamma V(s'), unless they are given."""
        if isinstance(after, Tensor):
            return after
        return self._bootstrapped(after.reward, after.discount, self._value_after(after))

    def _tree_backup(
        self, steps: SpanSteps[Tensor], length: Tensor, value: Tensor, at_step: Callable[[int], Step]
    ) -> Tensor:
        """Backwards through the spans: later steps are weighted by the probability of their actions."""
        result = value
        for k in range(steps.reward.shape[1] - 1, -1, -1):
            here = self._bootstrapped(steps.reward[:, k], steps.discount[:, k], result)
            if k:
                step = at_step(k)
                here = step.value + step.probability * (here - step.q)
            result = torch.where(k < length, here, result)
        return result

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


def _twin(policy: Policy) -> Policy:
    """A copy with parameters of its own, which draws from the same generator."""
    return copy.deepcopy(policy, {id(policy.generator): policy.generator}).requires_grad_(False)


def critic_metrics(loss: Tensor, error: Tensor, values: Tensor) -> dict[str, Tensor]:
    """Of one critic update: loss, TD error and values, the last two [N, B]."""
    with torch.no_grad():
        return {
            "critic_loss": loss / len(values),
            "td_error": error.abs().mean(),
            "q_mean": values.mean(),
            "q_spread": values.std(dim=0).mean() if len(values) > 1 else torch.zeros(()),
        }


def critics_for(
    config: LearnerConfig, encoder: Encoder, inputs: int, outputs: int, generator: torch.Generator
) -> Ensemble:
    """New critics on the features of an encoder and `inputs` more numbers."""
    sizes = (encoder.features + inputs, *config.hidden_sizes, outputs)
    return Ensemble(config.ensemble_size, sizes, layer_norm=config.layer_norm, generator=generator)


def above(values: Tensor, floor: Tensor | None) -> Tensor:
    """Values [N, B, k], those below a floor [B] raised to it, so that they have no gradient; -inf stays."""
    if floor is None:
        return values
    return torch.where(values.isneginf(), values, torch.maximum(values, floor[:, None]))


def returns_to_go(reward: Array, is_step: Array, gamma: float) -> Array:
    """Discounted return [n] from each row of a timeline to the end of its episode."""
    found = np.zeros(len(reward) + 1)
    for row in range(len(reward) - 1, -1, -1):
        found[row] = reward[row] + gamma * found[row + 1] if is_step[row] else 0.0
    return found[:-1].astype(np.float32)


def first_temperature(config: LearnerConfig, device: str | torch.device) -> Tensor:
    """log alpha [] as it begins."""
    return torch.tensor(np.log(config.temperature), dtype=torch.float32, device=device, requires_grad=True)


def trainable_devices() -> Iterable[str]:
    """Devices of this machine, the fastest first."""
    if torch.cuda.is_available():
        yield "cuda"
    if torch.backends.mps.is_available():
        yield "mps"
    yield "cpu"
