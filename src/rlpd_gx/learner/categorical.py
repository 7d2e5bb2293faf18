"""A categorical policy under a mask: renormalised over the allowed actions, or projected onto them."""

import numpy as np
import torch
from torch import Tensor

from rlpd_gx.safe_sets import Mask, Spec, choose_nearest, decode, distances
from rlpd_gx.types import Array


def allowed_actions(code: Array, spec: Spec, untested: str) -> Array:
    """Which actions a state allows [B, n] bool, from encoded masks [B, width].

    A state without any allowed action gives the backup nothing to use: there all actions count as allowed.
    """
    mask = decode(code, spec)
    assert isinstance(mask, Mask)
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
        masks, inverse = np.unique(allowed, axis=0, return_inverse=True)
        return np.stack([self._of(mask) for mask in masks])[inverse.reshape(-1)]

    def _of(self, mask: Array) -> Array:
        key = mask.tobytes()
        if key not in self._known:
            each = choose_nearest(np.broadcast_to(mask, self.distance.shape), self.distance)
            self._known[key] = np.where(mask, np.arange(len(mask)), each)
        return self._known[key]


def moved(probability: Tensor, target: Tensor) -> Tensor:
    """The executed policy [B, n]: the probability of each action moves to its target [B, n]."""
    return torch.zeros_like(probability).scatter_add(-1, target, probability)
