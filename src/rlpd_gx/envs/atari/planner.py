"""Play for datasets: a reward-seeking search in a second emulator, mixed with noise and guarded random play.

The search keeps one plan of `DEPTH_STEPS` actions. In each step it is extended by one action, and a few random changes
are tried; a change is kept if the plan is worth at least as much. A plan is worth its discounted rewards, in units of
the mean reward of the game; a lost life ends it and costs `DEATH_COST`. While the plan meets an unsafe event, more
changes are tried before it, so that play is safe even where rewards lie beyond the plan (Breakout, Pong).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlpd_gx.envs.atari.env import AtariEnv
from rlpd_gx.envs.atari.games import LIFE_LOST, find_game
from rlpd_gx.envs.atari.lookahead import Emulator
from rlpd_gx.envs.atari.ram_rules import RamRules, images
from rlpd_gx.rules import Place
from rlpd_gx.types import Array

DEPTH_STEPS = 24
CHANGES = 2  # tried in a step
REPAIR_STEPS = 4 * DEPTH_STEPS  # simulated at most, while the plan meets an unsafe event
DEATH_COST = 8.0  # in mean rewards
DISCOUNT = 0.98
LONGEST_CHANGE_STEPS = 8
STINT_STEPS = 200  # of one kind of play
STINTS = {"plan": 0.5, "noisy plan": 0.25, "guarded random": 0.25}  # share of the stints
NOISE = 0.25  # share of random actions in a noisy plan
HOLD_STEPS = 4  # that guarded random play keeps an action for, on average
MOST_NOOPS = 7  # steps at the start of a game: games of a deterministic emulator start equal


class Planner:
    """observation -> action: stints of planned, noisy and guarded random play in one game of `env`.

    Args:
        env: one of our Atari environments or ale-py's own; its emulator is read, never changed.
        seed: the only source of chance.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self.world = env.unwrapped
        ours = self.world
        if not isinstance(ours, AtariEnv):
            name = str(env.spec.id).removeprefix("ALE/").partition("-")[0]
            ours = AtariEnv(find_game(name), frame_skip=int(env.spec.kwargs["frameskip"]))
        self.rng = np.random.default_rng(seed)
        self.search = PlanSearch(Emulator(ours), self.rng)
        self._rules = [rule.margins for rule in RamRules(ours).parts]  # type: ignore[attr-defined]
        self._stint, self._left, self._held, self._noops = "plan", 0, 0, 0

    @property
    def simulated_steps(self) -> int:
        """Steps of the second emulator so far; report them beside the environment steps."""
        return self.search.simulated_steps

    def __call__(self, observation: Any) -> int:
        seen = images(self.world)  # in every step: it remembers the RAM of the step before
        if self.world.ale.getEpisodeFrameNumber() == 0:
            self._noops = int(self.rng.integers(MOST_NOOPS + 1))
        if self._noops:
            self._noops -= 1
            return 0
        if self._left == 0:
            self._stint, self._left = str(self.rng.choice(list(STINTS), p=list(STINTS.values()))), STINT_STEPS
        self._left -= 1
        if self._stint == "guarded random":
            return self._guarded_random(*seen)
        if self._stint == "noisy plan" and self.rng.random() < NOISE:
            return int(self.rng.integers(self.search.actions))
        return self.search(self.world)

    def _guarded_random(self, ram: Array, was: Array) -> int:
        """A random action, held for a while, that the RAM rules allow; the least bad one if there is none."""
        if self.rng.random() < 1 / HOLD_STEPS:
            self._held = int(self.rng.integers(self.search.actions))
        margins = np.min([rule(ram, was) for rule in self._rules], axis=0)
        if margins[self._held] < 0:
            allowed = np.flatnonzero(margins >= 0)
            self._held = int(self.rng.choice(allowed)) if len(allowed) else int(margins.argmax())
        return self._held


class PlanSearch:
    """One plan, improved by random changes."""

    def __init__(self, emulator: Emulator, rng: np.random.Generator) -> None:
        self.emulator, self.rng = emulator, rng
        self.actions = len(emulator.actions)
        self.simulated_steps = 0
        self._ends = emulator.game.event == LIFE_LOST  # an unsafe event ends a plan
        self._plan: list[int] = []
        self._places: list[
            Place
        ] = []  # after each action; fewer than actions if an unsafe event ends the plan
        self._rewards, self._rewarded = 1.0, 1  # sum and number of rewards seen, for the mean

    def __call__(self, world: Any) -> int:
        root = self.emulator.here(world)
        if self._places and self._places[0].identity == root.identity:
            self._places = self._places[1:]
        else:
            self._places = []
        self._plan = [*self._plan[1:], *self._new(DEPTH_STEPS)][:DEPTH_STEPS]
        self._places = self._rolled(root, self._plan, self._places)
        if self.emulator.game.is_dying(root.token.moment.ram):
            return self._plan[0]  # nothing to be gained
        for _ in range(CHANGES):
            self._change(root, int(self.rng.integers(DEPTH_STEPS)))
        limit = self.simulated_steps + REPAIR_STEPS
        back = 1
        while (fatal := self._unsafe_at()) is not None and self.simulated_steps < limit:
            self._change(root, max(fatal - int(self.rng.integers(back + 1)), 0))
            back = min(back + 1, DEPTH_STEPS)
        return self._plan[0]

    def _new(self, steps: int) -> list[int]:
        """Random actions, each held for a while; the last one of the plan may go on first."""
        actions = self._plan[-1:] * int(self.rng.integers(2))
        while len(actions) < steps:
            held = int(self.rng.integers(self.actions))
            actions += [held] * int(self.rng.integers(1, LONGEST_CHANGE_STEPS + 1))
        return actions

    def _change(self, root: Place, start: int) -> None:
        """Hold a random action from `start` on for a while, and keep the new plan if it is not worth less."""
        start = min(start, len(self._places))
        length = int(self.rng.integers(1, LONGEST_CHANGE_STEPS + 1))
        held = [int(self.rng.integers(self.actions))] * length
        plan = [*self._plan[:start], *held, *self._plan[start + length :]][:DEPTH_STEPS]
        if plan == self._plan:
            return
        places = self._rolled(root, plan, self._places[:start])
        if self._worth(places) >= self._worth(self._places):
            self._plan, self._places = plan, places

    def _rolled(self, root: Place, plan: Sequence[int], known: Sequence[Place]) -> list[Place]:
        """The places that a plan leads to; the first ones are known."""
        places = list(known)
        while len(places) < len(plan) and not (self._ends and places and places[-1].unsafe):
            place = self.emulator.advance(places[-1] if places else root, plan[len(places)])
            self.simulated_steps += 1
            if reward := place.token.reward:
                self._rewards, self._rewarded = self._rewards + abs(reward), self._rewarded + 1
            places.append(place)
        return places

    def _worth(self, places: Sequence[Place]) -> float:
        unit = self._rewards / self._rewarded
        worth = sum(DISCOUNT**i * place.token.reward for i, place in enumerate(places)) / unit
        if self._ends and places and places[-1].unsafe:
            worth -= DEATH_COST * DISCOUNT ** len(places)
        return worth

    def _unsafe_at(self) -> int | None:
        return next((i for i, place in enumerate(self._places) if place.unsafe), None)
