"""A Guardian that may execute another action than the nearest allowed one. What ran is what its audit records."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym

from rlpd_gx.errors import StopEpisode
from rlpd_gx.guardian import GuardedEnv, Guardian
from rlpd_gx.guardian.verdicts import own
from rlpd_gx.types import Action, ContextLike, State, Status, Verdict

# the other options are a Guardian's
OF_THE_WRAPPER = ("state", "unsafe_event", "initial_action", "parameters")
Choose = Callable[["ChoosingGuardian", Verdict, State, ContextLike], Action | None]
"""What to execute in place of the verdict's action; None keeps that."""


class ChoosingGuardian(Guardian):
    """Asks `choose` about each verdict before it is recorded."""

    def __init__(
        self, action_space: gym.Space, rules: Any, *, choose: Choose, audit: Any = None, **options: Any
    ) -> None:
        super().__init__(action_space, rules, audit=audit, **options)
        self.choose = choose
        self.silent = Guardian(action_space, rules, **options)
        """The same rules: asked as often as needed, without a trace in the audit."""

    def certify(
        self,
        state: State,
        proposed: Action,
        *,
        context: ContextLike = None,
        preference: Action | None = None,
    ) -> Verdict:
        """The verdict on one proposed action, with the chosen action in it."""
        try:
            verdict = self.silent.certify(state, proposed, context=context, preference=preference)
        except StopEpisode as stop:
            self.audit.record_stop({0: str(stop)})
            raise
        chosen = self.choose(self, verdict, state, context)
        if chosen is not None:
            executed = self.silent.certify(state, chosen, context=context)
            chosen = executed.action  # of the type in which it was judged
            verdict = replace(
                verdict,
                action=own(chosen),
                status=Status.PROJECTED if verdict.status is Status.ALLOWED else verdict.status,
                enforced=True,
                suggestion=chosen if self.mode == "enforce" else verdict.suggestion,
                distance=self.distance(verdict.proposed, chosen),
                executed_margin=executed.margin,
                exact=False,
            )
        elif self.mode == "monitor" and verdict.status is Status.PROJECTED:
            verdict = replace(verdict, status=Status.ALLOWED)  # forbidden, and executed as proposed
        self.audit.record(verdict)
        return verdict


def choosing_env(env: gym.Env, rules: Any, choose: Choose, *, mode: str, **options: Any) -> GuardedEnv:
    """The environment under a `ChoosingGuardian`; `options` are those of `GuardedEnv`."""
    own = {name: options.pop(name) for name in OF_THE_WRAPPER if name in options}
    return GuardedEnv(
        env, ChoosingGuardian(env.action_space, rules, choose=choose, mode=mode, **options), **own
    )
