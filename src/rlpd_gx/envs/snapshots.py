"""Snapshots of a whole environment, wrappers included, so that a run can be resumed in another process.

A snapshot is a nested dict of numpy arrays and JSON values, one entry for each layer. A layer with methods
`snapshot() -> dict` and `restore(dict)` of its own uses them (for itself, not for what it wraps); the generator of the
environment is kept beside them. Gymnasium's MuJoCo and classic-control environments and its usual wrappers are
supported here. Other layers have no snapshot.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.utils import seeding

from rlpd_gx.errors import GxError
from rlpd_gx.trees import Json, NotPlain, Tree, packed, unpacked
from rlpd_gx.types import Array

_WRAPPERS: dict[type, tuple[str, ...]] = {  # wrapper -> what changes in it
    wrappers.TimeLimit: ("_elapsed_steps",),
    wrappers.OrderEnforcing: ("_has_reset",),
    wrappers.PassiveEnvChecker: (),
    wrappers.ClipAction: (),
    wrappers.RescaleAction: (),
    wrappers.ClipReward: (),
    wrappers.FlattenObservation: (),
    wrappers.DtypeObservation: (),
    wrappers.RescaleObservation: (),
    wrappers.ReshapeObservation: (),
}
# rendering, file paths and constructor arguments: not part of the state
_NOT_STATE = {
    *(
        "render_mode",
        "mujoco_renderer",
        "width",
        "height",
        "camera_id",
        "camera_name",
        "fullpath",
        "metadata",
    ),
    *("screen", "screen_width", "screen_height", "screen_dim", "clock", "surf", "isopen"),
    *("spec", "_ezpickle_args", "_ezpickle_kwargs", "_model_names", "_np_random", "_np_random_seed"),
    *("model", "data", "observation_structure"),
}
# what environments change in a MuJoCo model: positions of a door, masses, friction
_MODEL = ("body_", "geom_", "site_", "jnt_", "dof_", "actuator_")
_GENERATOR = "np_random"  # beside the layers, where the environment has a snapshot of its own


class _Unknown(Exception):
    """A layer without a snapshot; its text says why."""


def snapshot(env: gym.Env) -> Json | None:
    """Everything that the next steps and episodes of an environment depend on; None if a layer has no snapshot."""
    try:
        return _taken(env)
    except _Unknown:
        return None


def why_not(env: gym.Env) -> str:
    """Why there is no snapshot, in one sentence; empty if there is one."""
    try:
        _taken(env)
    except _Unknown as reason:
        return str(reason)
    return ""


def restore(env: gym.Env, snapshot: Json) -> None:
    """Restore a snapshot in an environment made in the same way; it needs no reset before."""
    layers = _layers(env)
    taken = {name: part for name, part in snapshot.items() if name != _GENERATOR}
    if layers.keys() != taken.keys():
        raise GxError(
            f"the snapshot is of {', '.join(taken)}, but this environment is {', '.join(layers)}; "
            "make it with the same wrappers"
        )
    for name, layer in layers.items():
        _put(layer, taken[name])
    if _GENERATOR in snapshot:  # older checkpoints have none
        set_random_state(layers.popitem()[1], snapshot[_GENERATOR])


def random_state(env: gym.Env) -> Json | None:
    """The environment's own generator as JSON values; None where it has not been used yet."""
    if env._np_random is None:
        return None
    state = env._np_random.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise _Unknown(f"{type(env).__name__} draws from a {state['bit_generator']}; only PCG64 is known")
    return {"generator": state, "seed": env._np_random_seed}


def set_random_state(env: gym.Env, state: Json | None) -> None:
    """Restore a state that `random_state` returned."""
    env._np_random, env._np_random_seed = None, None
    if state is not None:
        env._np_random, _ = seeding.np_random(0)
        env._np_random.bit_generator.state = state["generator"]
        env._np_random_seed = state["seed"]


def _layers(env: gym.Env) -> Json:
    """The wrappers, outermost first, and the environment, by number and class."""
    layers: list[gym.Env] = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return {f"{place} {type(layer).__name__}": layer for place, layer in enumerate(layers)}


