"""Making an environment from its name, with a clear error when it or its package is missing."""

import importlib
import re
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.loading import did_you_mean, load, load_module, raised
from rlpd_gx.trees import Json

EXTRAS = {  # module that is missing -> (package, extra)
    "mujoco": ("MuJoCo", "mujoco"),
    "highway_env": ("highway-env", "highway"),
    "ale_py": ("ale-py", "atari"),
    "gymnasium_robotics": ("gymnasium-robotics", "robotics"),
}
REGISTERING = {  # module that registers environments -> prefixes of their names
    "rlpd_gx.envs.probes": ("Probe/",),
    "highway_env": ("highway", "merge", "roundabout", "intersection", "parking"),
    "ale_py": ("ALE/",),
    "gymnasium_robotics": ("Adroit", "Fetch", "Hand", "PointMaze", "AntMaze"),
}
ATARI = re.compile(r"Atari/(?P<game>.+)-(?P<observation>ram|pixels|objects|cells)")


def make(env_id: str, *, wrappers: Iterable[str] = (), **options: Any) -> gym.Env:
    """An environment by name; errors are sentences.

    A name registered in Gymnasium; one of our Atari games, such as Atari/Pong-ram; or `module:name` of a class, of a
    function that returns an environment, or of a name that the module registers. `wrappers` are `module:name` of
    functions env -> env, the innermost first.
    """
    env = _made(env_id, options)
    for spec in (wrappers,) if isinstance(wrappers, str) else wrappers:
        env = _wrapped(env, spec)
    return env


def _made(env_id: str, options: Json) -> gym.Env:
    try:
        if env_id.startswith("Atari/"):
            return _atari(env_id, options)
        return gym.make(_own(env_id) if ":" in env_id else _registered(env_id), **options)
    except GxError:
        raise
    except gym.error.DependencyNotInstalled as error:
        package = next((m for m in EXTRAS if m in str(error).lower()), None)
        raise (missing_extra(*EXTRAS[package]) if package else GxError(f"--env {env_id}: {error}")) from None
    except gym.error.Error as error:
        raise GxError(f"--env {env_id}: {error}") from None
    except Exception as error:  # whatever the code of an environment raises
        if isinstance(error, TypeError) and options:
            reason = str(error).partition(" was raised from")[0]  # Gymnasium repeats name and kwargs
            raise GxError(f"--env-kwargs {options} do not fit {env_id}: {reason}") from None
        raise GxError(f"--env {env_id} {raised(error)}") from error


def _wrapped(env: gym.Env, spec: str) -> gym.Env:
    wrapper = load(spec, "env-wrappers")[0]
    try:
        wrapped = wrapper(env)
    except Exception as error:
        raise GxError(f"--env-wrappers {spec} {raised(error)}") from error
    if not isinstance(wrapped, gym.Env):
        raise GxError(
            f"--env-wrappers {spec} returned a {type(wrapped).__name__}; it must take an environment and return one"
        )
    return wrapped


def _atari(env_id: str, options: Json) -> gym.Env:
    ours = ATARI.fullmatch(env_id)
    if ours is None:
        raise GxError(f"--env {env_id}: our games are named Atari/GAME-ram, -objects, -cells or -pixels")
    from rlpd_gx.envs import atari

    if "max_episode_steps" in options:
        options["max_steps"] = options.pop("max_episode_steps")
    return atari.make(**ours.groupdict(), **options)


def _registered(env_id: str) -> str:
    """The name, after the package that registers it was imported."""
    for module, prefixes in REGISTERING.items():
        if env_id.startswith(prefixes):
            try:
                gym.register_envs(importlib.import_module(module))
            except ModuleNotFoundError:
                raise missing_extra(*EXTRAS[module]) from None
    return env_id


def _own(env_id: str) -> str | EnvSpec:
    """A user's own environment, named as `module:name`."""
    module, name = load_module(env_id, "env")
    if name in gym.registry:
        return name
    if callable(entry_point := getattr(module, name, None)):
        return EnvSpec(id=env_id, entry_point=entry_point)
    offered = [
        n
        for n, v in vars(module).items()
        if isinstance(v, type) and issubclass(v, gym.Env) and v.__module__ == module.__name__
    ]
    offered += [id for id, spec in gym.registry.items() if module.__name__ == _module_of(spec.entry_point)]
    raise GxError(
        f"--env {env_id}: {module.__name__} neither holds nor registers {name!r}"
        + (did_you_mean(name, offered) or f"; it has {', '.join(offered) or 'no environment'}")
    )


def _module_of(entry_point: object) -> str | None:
    """The module of a registered entry point: a callable, or `module:name`."""
    return (
        entry_point.partition(":")[0]
        if isinstance(entry_point, str)
        else getattr(entry_point, "__module__", None)
    )
