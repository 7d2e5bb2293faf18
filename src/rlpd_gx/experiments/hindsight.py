"""Violations of a look-ahead rule, counted by what happened after each action.

Look-ahead allows an action if some continuation after it stays safe for `depth` steps. Where no unsafe event follows
within `depth` steps, what happened is such a continuation, so the action was allowed and nothing has to be simulated.
Where one follows, the last steps are played again in a second emulator. A look-ahead of the counter's own follows them
from `depth` steps earlier on and is asked about the action that ran and, if that is forbidden, about the others.
"""

from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym

from rlpd_gx.envs.atari import AtariEnv
from rlpd_gx.envs.atari.lookahead import Lookahead
from rlpd_gx.experiments.outside import Counter
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Action, Info

MARKS = 3  # states kept, `depth` steps apart: the newest may be that of now, so at least 2 * depth steps are known


class HindsightCounter(Counter):
    """Counts executed actions that a look-ahead forbids while it allows another one."""

    def __init__(self, env: gym.Env, rule: Callable[[AtariEnv], Lookahead]) -> None:
        super().__init__(env, lambda action: False)
        world = env.unwrapped
        assert isinstance(world, AtariEnv)
        self.world, self.rule, self.depth = world, rule, rule(world).search.depth
        self.marks: list[Json] = []
        self.actions: list[int] = []  # since the first mark
        self.doomed = False  # the unsafe event is certain: nothing that runs now can break the rule

    def reset(self, **options: Any) -> tuple[Tree, Info]:
        """A new episode: nothing before it counts."""
        self._forget()
        return self.env.reset(**options)

    def step(self, action: Action) -> tuple[Tree, SupportsFloat, bool, bool, Info]:
        """Count the action, and judge the last ones if the unsafe event has become certain."""
        if len(self.actions) % self.depth == 0:
            self.marks.append(self.world.snapshot())
            if len(self.marks) > MARKS:
                del self.marks[0], self.actions[: self.depth]
        self.actions.append(int(action))
        outcome = super().step(action)
        dying = self.world.game.is_dying(self.world.ram())
        if dying or outcome[4]["unsafe_event"]:
            if not self.doomed:
                self.violations += self._judged()
            self._forget()
        self.doomed = dying
        return outcome

    def _judged(self) -> int:
        """How many of the last `depth` actions were forbidden while another one was allowed."""
        settings = {name: value for name, value in self.world.settings.items() if name != "game"}
        again = AtariEnv(self.world.game, **settings)
        again.restore(self.marks[0])
        rule = self.rule(again)
        found, previous = 0, None
        for place, action in enumerate(self.actions):
            asked = previous if rule.needs else None
            allowed = rule.search(again, action, asked) >= 0
            if not allowed and place >= len(self.actions) - self.depth:
                others = range(len(again.actions))
                found += any(rule.search(again, other, asked) >= 0 for other in others)
            again.advance(action)
            previous = action
        return found

    def _forget(self) -> None:
        self.marks, self.actions, self.doomed = [], [], False

    def snapshot(self) -> Json:
        """The counts, and what later judgements need."""
        kept = {"marks": [*self.marks], "actions": [*self.actions], "doomed": self.doomed}
        return self.counts() | kept

    def restore(self, snapshot: Json) -> None:
        """Restore a snapshot."""
        super().restore(snapshot)
        self.marks, self.actions = [*snapshot["marks"]], [*snapshot["actions"]]
        self.doomed = snapshot["doomed"]
