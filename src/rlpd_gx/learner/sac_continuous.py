"""SAC for actions in a bounded box: a tanh-Gaussian policy, and values of single actions."""

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.errors import GxError
from rlpd_gx.learner.sac import Sac
from rlpd_gx.safe_sets import SafeSet, Spec, decode
from rlpd_gx.safe_sets.differentiable import project
from rlpd_gx.types import Array

RESAMPLES = 16  # draws for `resample`; if none is allowed, the Guardian projects the first
OOD_ACTIONS = 8
LOG_STD = (-20.0, 2.0)
DISTANCE_PENALTY = 1.0  # of the squared distance to the safe set: a projection has no gradient towards it
TARGET_ENTROPY = -0.5  # for each action dimension


class Draw(NamedTuple):
    """Samples [K, B, d] in [-1, 1], and their log density [K, B]."""

    action: Tensor
    log_density: Tensor


class NextActions(NamedTuple):
    """K actions [B, K, d] of each state, what each counts [B, K], and the entropy [B] of that policy."""

    action: Tensor
    weight: Tensor
    uncertainty: Tensor


class SacContinuous(Sac):
    """The policy lives in [-1, 1]^d, and so do the critics' actions; safe sets are in the environment's units."""

    target_samples = 4
    """Next actions sampled for one renormalised target."""

    def __init__(
        self,
        config: LearnerConfig,
        observation_space: gym.Space,
        action_space: gym.spaces.Box,
        *,
        safe_set_spec: Spec | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        if not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
            raise GxError(f"the Learner needs bounded actions, but the space is {action_space}; rescale it")
        if not (action_space.low < action_space.high).all():
            raise GxError(
                f"an action component of {action_space} has no room; leave it out of the action space"
            )
        if len(action_space.shape) != 1:
            raise GxError(f"the Learner needs actions [d], but the space is {action_space}; flatten it")
        self.dimension = int(action_space.shape[0])
        self.dtype = action_space.dtype
        self.target_entropy = (
            config.target_entropy if isinstance(config.target_entropy, float) else TARGET_ENTROPY
        )
        super().__init__(
            config,
            observation_space,
            actor_outputs=2 * self.dimension,
            critic_inputs=self.dimension,
            critic_outputs=1,
            safe_set_spec=safe_set_spec,
            seed=seed,
            device=device,
        )
        low, high = (
            torch.as_tensor(v, dtype=torch.float32, device=self.device)
            for v in (action_space.low, action_space.high)
        )
        self.centre, self.half = (low + high) / 2, (high - low) / 2

    # --- the policy --------------------------------------------------------------------------------------

    def draw(self, features: Tensor, samples: int = 1, generator: torch.Generator | None = None) -> Draw:
        """Samples of the policy, differentiable in its parameters."""
        mean, log_std = self._gaussian(features)
        shape = (samples, *mean.shape)
        noise = torch.randn(shape, generator=generator or self.generator, device=self.device)
        u = mean + log_std.exp() * noise
        log_density = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std - _log_slope(u)
        return Draw(torch.tanh(u), log_density.sum(dim=-1))

    def log_density(self, features: Tensor, action: Tensor) -> Tensor:
        """log pi(a) [B] of actions in [-1, 1]; those beyond the ends count as just inside."""
        mean, log_std = self._gaussian(features)
        u = torch.atanh(action.clamp(-1 + 1e-6, 1 - 1e-6))
        scaled = (u - mean) * torch.exp(-log_std)
        log_density = -0.5 * (scaled.square() + math.log(2 * math.pi)) - log_std - _log_slope(u)
        return log_density.sum(dim=-1)

    def _gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(features)[0].chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)

    def _act(
        self, features: Tensor, safe_set: Array | None, explore: bool, generator: torch.Generator
    ) -> Array:
        if not explore:
            action = torch.tanh(self._gaussian(features)[0])
        elif safe_set is None or self.safe_set_spec is None:
            action = self.draw(features, 1, generator).action[0]
        else:
            draws = self.draw(features, RESAMPLES, generator).action
            inside = self._contains(decode(safe_set, self.safe_set_spec), draws)
            first = inside.float().argmax(dim=0)  # 0 where none is inside
            action = draws.gather(0, first[None, :, None].expand(1, *draws.shape[1:]))[0]
        return (self.centre + self.half * action).cpu().numpy().astype(self.dtype)

    # --- values ------------------------------------------------------------------------------------------

    def _values(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        normalised = self._normalised(action)
        taken = self._q(self.critic, features, normalised)
        if not self.config.ood_penalty:
            return taken, taken[..., None][..., :0]
        shape = (OOD_ACTIONS, *normalised.shape)
        anywhere = torch.rand(shape, generator=self.generator, device=self.device) * 2 - 1
        return taken, self._q(self.critic, features, anywhere).movedim(1, -1)

    def _next_policy(self, features: Tensor, safe_set: Array) -> NextActions:
        samples = self.target_samples if self.config.backup == "renormalise" else 1
        action, log_density = self.draw(features, samples)
        weight, uncertainty = torch.full_like(log_density, 1 / samples), -log_density.mean(dim=0)
        if self.config.backup != "none" and self.safe_set_spec is not None:
            sets = decode(safe_set, self.safe_set_spec)
            inside = self._contains(sets, action)
            count = inside.sum(dim=0)
            none = count == 0
            rows = none.nonzero()[:, 0]
            action[0, rows] = self._nearest(sets, action[0], rows)
            # E over accepted samples, and the entropy of the renormalised density: -E[log pi] + log Z
            first = torch.eye(samples, 1, device=self.device)
            weight = torch.where(none, first, inside) / count.clamp(min=1)
            uncertainty = -(weight * log_density).sum(dim=0) + (count.clamp(min=1) / samples).log()
            uncertainty = torch.where(none, -log_density[0], uncertainty)
        return NextActions(action.transpose(0, 1), weight.T, uncertainty)

    def _expected(self, features: Tensor, policy: NextActions, members: Tensor | None) -> Tensor:
        values = self._target_q(features, policy.action.transpose(0, 1), members)
        return (policy.weight.T * values).sum(dim=0)

    def _target_q(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        """Least target value of actions [B, d] or [K, B, d] -> [B] or [K, B]."""
        return self._least(self._q(self.target, features, action, members))

    def _q(self, critic: Any, features: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Q of critics: features [B, f], actions [B, d] or [K, B, d] -> [N, B] or [N, K, B]."""
        joint = torch.cat([features.expand(*action.shape[:-1], -1), action], dim=-1)
        q = critic["ensemble"](joint.flatten(0, -2), members)
        return q.reshape(len(q), *action.shape[:-1])

    # --- the actor ---------------------------------------------------------------------------------------

    def _actor_loss(self, features: Tensor, safe_set: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        (action,), (log_density,) = self.draw(features)
        executed, penalty, counts = action, torch.zeros(()), torch.ones(())
        metrics = {"entropy": -log_density.detach().mean()}
        if self.safe_set_spec is not None and self.config.actor != "raw":
            sets = decode(safe_set, self.safe_set_spec)
            executed = self._project(sets, action)
            # where the boundary lies does not depend on the actor: only the way back to it counts
            distance = (action - executed.detach()).square().sum(dim=-1)
            penalty = DISTANCE_PENALTY * distance
            if self.config.actor == "masked":
                counts = self._contains(sets, action)
            metrics["forbidden_mass"] = (distance > 0).float().mean()
        value = self._actor_q(features, executed) * counts
        metrics["value_scale"] = value.detach().abs().mean()
        excess = -log_density.detach() - self.target_entropy * self.dimension
        return (self.temperature * log_density + penalty - value).mean(), excess, metrics

    def _actor_q(self, features: Tensor, action: Tensor) -> Tensor:
        self.critic.requires_grad_(False)  # only the actor learns here
        value = self._for_actor(self._q(self.critic, features, action))
        self.critic.requires_grad_(True)
        return value

    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        return (self._log_likelihood(features, action) / self.dimension).exp()

    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        return self.log_density(features, self._normalised(action))

    def _target_at(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        return self._target_q(features, self._normalised(action), members)

    # --- between [-1, 1] and the environment's units -----------------------------------------------------

    def _normalised(self, action: Tensor) -> Tensor:
        return (action.float() - self.centre) / self.half

    def _project(self, sets: SafeSet, action: Tensor) -> Tensor:
        """The nearest allowed actions [B, d]; only those outside cost a projection."""
        outside = (~self._contains(sets, action)).nonzero()[:, 0]
        return action.index_put((outside,), self._nearest(sets, action, outside))

    def _nearest(self, sets: SafeSet, action: Tensor, rows: Tensor) -> Tensor:
        """The allowed actions [k, d] nearest to some rows of actions [B, d]."""
        if not len(rows):
            return action[rows]
        wanted = (self.centre + self.half * action[rows]).cpu().double()  # codes lie in memory
        return self._normalised(project(sets[rows.cpu().numpy()], wanted).to(self.device))

    def _contains(self, sets: SafeSet, action: Tensor) -> Tensor:
        """[..., B] bool for actions [..., B, d]."""
        inside = sets.contains((self.centre + self.half * action.detach()).cpu().numpy())
        return torch.as_tensor(inside, device=self.device)


def _log_slope(u: Tensor) -> Tensor:
    """log of the derivative of tanh at u, without cancellation."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))
