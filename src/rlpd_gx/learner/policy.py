"""The policy: actor network and encoder. This is all that acting needs, so deployment builds nothing else."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlpd_gx.config import LearnerConfig
from rlpd_gx.errors import GxError
from rlpd_gx.learner.categorical import allowed_actions, log_policy
from rlpd_gx.learner.networks import Encoder, Ensemble, Observed, encoder_for
from rlpd_gx.safe_sets import SafeSet, Spec, decode
from rlpd_gx.trees import Tree, map_leaves
from rlpd_gx.types import Array, Observation

RESAMPLES = 16  # draws for `resample`; if none is allowed, the Guardian projects the first
LOG_STD = (-20.0, 2.0)
END = 1e-6  # distance from -1 and 1 at which actions beyond it count as lying
# The same for actions that are cloned. The density of a squashed Gaussian has no bound at the ends of its range, where
# controllers often are (41% of the components of Hopper's ladder data): chasing it saturates the policy.
CLONED_END = 1e-2
# scale of a soft policy's untrained values: they are much smaller than alpha, so it is uniform
FIRST_VALUES = 0.01
UNSUPPORTED = -1e30  # logit: finite, so that a softmax over unsupported actions alone is uniform


class PolicyNetwork(nn.Module, ABC):
    """Actor network on the features of an encoder; `state_dict()` is what an exported policy stores.

    Safe sets are stored codes [L, width] that `spec` describes; only `execution = resample` reads them.
    """

    def __init__(
        self,
        config: LearnerConfig,
        encoder: Encoder,
        outputs: int,
        spec: Spec | None,
        *,
        initial: torch.Generator,
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        self.config, self.spec, self.device = config, spec, torch.device(device)
        self.encoder = encoder
        self.actor = self._network((encoder.features, *config.hidden_sizes, outputs), initial)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.to(self.device)

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        safe_set: Array | None = None,
        *,
        explore: bool = True,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Proposed actions [L, ...] for observations [L, ...]; the mode of the policy unless `explore`."""
        features = self.encode(self.tensors(observation))
        safe_set = safe_set if self.config.execution == "resample" else None
        return self._act(features, safe_set, explore, generator or self.generator)

    def _network(self, sizes: Sequence[int], initial: torch.Generator) -> Ensemble:
        return Ensemble(1, sizes, layer_norm=False, generator=initial)

    def encode(self, observation: Observed) -> Tensor:
        """Features [B, f] of observations, without gradient."""
        with torch.no_grad():
            return self.encoder(observation)

    def tensors(self, tree: Tree) -> Tree:
        """Arrays as tensors on the device of the policy."""
        return map_leaves(partial(torch.as_tensor, device=self.device), tree)

    @abstractmethod
    def _act(
        self, features: Tensor, safe_set: Array | None, explore: bool, generator: torch.Generator
    ) -> Array:
        """Actions [L, ...] in the environment's units."""


