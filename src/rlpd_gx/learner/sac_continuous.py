"""SAC for actions in a bounded box: a tanh-Gaussian policy, and critics of single actions."""

import gymnasium as gym
import torch
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.learner.action_critics import OOD_ACTIONS, ActionCritics, NextActions
from rlpd_gx.learner.networks import Encoder
from rlpd_gx.learner.policy import GaussianPolicy
from rlpd_gx.safe_sets import SafeSet, Spec, decode
from rlpd_gx.safe_sets.differentiable import project
from rlpd_gx.types import Array

DISTANCE_PENALTY = 1.0  # on the squared distance to the safe set: a projection has no gradient towards it
TARGET_ENTROPY = -0.5  # for each action dimension


class SacContinuous(ActionCritics[GaussianPolicy]):
    """Policy and critics use actions in [-1, 1]^d; safe sets are in the environment's units."""

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
        def policy(encoder: Encoder, initial: torch.Generator) -> GaussianPolicy:
            return GaussianPolicy(
                config, encoder, action_space, safe_set_spec, initial=initial, seed=seed, device=device
            )

        self.target_entropy = (
            config.target_entropy if isinstance(config.target_entropy, float) else TARGET_ENTROPY
        )
        super().__init__(
            config,
            observation_space,
            policy=policy,
            critic_inputs=gym.spaces.flatdim(action_space),
            safe_set_spec=safe_set_spec,
            seed=seed,
            device=device,
        )

    # --- values ------------------------------------------------------------------------------------------

    def _values(
        self, features: Tensor, action: Tensor, others: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        taken = self._q(self.critic, features, self.policy.normalised(action))
        if others is None:
            return taken, taken[..., None][..., :0]
        return taken, self._q(self.critic, features, others).movedim(1, -1)

    def _others(self, count: int) -> Tensor:
        shape = (OOD_ACTIONS, count, self.policy.dimension)
        return torch.rand(shape, generator=self.generator, device=self.device) * 2 - 1

    def _next_policy(self, features: Tensor, safe_set: Array) -> NextActions:
        samples = self.target_samples if self.config.backup == "renormalise" else 1
        action, log_density = self.policy.draw(features, samples)
        weight, uncertainty = torch.full_like(log_density, 1 / samples), -log_density.mean(dim=0)
        if self.config.backup != "none" and self.safe_set_spec is not None:
            sets = decode(safe_set, self.safe_set_spec)
            inside = self.policy.contains(sets, action)
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

    # --- the actor ---------------------------------------------------------------------------------------

    def _actor_loss(self, features: Tensor, safe_set: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        (action,), (log_density,) = self.policy.draw(features)
        executed, penalty, counts = action, torch.zeros(()), torch.ones(())
        metrics = {"entropy": -log_density.detach().mean()}
        if self.safe_set_spec is not None and self.config.actor != "raw":
            sets = decode(safe_set, self.safe_set_spec)
            executed = self._project(sets, action)
            # the boundary does not depend on the actor: only the distance to it has a gradient
            distance = (action - executed.detach()).square().sum(dim=-1)
            penalty = DISTANCE_PENALTY * distance
            if self.config.actor == "masked":
                counts = self.policy.contains(sets, action)
            metrics["forbidden_mass"] = (distance > 0).float().mean()
        value = self._actor_q(features, executed) * counts
        metrics["value_scale"] = value.detach().abs().mean()
        excess = -log_density.detach() - self.target_entropy * self.policy.dimension
        return (self.temperature * log_density + penalty - value).mean(), excess, metrics

    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        as_cloned = self.config.actor == "clone"
        density = self.policy.log_density(features, self.policy.normalised(action), cloned=as_cloned)
        return (density / self.policy.dimension).exp()

    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        return self.policy.log_density(features, self.policy.normalised(action), cloned=True)

    def _target_at(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        return self._target_q(features, self.policy.normalised(action), members)

    def _project(self, sets: SafeSet, action: Tensor) -> Tensor:
        """The nearest allowed actions [B, d]; only those outside are projected."""
        outside = (~self.policy.contains(sets, action)).nonzero()[:, 0]
        return action.index_put((outside,), self._nearest(sets, action, outside))

    def _nearest(self, sets: SafeSet, action: Tensor, rows: Tensor) -> Tensor:
        """The allowed actions [k, d] nearest to some rows of actions [B, d]."""
        if not len(rows):
            return action[rows]
        wanted = self.policy.in_units(action[rows]).cpu().double()  # codes are numpy arrays
        return self.policy.normalised(project(sets[rows.cpu().numpy()], wanted).to(self.device))
