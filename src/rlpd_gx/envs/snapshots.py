"""Snapshots of a whole environment, wrappers included, so that a run can go on in another process.

A snapshot is a nested dict of numpy arrays and JSON values. An environment or wrapper with its own
`snapshot() -> dict` and `restore(dict)` is asked; Gymnasium's MuJoCo and classic-control environments and its
usual wrappers are known here. Everything else has no snapshot, and `why_not` says which layer is to blame.
"""

from typing import Any

import gymnasium as gym
from gymnasium.utils import seeding

from rlpd_gx.errors import GxError


def random_state(env: gym.Env) -> dict[str, Any] | None:
    """The environment's own generator as JSON can hold it; None where it has not been used yet."""
    if env._np_random is None:
        return None
    state = env._np_random.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise GxError(f"{type(env).__name__} draws from a {state['bit_generator']}; only PCG64 can be kept")
    return {"generator": state, "seed": env._np_random_seed}


def set_random_state(env: gym.Env, state: dict[str, Any] | None) -> None:
    """Make the environment draw on from a state that `random_state` gave."""
    env._np_random, env._np_random_seed = None, None
    if state is not None:
        env._np_random, _ = seeding.np_random(0)
        env._np_random.bit_generator.state = state["generator"]
        env._np_random_seed = state["seed"]
