"""A network that predicts whether an unsafe event follows a step, learned from what was seen online."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlpd_gx.envs.actions import uniform_actions
from rlpd_gx.learner import QLearner
from rlpd_gx.learner.adam import Adam
from rlpd_gx.learner.networks import Ensemble
from rlpd_gx.replay.extent import Extent
from rlpd_gx.types import Array, Observation

HIDDEN = (64, 64)
LEARNING_RATE = 1e-3
CANDIDATES = 64  # uniform actions that are tried where actions are not listed


class Risk:
    """P(unsafe event within the label window | state, action), on the features of the Learner's encoder."""

    def __init__(self, learner: QLearner, action_space: gym.Space, seed: int) -> None:
        self.learner, self.space = learner, action_space
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        inputs = 0 if self.discrete else int(np.prod(action_space.shape or ()))
        outputs = int(action_space.n) if isinstance(action_space, gym.spaces.Discrete) else 1
        sizes = (learner.policy.encoder.features + inputs, *HIDDEN, outputs)
        initial = torch.Generator().manual_seed(seed)
        self.network = Ensemble(1, sizes, layer_norm=False, generator=initial).to(learner.device)
        self.optimiser = Adam("risk", list(self.network.parameters()), LEARNING_RATE)
        self.candidates = self._candidates(np.random.default_rng(seed))

    def fit(self, observation: Observation, action: Array, event: Array) -> float:
        """One step on labelled steps [B]; returns the loss."""
        label = torch.as_tensor(event, dtype=torch.float32, device=self.learner.device)
        loss = F.binary_cross_entropy_with_logits(self._logits(observation, action), label)
        self.optimiser.step(loss, 0)
        return float(loss.detach())

    @torch.no_grad()
    def of(self, observation: Observation, action: Array) -> Array:
        """Risk [B] of actions [B, ...] in states [B, ...]."""
        return self._logits(observation, action).sigmoid().double().cpu().numpy()

    def nearby(self, proposed: Any) -> Array:
        """Actions [k, ...] that could run in place of a proposal, the proposal first."""
        return np.concatenate([np.asarray(proposed)[None], self.candidates])

    def _candidates(self, generator: np.random.Generator) -> Array:
        if isinstance(self.space, gym.spaces.Discrete):
            return np.arange(int(self.space.n)) + self.space.start
        return uniform_actions(self.space, CANDIDATES, generator)

    def _logits(self, observation: Observation, action: Array) -> Tensor:
        seen, taken = self.learner.policy.tensors((observation, np.asarray(action)))
        features = self.learner.encode(seen)
        if isinstance(self.space, gym.spaces.Discrete):
            place = (taken.long() - int(self.space.start))[:, None]
            return self.network(features)[0].gather(-1, place)[:, 0]
        return self.network(torch.cat([features, taken.float().flatten(1)], dim=1))[0, :, 0]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"network": self.network.state_dict(), "optimiser": self.optimiser.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state(state["optimiser"])


def labels(extent: Extent, rows: Array, window: int, *, watched: bool) -> tuple[Array, Array]:
    """Whether an unsafe event follows within `window` steps of each row [n], and whether that is known yet.

    It is not where an episode still runs and the window reaches beyond its newest step.
    """
    line = extent.timeline
    later = extent.shift(rows[:, None], np.arange(window))
    runs = np.logical_and.accumulate(line.is_step[later], axis=1)
    happened = line.unsafe_event[later] if watched else line.margin[later] < 0
    event: Array = np.any(happened & runs, axis=1)
    over: Array = np.any((line.terminated[later] | line.truncated[later]) & runs, axis=1)
    return event, event | over | np.asarray(runs.all(axis=1))