def _taken(env: gym.Env) -> Json:
    layers = _layers(env)
    taken = {name: _take(layer) for name, layer in layers.items()}
    innermost = layers.popitem()[1]
    return taken | {_GENERATOR: random_state(innermost)} if _answers(innermost) else taken


def _take(layer: Any) -> Json:
    if _answers(layer):
        try:
            return layer.snapshot()
        except NotPlain as error:
            raise _Unknown(
                f"the observation or info of {type(layer).__name__} {error}, which has no snapshot"
            ) from None
    if type(layer) in _WRAPPERS:
        return {name: _packed(getattr(layer, name), name) for name in _WRAPPERS[type(layer)]}
    simulator = _is_mujoco(layer)
    if not simulator and not type(layer).__module__.startswith("gymnasium.envs.classic_control."):
        raise _Unknown(
            f"{type(layer).__name__} has no snapshot: give it methods snapshot() -> dict and restore(dict)"
        )
    fields = {
        name: _packed(value, f"{type(layer).__name__}.{name}")
        for name, value in vars(layer).items()
        if name not in _NOT_STATE and not isinstance(value, spaces.Space)
    }
    taken: Json = {"fields": fields, "random": random_state(layer)}
    if simulator:
        arrays, model = _simulator_arrays(layer), _model_arrays(layer)
        taken |= {
            "time": layer.data.time,
            "data": {name: array.copy() for name, array in arrays.items()},
            "model": {name: array.copy() for name, array in model.items()},
        }
    return taken


def _put(layer: Any, taken: Json) -> None:
    if _answers(layer):
        layer.restore(taken)
    elif type(layer) in _WRAPPERS:
        for name, value in taken.items():
            setattr(layer, name, unpacked(value))
        if isinstance(layer, wrappers.PassiveEnvChecker):
            # its checks compare with the previous observation, which is not saved; they were made in the first run
            layer.checked_reset = layer.checked_step = layer.checked_data_reuse = True
    else:
        for name, value in taken["fields"].items():
            setattr(layer, name, unpacked(value))
        set_random_state(layer, taken["random"])
        if _is_mujoco(layer):
            for kind, target in (("model", _model_arrays(layer)), ("data", _simulator_arrays(layer))):
                for name, array in target.items():
                    array[...] = taken[kind][name]
            layer.data.time = taken["time"]


def _answers(layer: gym.Env) -> bool:
    return callable(getattr(type(layer), "snapshot", None)) and callable(
        getattr(type(layer), "restore", None)
    )


def _is_mujoco(layer: Any) -> bool:
    # by name, since importing the class fails where MuJoCo is not installed
    return any(
        kind.__module__ == "gymnasium.envs.mujoco.mujoco_env" and kind.__name__ == "MujocoEnv"
        for kind in type(layer).__mro__
    )


def _simulator_arrays(layer: Any) -> dict[str, Array]:
    """All arrays of MjData that have a fixed size; it recomputes the others, contacts for example.

    Not only positions and velocities: environments read derived arrays (xpos, cfrc_ext) before they step.
    """
    empty = type(layer.data)(layer.model)  # arrays of varying size are still empty in it
    names = [name for name in _array_names(empty) if name not in ("plugin", "plugin_data")]  # pointers
    return {name: getattr(layer.data, name) for name in names}


def _model_arrays(layer: Any) -> dict[str, Array]:
    names = [name for name in _array_names(layer.model) if name.startswith(_MODEL)]
    arrays = {name: getattr(layer.model, name) for name in names}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def _array_names(source: Any) -> list[str]:
    names = [name for name in dir(source) if not name.startswith("_")]
    return [n for n in names if isinstance(a := getattr(source, n), np.ndarray) and a.size]


def _packed(value: Tree, where: str) -> Tree:
    try:
        return packed(value)
    except NotPlain as error:
        raise _Unknown(
            f"{where} {error}, which has no snapshot: give the environment methods snapshot() -> dict and restore(dict)"
        ) from None
