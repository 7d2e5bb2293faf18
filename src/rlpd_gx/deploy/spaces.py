"""Observation and action spaces as JSON, exactly."""

import gymnasium as gym
import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.trees import DType, Json
from rlpd_gx.types import Array


def to_json(space: gym.Space) -> Json:
    """The definition of a space as JSON values."""
    if isinstance(space, gym.spaces.Box):
        bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
        return {"kind": "box", "shape": list(space.shape), "dtype": space.dtype.name, **bounds}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"kind": "multi-discrete", "dtype": space.dtype.name, **sizes}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "binary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "dict", "parts": {name: to_json(part) for name, part in space.spaces.items()}}
    raise GxError(f"a policy on {space} cannot be exported; only numbers, categories and dicts of them can")


def from_json(value: Json) -> gym.Space:
    """The inverse of `to_json`."""
    if value["kind"] == "box":
        shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
        low, high = (_array(value[name], shape, dtype) for name in ("low", "high"))
        return gym.spaces.Box(low, high, shape, dtype.type)
    if value["kind"] == "discrete":
        return gym.spaces.Discrete(value["n"], start=value["start"])
    if value["kind"] == "multi-discrete":
        whole, nvec, start = np.dtype(value["dtype"]).type, np.array(value["nvec"]), np.array(value["start"])
        return gym.spaces.MultiDiscrete(nvec, dtype=whole, start=start)
    if value["kind"] == "binary":
        return gym.spaces.MultiBinary(value["n"])
    return gym.spaces.Dict({name: from_json(part) for name, part in value["parts"].items()})


def _numbers(bound: Array) -> list[object]:
    """One number where all are equal (frames have thousands); JSON has no infinity, so that is a word."""
    flat = bound.ravel()
    few = flat[:1] if (flat == flat[:1]).all() else flat
    return [number if np.isfinite(number) else str(number) for number in few.tolist()]


def _array(numbers: list[object], shape: tuple[int, ...], dtype: DType) -> Array:
    values = [float(n) if isinstance(n, str) else n for n in numbers]
    return np.broadcast_to(np.array(values, dtype), shape if len(values) == 1 else (len(values),)).reshape(
        shape
    )
