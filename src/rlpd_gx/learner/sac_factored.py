"""SAC for joint actions that are too many to list: one categorical for each component, and critics of single actions.

A product of categoricals holds no correlation between components, and needs one logit for each value of each component.
The rules there are masks of single components, so the policy is renormalised or projected exactly, one component after
the other, and its entropy is exact too. Only the expectation of Q over joint actions is sampled.
"""

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor

from rlpd_gx.config import LearnerConfig
from rlpd_gx.errors import GxError
from rlpd_gx.learner.action_critics import OOD_ACTIONS, ActionCritics, NextActions
from rlpd_gx.learner.categorical import TARGET_ENTROPY, entropy, log_policy, moved
from rlpd_gx.learner.networks import Encoder
from rlpd_gx.learner.policy import PolicyNetwork
from rlpd_gx.safe_sets import ProductMask, Spec, decode
from rlpd_gx.types import Array

TARGET_SAMPLES = 4  # joint actions sampled for one target
ACTOR_ROWS = 16_384  # joint actions valued in one actor update: with many values, fewer states take part


class FactoredPolicy(PolicyNetwork):
    """One categorical for each of k components, in tables [B, k, m] padded to the largest number of values m."""

    def __init__(
        self,
        config: LearnerConfig,
        encoder: Encoder,
        space: gym.spaces.MultiDiscrete,
        spec: Spec | None,
        *,
        initial: torch.Generator,
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        if spec is not None and spec["kind"] != "product_mask":
            raise GxError(f"actions of many components have product masks as safe sets, not {spec['kind']}")
        sizes = torch.as_tensor(space.nvec)
        super().__init__(config, encoder, int(sizes.sum()), spec, initial=initial, seed=seed, device=device)
        self.exists = (torch.arange(int(sizes.max())) < sizes[:, None]).to(self.device)  # [k, m]

    def logits(self, features: Tensor) -> Tensor:
        """[B, k, m], -inf where a component has no such value."""
        return self.table(self.actor(features)[0], -torch.inf)

    def table(self, entries: Tensor, otherwise: float | bool) -> Tensor:
        """Entries [B, total], one for each value of each component, as [B, k, m]."""
        blank = torch.full(
            (len(entries), *self.exists.shape), otherwise, dtype=entries.dtype, device=self.device
        )
        return blank.masked_scatter(self.exists, entries)

    def one_hot(self, action: Tensor) -> Tensor:
        """Joint actions [..., k] as entries [..., total] of 0 and 1."""
        return F.one_hot(action.long(), self.exists.shape[1])[..., self.exists].float()

    def allowed(self, safe_set: Array | None) -> Tensor | None:
        """Which values each state allows [B, k, m] bool; all of a component in which nothing is allowed."""
        if safe_set is None or self.spec is None:
            return None
        mask = decode(safe_set, self.spec)
        assert isinstance(mask, ProductMask)
        allowed = self.table(torch.as_tensor(mask.allowed, device=self.device), False)
        return allowed | (self.exists & ~allowed.any(dim=-1, keepdim=True))

    def draw(self, probability: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One joint action [..., k] from each table [..., k, m] of probabilities."""
        race = torch.empty_like(probability).exponential_(generator=generator or self.generator)
        return (race / probability).argmin(dim=-1)  # a probability of 0 never wins

    def _act(
        self, features: Tensor, safe_set: Array | None, explore: bool, generator: torch.Generator
    ) -> Array:
        probability = log_policy(self.logits(features), self.allowed(safe_set)).exp()
        choice = self.draw(probability, generator) if explore else probability.argmax(dim=-1)
        return choice.cpu().numpy()


class SacFactored(ActionCritics[FactoredPolicy]):
    """Critics see the joint action as one-hot components.

    The actor's gradient is exact in one component at a time: a joint action is sampled, and each component is given
    each of its values beside the others. That is an unbiased gradient of the expected value. A relaxation
    (straight-through Gumbel-softmax) would be cheaper, but it is biased, has a temperature of its own, and needs slopes
    of critics between actions, where nothing has trained them.
    """

    def __init__(
        self,
        config: LearnerConfig,
        observation_space: gym.Space,
        action_space: gym.spaces.MultiDiscrete,
        *,
        safe_set_spec: Spec | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        def policy(encoder: Encoder, initial: torch.Generator) -> FactoredPolicy:
            return FactoredPolicy(
                config, encoder, action_space, safe_set_spec, initial=initial, seed=seed, device=device
            )

        given = config.target_entropy
        self.target_entropy = given if isinstance(given, float) else TARGET_ENTROPY
        super().__init__(
            config,
            observation_space,
            policy=policy,
            critic_inputs=int(action_space.nvec.sum()),
            safe_set_spec=safe_set_spec,
            seed=seed,
            device=device,
        )

    # --- values ------------------------------------------------------------------------------------------

    def _values(
        self, features: Tensor, action: Tensor, others: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        taken = self._q(self.critic, features, self.policy.one_hot(action))
        if others is None:
            return taken, taken[..., None][..., :0]
        return taken, self._q(self.critic, features, self.policy.one_hot(others)).movedim(1, -1)

    def _others(self, count: int) -> Tensor:
        return self.policy.draw(self.policy.exists.float().expand(OOD_ACTIONS, count, -1, -1))

    def _next_policy(self, features: Tensor, safe_set: Array) -> NextActions:
        probability = self._backed_up(features, safe_set)
        action = self.policy.draw(probability.expand(TARGET_SAMPLES, -1, -1, -1)).transpose(0, 1)
        weight = torch.full(action.shape[:2], 1 / TARGET_SAMPLES, device=self.device)
        return NextActions(action, weight, entropy(probability.log()).sum(dim=-1))

    def _expected(self, features: Tensor, policy: NextActions, members: Tensor | None) -> Tensor:
        return super()._expected(
            features, policy._replace(action=self.policy.one_hot(policy.action)), members
        )

    def _target_at(self, features: Tensor, action: Tensor, members: Tensor | None) -> Tensor:
        return self._target_q(features, self.policy.one_hot(action), members)

    def _backed_up(self, features: Tensor, safe_set: Array) -> Tensor:
        """The policy of the backup [B, k, m]: renormalised over the safe set, projected onto it, or raw."""
        logits, allowed = self.policy.logits(features), self.policy.allowed(safe_set)
        if allowed is None or self.config.backup == "none":
            return logits.softmax(dim=-1)
        if self.config.backup == "renormalise":
            return log_policy(logits, allowed).exp()
        return moved(logits.softmax(dim=-1), _corrected(allowed))

    def _probability(self, features: Tensor, action: Tensor, safe_set: Array) -> Tensor:
        return _at(self._backed_up(features, safe_set), action).prod(dim=-1)

    def _log_likelihood(self, features: Tensor, action: Tensor) -> Tensor:
        return _at(log_policy(self.policy.logits(features), None), action).sum(dim=-1)

    # --- the actor ---------------------------------------------------------------------------------------

    def _actor_loss(self, features: Tensor, safe_set: Array) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        allowed = self.policy.allowed(safe_set)
        logits = self.policy.logits(features)
        raw = log_policy(logits, None)
        safe = raw if allowed is None else log_policy(logits, allowed)
        log_p = safe if self.config.actor == "masked" else raw
        executed = log_p.exp()
        if self.config.actor == "projected":
            assert allowed is not None
            executed = moved(executed, _corrected(allowed))
        some = max(ACTOR_ROWS // int(self.policy.exists.sum()), 1)
        q = self._one_changed(features[:some], executed.detach()[:some])
        # Its gradient is that of the expected value; the sum itself counts that value once for each component.
        value = (executed[:some] * q).sum(dim=(-2, -1))
        loss = -value.mean() - self.temperature * entropy(log_p).sum(dim=-1).mean()
        uncertainty = entropy(safe.detach()).sum(dim=-1)
        metrics = {"entropy": uncertainty.mean(), "value_scale": q[:, self.policy.exists].abs().mean()}
        if allowed is not None:
            kept = (raw.detach().exp() * allowed).sum(dim=-1).prod(dim=-1)
            metrics["forbidden_mass"] = (1 - kept).mean()
        return loss, self._excess(uncertainty, allowed), metrics

    @torch.no_grad()
    def _one_changed(self, features: Tensor, probability: Tensor) -> Tensor:
        """Q [B, k, m] of sampled joint actions in which one component has been given each of its values."""
        component, value = self.policy.exists.nonzero(as_tuple=True)
        tried = self.policy.draw(probability).repeat(len(value), 1, 1)  # [total, B, k]
        tried[torch.arange(len(value)), :, component] = value[:, None]
        q = self._actor_q(features, self.policy.one_hot(tried))
        return self.policy.table(q.T.contiguous(), 0.0)

    def _excess(self, uncertainty: Tensor, allowed: Tensor | None) -> Tensor:
        """Entropy [B] minus target entropy; NaN where only one joint action is allowed."""
        counted = self.policy.exists if allowed is None else allowed
        most = counted.sum(dim=-1).float().log().sum(dim=-1)
        return torch.where(most > 0, uncertainty - self.target_entropy * most, torch.nan)


def _corrected(allowed: Tensor) -> Tensor:
    """[B, k, m] what the Guardian executes for each value: itself, or the first allowed one of its component."""
    own = torch.arange(allowed.shape[-1], device=allowed.device)
    return torch.where(allowed, own, allowed.float().argmax(dim=-1, keepdim=True))


def _at(table: Tensor, action: Tensor) -> Tensor:
    """Entries [B, k] of tables [B, k, m] at joint actions [B, k]."""
    return table.gather(-1, action.long()[..., None])[..., 0]
