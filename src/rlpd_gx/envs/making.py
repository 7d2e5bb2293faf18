"""Making an environment from its name, with a sentence when it or its package is missing."""

import importlib
import re
from typing import Any

import gymnasium as gym
import numpy as np

from rlpd_gx.errors import GxError, missing_extra

EXTRAS = {  # module that is missing -> (package, extra)
    "mujoco": ("MuJoCo", "mujoco"),
    "highway_env": ("highway-env", "highway"),
    "ale_py": ("ale-py", "atari"),
    "gymnasium_robotics": ("gymnasium-robotics", "robotics"),
}
REGISTERING = {  # module that registers them -> how their names begin
    "rlpd_gx.envs.probes": ("Probe/",),
    "highway_env": ("highway", "merge", "roundabout", "intersection", "parking"),
    "ale_py": ("ALE/",),
    "gymnasium_robotics": ("Adroit", "Fetch", "Hand", "PointMaze", "AntMaze"),
}


ATARI = re.compile(r"Atari/(?P<game>.+)-(?P<observation>ram|pixels|objects)")


def make(env_id: str, **options: Any) -> gym.Env:
    """`gymnasium.make`, or one of our own Atari games, such as Atari/Pong-ram; errors are sentences."""
    if env_id.startswith("Atari/"):
        ours = ATARI.fullmatch(env_id)
        if ours is None:
            raise GxError(f"--env {env_id}: our games are named Atari/GAME-ram, -objects or -pixels")
        from rlpd_gx.envs import atari

        if "max_episode_steps" in options:
            options["max_steps"] = options.pop("max_episode_steps")
        return atari.make(**ours.groupdict(), **options)
    for module, prefixes in REGISTERING.items():
        if env_id.startswith(prefixes):
            try:
                gym.register_envs(importlib.import_module(module))
            except ModuleNotFoundError:
                raise missing_extra(*EXTRAS[module]) from None
    try:
        return gym.make(env_id, **options)
    except gym.error.DependencyNotInstalled as error:
        package = next((m for m in EXTRAS if m in str(error).lower()), None)
        raise (missing_extra(*EXTRAS[package]) if package else GxError(f"--env {env_id}: {error}")) from None
    except gym.error.Error as error:
        raise GxError(f"--env {env_id}: {error}") from None


def stored_as(env_id: str, space: gym.Space) -> tuple[str, gym.Space]:
    """Name and observation space of an environment's data: our Atari games are stored as ale-py's, frame by frame."""
    ours = ATARI.fullmatch(env_id)
    if ours is None:
        return env_id, space
    assert isinstance(space, gym.spaces.Box)
    from rlpd_gx.envs.atari.games import find_game

    name = f"ALE/{find_game(ours['game']).name}-v5"
    if ours["observation"] == "objects":
        return name, space
    return name, gym.spaces.Box(space.low[0], space.high[0], dtype=np.uint8)
