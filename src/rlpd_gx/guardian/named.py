"""An environment behind rules that are named as `module:name`."""

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym

from rlpd_gx.errors import GxError
from rlpd_gx.guardian import GuardedEnv
from rlpd_gx.loading import load
from rlpd_gx.rules import Rule
from rlpd_gx.trees import Json

BESIDE_RULES = ("embedding", "unsafe_event", "fallback", "near_miss", "initial_action", "parameters")


def named_rules(rules: str, state: str, env: Callable[[], gym.Env]) -> tuple[Rule | Iterable[Rule], Json]:
    """The rules (one, a list, or the result of a function env -> rules), and options of `GuardedEnv`.

    The options are those that the rules' module defines beside them. `state` is always among them: the function
    named here, or that of the module; None means the observation.
    """
    rule, module = load(rules, "rules")
    if callable(rule) and not isinstance(rule, Rule):
        world = env()
        try:
            rule = rule(world)
        except GxError:
            raise
        except Exception as error:
            raise GxError(f"--rules {rules} raised {type(error).__name__} for {world}: {error}") from error
    options = {name: value for name in BESIDE_RULES if (value := getattr(module, name, None)) is not None}
    options["state"] = load(state, "state")[0] if state else getattr(module, "state", None)
    return rule, options


def guard_options(env: gym.Env, rules: str, state: str = "") -> tuple[Rule | Iterable[Rule], Json]:
    """The named rules of an environment and options of `GuardedEnv`; an environment may have its own `embedding`."""
    rule, options = named_rules(rules, state, lambda: env)
    embedding = getattr(env.unwrapped, "embedding", None)
    return rule, options if embedding is None else {"embedding": embedding} | options


def guarded(env: gym.Env, rules: str, *, state: str = "", **options: Any) -> GuardedEnv:
    """The environment under named rules."""
    rule, beside = guard_options(env, rules, state)
    return GuardedEnv(env, rule, **beside, **options)
