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
        rule = _made_for(env(), rule, rules)
    options = {name: value for name in BESIDE_RULES if (value := getattr(module, name, None)) is not None}
    options["state"] = load(state, "state")[0] if state else getattr(module, "state", None)
    return rule, options


def _made_for(env: gym.Env, function: Callable[..., Any], rules: str) -> Rule | Iterable[Rule]:
    """The rules that a function makes for an environment; it may as well be a rule that was not decorated."""
    hint = "if it is a rule itself, decorate it, for example with @gx.rule"
    try:
        made = function(env)
    except GxError:
        raise
    except Exception as error:
        raise GxError(
            f"--rules {rules} is a function without a decorator, so it was called with the environment to make the "
            f"rules, and raised {type(error).__name__}: {error}; {hint}"
        ) from error
    made = made if isinstance(made, Rule) or not isinstance(made, Iterable) else list(made)
    for part in made if isinstance(made, list) else [made]:
        if not isinstance(part, Rule):
            raise GxError(
                f"--rules {rules} is a function without a decorator, so it was called with the environment to make "
                f"the rules, and returned {part!r}, which is no rule; {hint}"
            )
    return made


def guard_options(env: gym.Env, rules: str, state: str = "") -> tuple[Rule | Iterable[Rule], Json]:
    """The named rules of an environment and options of `GuardedEnv`; an environment may have its own `embedding`."""
    rule, options = named_rules(rules, state, lambda: env)
    embedding = getattr(env.unwrapped, "embedding", None)
    return rule, options if embedding is None else {"embedding": embedding} | options


def guarded(env: gym.Env, rules: str, *, state: str = "", **options: Any) -> GuardedEnv:
    """The environment under named rules."""
    rule, beside = guard_options(env, rules, state)
    return GuardedEnv(env, rule, **beside, **options)
