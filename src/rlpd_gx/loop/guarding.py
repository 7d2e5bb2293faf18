"""An environment behind rules that are named as `module:name`."""

from typing import Any

import gymnasium as gym

from rlpd_gx.errors import GxError
from rlpd_gx.guardian import GuardedEnv
from rlpd_gx.loading import load
from rlpd_gx.rules import Rule

BESIDE_RULES = ("embedding", "unsafe_event", "fallback", "near_miss", "initial_action", "parameters")


def guarded(env: gym.Env, rules: str, *, state: str = "", **options: Any) -> GuardedEnv:
    """The environment under a rule, a list of rules, or what a function (env) -> rule makes for it.

    The rules' module may also hold `state` (what rules read, unless `state` names it) and other options of
    `GuardedEnv`; an environment may bring the `embedding` of its actions.
    """
    rule, module = load(rules, "rules")
    if callable(rule) and not isinstance(rule, Rule):
        try:
            rule = rule(env)
        except GxError:
            raise
        except Exception as error:
            raise GxError(
                f"--rules {rules} raised {type(error).__name__} for {env.unwrapped}: {error}"
            ) from error
    beside = {name: getattr(module, name, None) for name in BESIDE_RULES}
    if beside["embedding"] is None:
        beside["embedding"] = getattr(env.unwrapped, "embedding", None)
    read = load(state, "state")[0] if state else getattr(module, "state", None)
    given = {name: value for name, value in beside.items() if value is not None}
    return GuardedEnv(env, rule, state=read, **given, **options)
