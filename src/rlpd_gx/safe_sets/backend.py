"""One implementation for numpy arrays and torch tensors: the array namespace an argument belongs to."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray | torch.Tensor: the code below uses the array-API standard common to both


def namespace(*arrays: Array) -> Any:
    """numpy, or array-api-compat's view of torch as soon as one argument is a tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(a, torch.Tensor) for a in arrays):
        import array_api_compat.torch as xp

        return xp
    return np


def as_float(a: Array, like: Array | None = None) -> Array:
    """`a` as float64, in the namespace (and on the device) of `like`."""
    xp = namespace(a if like is None else like)
    if xp is np:
        if hasattr(a, "detach"):
            a = a.detach().cpu().numpy()
        return np.asarray(a, dtype=np.float64)
    import torch

    return torch.as_tensor(a, dtype=torch.float64, device=None if like is None else like.device)


def to_numpy(a: Array) -> np.ndarray:
    """`a` as a numpy array, without a copy where the memory can be shared."""
    if not hasattr(a, "detach"):
        return np.asarray(a)
    a = a.detach().cpu()
    return (a.float() if str(a.dtype) == "torch.bfloat16" else a).numpy()


def is_float32(a: Array) -> bool:
    """Whether results must survive a cast to 32 bits (16-bit floats count: they are checked the same way)."""
    return hasattr(a, "dtype") and str(a.dtype).removeprefix("torch.") in ("float32", "float16", "bfloat16")


def common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to; numpy's function is slow where all are the same."""
    first = shapes[0]
    return first if all(shape == first for shape in shapes) else np.broadcast_shapes(*shapes)


def row_sum(a: Array) -> Array:
    """Sum over the last axis. As a product with ones, which is several times faster for a short axis."""
    return a @ namespace(a).ones(a.shape[-1], dtype=a.dtype, device=a.device)


def row_any(condition: Array) -> Array:
    """Whether anything is true along the last axis; as a sum, for the same reason."""
    xp = namespace(condition)
    return row_sum(xp.astype(condition, xp.float32)) > 0


def index_range(count: int, like: Array) -> Array:
    """0 .. count-1 in the namespace and on the device of `like`."""
    return namespace(like).arange(count, device=like.device)


def distances(x: Array, a: Array, metric: Array | None = None) -> Array:
    """sqrt(sum metric_i (x_i - a_i)^2) over the last axis; also where the squares would overflow or vanish."""
    xp = namespace(x)
    largest_number = xp.finfo(xp.float64).max
    difference = xp.clip(xp.abs(as_float(x) - as_float(a)), None, largest_number)
    if metric is not None:
        difference = xp.sqrt(as_float(metric, like=x)) * difference
    scale = xp.max(difference, axis=-1)
    scale = xp.where(scale > 0, scale, 1.0)
    difference = difference / scale[..., None]
    return scale * xp.sqrt(xp.sum(difference * difference, axis=-1))
