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
MOST_MASKS = 1_000  # different masks whose decoded form is kept


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
        self._distance = distances(np.arange(n), n, embedding)
        self._known: dict[bytes, int] = {}  # code of a mask -> its row in the table
        self._table: Allowed | None = None
        self._projects = config.backup == "project" or config.actor == "projected"
        given = config.target_entropy
        self.target_entropy = given if isinstance(given, float) else TARGET_ENTROPY

    def allowed(self, code: Array) -> Allowed | None:
        """The masks in codes [B, width]; None where there are no safe sets.

        Few codes differ, so each is decoded once and then looked up.
        """
        if self.spec is None:
            return None
        code = np.ascontiguousarray(code)
        keys = code.view(f"V{code.shape[-1] * code.itemsize}")[:, 0].tolist()
        found = list(map(self._known.get, keys))
        if None in found:
            if len(self._known) > MOST_MASKS:
                self._known, self._table = {}, None
            self._learn(code, keys, self.spec)
            found = list(map(self._known.get, keys))
        assert self._table is not None
        rows = self._tensor(np.array(found))
        actions, tested, corrected = self._table
        return Allowed(actions[rows], tested[rows], None if corrected is None else corrected[rows])

    def _learn(self, code: Array, keys: list[bytes], spec: Spec) -> None:
        """Add codes [B, width] that are not in the table yet."""
        new = {key: row for row, key in enumerate(keys) if key not in self._known}
        mask = decode(code[list(new.values())], spec)
        assert isinstance(mask, Mask)
        counts = counted(mask, self.config.untested)
        found = Allowed(
            self._tensor(counts),
            self._tensor(mask.allowed.sum(axis=-1).astype(np.float32)),
            self._tensor(np.stack([self._corrected(row) for row in counts])) if self._projects else None,
        )
        self._known |= {key: len(self._known) + number for number, key in enumerate(new)}
        if self._table is not None:
            old, corrected = self._table, None
            if old.corrected is not None and found.corrected is not None:
                corrected = torch.cat([old.corrected, found.corrected])
            actions, tested = torch.cat([old.actions, found.actions]), torch.cat([old.tested, found.tested])
            found = Allowed(actions, tested, corrected)
        self._table = found

    def _corrected(self, mask: Array) -> Array:
        """The Guardian's correction [n] of each action under a mask [n]."""
        each = choose_nearest(np.broadcast_to(mask, self._distance.shape), self._distance)
        return np.where(mask, np.arange(len(mask)), each)

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
