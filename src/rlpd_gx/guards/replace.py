"""Replace: a forbidden proposal is replaced by an allowed action drawn uniformly, not by the nearest one.

`Replace("careful", ..., policy=function)` in a module of your own asks a declared safe policy, state -> action, first.
What is drawn is certified by the Guardian before it runs. Where an action cannot be drawn, the nearest one runs:
continuous rules without a finite description, and sets so thin that 1,000 uniform actions all miss them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rlpd_gx.envs.actions import ActionView, uniform_actions
from rlpd_gx.guards import shield
from rlpd_gx.guards._choosing import ChoosingGuardian, choosing_env
from rlpd_gx.guards.base import Guard
from rlpd_gx.safe_sets import Mask, ProductMask, SafeSet
from rlpd_gx.types import Action, ContextLike, State, Status, Verdict

DRAWS = 1_000


@dataclass(frozen=True)
class Replace(Guard):
    """Draws in place of projecting."""

    policy: Callable[[State], Action] | None = None
    """A declared safe policy; its action runs where the rules allow it."""
    seed: int = 0
    generators: list[np.random.Generator] = field(default_factory=list)
    """One for each environment that was made."""

    def begin(self, seed: int, *, watched: bool) -> Self:
        return replace(self, seed=seed, generators=[])

    def environment(self, env: gym.Env, rules: Any, **options: Any) -> gym.Env:
        generator = np.random.default_rng([self.seed, len(self.generators)])
        self.generators.append(generator)

        return choosing_env(env, rules, partial(self._drawn, generator), mode=self.mode, **options)

    def _drawn(
        self,
        generator: np.random.Generator,
        guardian: ChoosingGuardian,
        verdict: Verdict,
        state: State,
        context: ContextLike,
    ) -> Action | None:
        """An allowed action, for a proposal that was projected."""
        if verdict.status is not Status.PROJECTED:
            return None
        allowed = verdict.safe_set
        # where the rules are lazy, ask about every action
        if isinstance(allowed, Mask) and not allowed.tested.all():
            allowed = guardian.silent.safe_set(state, context=context)
        candidates = [] if self.policy is None else [self.policy(state)]
        uniform = _uniform(generator, allowed, guardian.action_space)
        for action in [*candidates, *([] if uniform is None else [uniform])]:
            if not guardian.silent.certify(state, action, context=context).corrected:
                return action
        return None

    def state(self) -> dict[str, Any]:
        return {"generators": {str(i): g.bit_generator.state for i, g in enumerate(self.generators)}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for generator, saved in zip(self.generators, state["generators"].values(), strict=False):
            generator.bit_generator.state = saved


def _uniform(generator: np.random.Generator, allowed: SafeSet | None, space: gym.Space) -> Action | None:
    """An action of the set; None where none can be drawn."""
    if isinstance(allowed, Mask):
        number = np.asarray(generator.choice(np.flatnonzero(allowed.allowed)))
        return (
            number + space.start
            if isinstance(space, gym.spaces.Discrete)
            else ActionView(space).executed(number)
        )
    if isinstance(allowed, ProductMask):
        entries = [generator.choice(np.flatnonzero(part.allowed)) for part in allowed.parts]
        return ActionView(space).executed(np.array(entries))
    if allowed is None:
        return None
    draws = uniform_actions(space, DRAWS, generator)
    inside = np.flatnonzero(np.asarray(allowed.margin(draws)) >= 0)
    return draws[inside[0]] if len(inside) else None


GUARD = Replace("replace", mode="enforce", settings=shield.GUARD.settings)