class CategoricalPolicy(PolicyNetwork):
    """For discrete actions: one logit for each."""

    def __init__(
        self,
        config: LearnerConfig,
        encoder: Encoder,
        space: gym.spaces.Discrete,
        spec: Spec | None,
        *,
        initial: torch.Generator,
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        if spec is not None and spec["kind"] != "mask":
            raise GxError(f"discrete actions have masks as safe sets, not {spec['kind']}")
        self.n, self.start = int(space.n), int(space.start)
        super().__init__(config, encoder, self.n, spec, initial=initial, seed=seed, device=device)

    def logits(self, features: Tensor) -> Tensor:
        """[B, n]."""
        return self.actor(features)[0]

    def index(self, action: Tensor) -> Tensor:
        """Actions [B] as columns [B, 1] of logits and values."""
        return (action.long() - self.start)[:, None]

    def allowed(self, safe_set: Array | None) -> Tensor | None:
        """Which actions each state allows [B, n] bool; None where there are no safe sets."""
        if safe_set is None or self.spec is None:
            return None
        return torch.as_tensor(allowed_actions(safe_set, self.spec, self.config.untested), device=self.device)

    def _act(
        self, features: Tensor, safe_set: Array | None, explore: bool, generator: torch.Generator
    ) -> Array:
        probability = log_policy(self.logits(features), self.allowed(safe_set)).exp()
        if explore:
            # inverse of the cumulative sum: one random number for each row
            draw = torch.rand(len(probability), 1, generator=generator, device=self.device)
            below = probability.cumsum(dim=-1) / probability.sum(dim=-1, keepdim=True) <= draw
            choice = below.sum(dim=-1).clamp(max=self.n - 1)
        else:
            choice = probability.argmax(dim=-1)
        return choice.cpu().numpy() + self.start


class SoftPolicy(CategoricalPolicy):
    """The softmax of the critics over alpha: its network is the ensemble of critics, not an actor."""

    log_temperature: nn.Parameter

    def __init__(self, config: LearnerConfig, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        first = torch.tensor(math.log(config.temperature), device=self.device)
        self.log_temperature = nn.Parameter(first)

    def _network(self, sizes: Sequence[int], initial: torch.Generator) -> Ensemble:
        config = self.config
        network = Ensemble(config.ensemble_size, sizes, layer_norm=config.layer_norm, generator=initial)
        network.weights[-1].data.mul_(FIRST_VALUES)
        return network

    def logits(self, features: Tensor) -> Tensor:
        """[B, n]."""
        return self.soft(self.actor(features))

    def soft(self, q: Tensor) -> Tensor:
        """Logits [B, n] of values [N, B, n]: their mean (or minimum) over alpha."""
        value = q.mean(dim=0) if self.config.actor_value == "mean" else q.amin(dim=0)
        return value / self.log_temperature.detach().exp()


class SupportedPolicy(SoftPolicy):
    """A soft policy over the actions that the offline data supports, as a clone of it sees them (discrete BCQ)."""

    def __init__(
        self, config: LearnerConfig, encoder: Encoder, *args: Any, initial: torch.Generator, **options: Any
    ) -> None:
        super().__init__(config, encoder, *args, initial=initial, **options)
        sizes = (encoder.features, *config.hidden_sizes, self.n)
        self.clone = Ensemble(1, sizes, layer_norm=False, generator=initial).to(self.device)

    def logits(self, features: Tensor) -> Tensor:
        """[B, n]."""
        return self.restricted(super().logits(features), features)

    def restricted(self, logits: Tensor, features: Tensor) -> Tensor:
        """Logits [B, n] in which unsupported actions only count where the safe set allows no other."""
        return logits.masked_fill(~self.supports(features), UNSUPPORTED)

    def supports(self, features: Tensor) -> Tensor:
        """[B, n] bool: G(a|s) is at least `support` times the largest."""
        likely = self.clone(features)[0]
        return likely >= likely.amax(dim=-1, keepdim=True) + math.log(self.config.support)


def soft_kind(config: LearnerConfig) -> type[SoftPolicy]:
    """The policy without an actor network that these settings ask for."""
    return SupportedPolicy if config.support else SoftPolicy


class Draw(NamedTuple):
    """Samples [K, B, d] in [-1, 1], and their log density [K, B]."""

    action: Tensor
    log_density: Tensor


class GaussianPolicy(PolicyNetwork):
    """For actions in a bounded box: a Gaussian squashed by tanh. It acts in [-1, 1]^d; safe sets do not."""

    centre: Tensor
    half_width: Tensor

    def __init__(
        self,
        config: LearnerConfig,
        encoder: Encoder,
        space: gym.spaces.Box,
        spec: Spec | None,
        *,
        initial: torch.Generator,
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise GxError(f"the Learner needs bounded actions, but the space is {space}; rescale it")
        if not (space.low < space.high).all():
            raise GxError(
                f"an action component of {space} has equal bounds; leave it out of the action space"
            )
        if len(space.shape) != 1:
            raise GxError(f"the Learner needs actions [d], but the space is {space}; flatten it")
        self.dimension, self.dtype = int(space.shape[0]), space.dtype
        super().__init__(config, encoder, 2 * self.dimension, spec, initial=initial, seed=seed, device=device)
        low, high = (
            torch.as_tensor(v, dtype=torch.float32, device=self.device) for v in (space.low, space.high)
        )
        self.centre, self.half_width = (low + high) / 2, (high - low) / 2

    def draw(self, features: Tensor, samples: int = 1, generator: torch.Generator | None = None) -> Draw:
        """Samples of the policy, differentiable in its parameters."""
        mean, log_std = self._gaussian(features)
        shape = (samples, *mean.shape)
        noise = torch.randn(shape, generator=generator or self.generator, device=self.device)
        u = mean + log_std.exp() * noise
        log_density = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std - _log_slope(u)
        return Draw(torch.tanh(u), log_density.sum(dim=-1))

    def log_density(self, features: Tensor, action: Tensor, *, cloned: bool = False) -> Tensor:
        """log pi(a) [B] of actions in [-1, 1]; those at or beyond the ends count as just inside."""
        mean, log_std = self._gaussian(features)
        nearest = 1 - (CLONED_END if cloned else END)
        u = torch.atanh(action.clamp(-nearest, nearest))
        scaled = (u - mean) * torch.exp(-log_std)
        log_density = -0.5 * (scaled.square() + math.log(2 * math.pi)) - log_std - _log_slope(u)
        return log_density.sum(dim=-1)

    def normalised(self, action: Tensor) -> Tensor:
        """From the environment's units to [-1, 1]."""
        return (action.float() - self.centre) / self.half_width

    def in_units(self, action: Tensor) -> Tensor:
        """From [-1, 1] to the environment's units."""
        return self.centre + self.half_width * action

    def contains(self, sets: SafeSet, action: Tensor) -> Tensor:
        """[..., B] bool: which actions [..., B, d] in [-1, 1] are allowed."""
        inside = sets.contains(self.in_units(action.detach()).cpu().numpy())
        return torch.as_tensor(inside, device=self.device)

    def _gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(features)[0].chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)

    def _act(
        self, features: Tensor, safe_set: Array | None, explore: bool, generator: torch.Generator
    ) -> Array:
        if not explore:
            action = torch.tanh(self._gaussian(features)[0])
        elif safe_set is None or self.spec is None:
            action = self.draw(features, 1, generator).action[0]
        else:
            draws = self.draw(features, RESAMPLES, generator).action
            inside = self.contains(decode(safe_set, self.spec), draws)
            first = inside.float().argmax(dim=0)  # 0 where none is inside
            action = draws.gather(0, first[None, :, None].expand(1, *draws.shape[1:]))[0]
        return self.in_units(action).cpu().numpy().astype(self.dtype)


def restored(
    tensors: Mapping[str, Tensor],
    config: LearnerConfig,
    observation_space: gym.Space,
    action_space: gym.Space,
    spec: Spec | None,
    seed: int,
) -> PolicyNetwork:
    """A policy on the CPU from its `state_dict()`; `seed` is that of sampled actions."""
    initial = torch.Generator()  # for weights that the tensors replace
    encoder = encoder_for(observation_space, initial)
    policy: PolicyNetwork
    if isinstance(action_space, gym.spaces.Discrete):
        kind = soft_kind(config) if config.actor == "auto" else CategoricalPolicy
        policy = kind(config, encoder, action_space, spec, initial=initial, seed=seed)
    elif isinstance(action_space, gym.spaces.MultiDiscrete):
        from rlpd_gx.learner.sac_factored import FactoredPolicy

        policy = FactoredPolicy(config, encoder, action_space, spec, initial=initial, seed=seed)
    else:
        assert isinstance(action_space, gym.spaces.Box)
        policy = GaussianPolicy(config, encoder, action_space, spec, initial=initial, seed=seed)
    policy.load_state_dict(tensors)
    return policy


def _log_slope(u: Tensor) -> Tensor:
    """log of the derivative of tanh at u, without cancellation."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))
