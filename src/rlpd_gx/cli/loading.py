"""Turning what a person types into objects: `module:name`, environments, policies."""

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rlpd_gx.errors import GxError, missing_extra

if TYPE_CHECKING:
    import gymnasium as gym

EXTRAS = {  # module that is missing -> (package, extra)
    "mujoco": ("MuJoCo", "mujoco"),
    "highway_env": ("highway-env", "highway"),
    "ale_py": ("ale-py", "atari"),
    "gymnasium_robotics": ("gymnasium-robotics", "robotics"),
    "stable_baselines3": ("stable-baselines3", "sb3"),
}
REGISTERING = {"highway_env": ("highway", "merge", "roundabout", "intersection", "parking"), "ale_py": ("ALE/",),
               "gymnasium_robotics": ("Adroit", "Fetch", "Hand", "PointMaze", "AntMaze")}  # fmt: skip


def load(spec: str, what: str) -> tuple[Any, ModuleType]:
    """The object named by `module:name`, and its module. Modules in the current folder are found too."""
    module_name, colon, name = spec.partition(":")
    if not colon or not name:
        raise GxError(f"--{what} takes module:name, not {spec!r}; for example my_rules:speed_limit")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise GxError(f"--{what} {spec}: there is no module {error.name!r} here or installed") from None
    except Exception as error:
        raise GxError(
            f"--{what} {spec}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise GxError(f"--{what} {spec}: {module_name} has no {name!r}; it has {', '.join(public[:12])}")
    return getattr(module, name), module


def make_env(env_id: str, **options: Any) -> "gym.Env":
    """`gymnasium.make`, with a sentence when the environment or its package is missing."""
    import gymnasium as gym

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


def load_policy(spec: str, env: "gym.Env", seed: int) -> Callable[[Any], Any]:
    """observation -> action, from `random`, an SB3 zip (`[algorithm:]file.zip`) or `module:callable`."""
    if spec == "random":
        env.action_space.seed(seed)
        return lambda observation: env.action_space.sample()
    if spec.endswith(".zip"):
        return _sb3_policy(spec)
    policy, _ = load(spec, "policy")
    if not callable(policy):
        raise GxError(
            f"--policy {spec} is a {type(policy).__name__}; it must be a function observation -> action"
        )
    return policy


def _sb3_policy(spec: str) -> Callable[[Any], Any]:
    try:
        import stable_baselines3 as sb3
    except ModuleNotFoundError:
        raise missing_extra(*EXTRAS["stable_baselines3"]) from None
    algorithm, _, path = spec.rpartition(":")
    if not os.path.isfile(path):
        raise GxError(f"--policy {spec}: there is no file {path}")
    names = [algorithm.upper()] if algorithm else ["PPO", "SAC", "DQN", "TD3", "A2C", "DDPG"]
    for name in names:
        if not hasattr(sb3, name):
            raise GxError(f"--policy {spec}: stable-baselines3 has no algorithm {name}")
        try:
            model = getattr(sb3, name).load(path, device="cpu")
        except Exception:  # the zip does not say which algorithm made it, so try the next
            continue
        return lambda observation: model.predict(observation, deterministic=True)[0]
    raise GxError(f"--policy {spec}: no stable-baselines3 algorithm can read it; name one, as in sac:{path}")
