"""A categorical policy under a mask: renormalised over the allowed actions, or projected onto them."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.safe_sets import Mask, Spec, choose_nearest, decode, distances
from rlpd_gx.types import Array

TARGET_ENTROPY = 0.3  # of log |A_safe(s)|


def allowed_actions(code: Array, spec: Spec, untested: str) -> Array:
    """Which actions a state allows [B, n] bool, from encoded masks [B, width].

    A state without any allowed action gives the backup nothing to use: there all actions count as allowed.
    """
    mask = decode(code, spec)
    assert isinstance(mask, Mask)
    return counted(mask, untested)


def counted(mask: Mask, untested: str) -> Array:
    """Which actions count as allowed [B, n]; untested ones too, unless they are `forbidden`."""
    allowed = mask.allowed | ~mask.tested if untested == "allowed" else mask.allowed
    return allowed | ~allowed.any(axis=-1, keepdims=True)


def log_policy(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """log pi [B, n], renormalised over the allowed actions; -inf elsewhere."""
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    return torch.log_softmax(logits, dim=-1)


def expectation(probability: Tensor, value: Tensor) -> Tensor:
    """sum_a p(a) v(a) [B], where 0 times anything, infinity included, is 0."""
    return torch.where(probability > 0, probability * value, 0.0).sum(dim=-1)


def entropy(log_probability: Tensor) -> Tensor:
    """[B], with finite gradients where an action has probability 0."""
    finite = log_probability.masked_fill(log_probability == -torch.inf, 0.0)
    return -(log_probability.exp() * finite).sum(dim=-1)


class Nearest:
    """The Guardian's correction of each action under a mask; results are cached by mask."""

    def __init__(self, n: int, embedding: Array | None) -> None:
        self.distance = distances(np.arange(n), n, embedding)
        self._known: dict[bytes, Array] = {}

    def __call__(self, allowed: Array) -> Array:
        """[B, n] bool -> [B, n]: the corrected action for each action."""
        packed = np.packbits(allowed, axis=-1)
        keys = packed.view(f"V{packed.shape[-1]}")[:, 0].tolist()
        known = self._known
        for row, key in enumerate(keys):
            if key not in known:
                known[key] = self._of(allowed[row])
        return np.stack([known[key] for key in keys])

    def _of(self, mask: Array) -> Array:
        each = choose_nearest(np.broadcast_to(mask, self.distance.shape), self.distance)
        return np.where(mask, np.arange(len(mask)), each)


def moved(probability: Tensor, target: Tensor) -> Tensor:
    """The executed policy [B, n]: the probability of each action moves to its target [B, n]."""
    return torch.zeros_like(probability).scatter_add(-1, target, probability)


class Allowed(NamedTuple):
    """Which actions B states allow."""

    actions: Tensor
    """[B, n] bool; untested ones as the setting says."""
    tested: Tensor
    """float32 [B]: how many are tested and allowed."""
    corrected: Tensor | None
    """[B, n] what is executed for each proposed action, where the Learner counts that."""


class Guarded:
    """A categorical policy under stored masks, as backup, actor and temperature count it.

    `embedding` [n, k] is the Guardian's, for projections.
    """

    def __init__(
        self,
        n: int,
        spec: Spec | None,
        config: LearnerConfig,
        embedding: Array | None,
        device: str | torch.device,
    ) -> None:
        self.n, self.spec, self.config, self.device = n, spec, config, torch.device(device)
        self._nearest = Nearest(n, embedding)
        self._projects = config.backup == "project" or config.actor == "projected"
        given = config.target_entropy
        self.target_entropy = given if isinstance(given, float) else TARGET_ENTROPY

    def allowed(self, code: Array) -> Allowed | None:
        """The masks in codes [B, width]; None where there are no safe sets."""
        if self.spec is None:
            return None
        mask = decode(code, self.spec)
        assert isinstance(mask, Mask)
        actions = counted(mask, self.config.untested)
        tested = mask.allowed.sum(axis=-1).astype(np.float32)
        corrected = self._tensor(self._nearest(actions)) if self._projects else None
        return Allowed(self._tensor(actions), self._tensor(tested), corrected)

    def _tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def policy(self, logits: Tensor, allowed: Allowed | None) -> Tensor:
        """The policy of the backup [B, n]: renormalised over the safe set, projected onto it, or raw."""
        if allowed is None or self.config.backup == "none":
            return logits.softmax(dim=-1)
        if self.config.backup == "renormalise":
            return log_policy(logits, allowed.actions).exp()
        assert allowed.corrected is not None
        return moved(logits.softmax(dim=-1), allowed.corrected)

    def excess(self, uncertainty: Tensor, allowed: Allowed | None) -> Tensor:
        """Entropy [B] minus target entropy; NaN where at most one action is allowed."""
        if allowed is None:
            return uncertainty - self.target_entropy * math.log(self.n)
        target = self.target_entropy * allowed.tested.log()
        return torch.where(allowed.tested > 1, uncertainty - target, torch.nan)
