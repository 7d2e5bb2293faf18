"""Safe sets from control barrier functions: h(x) >= 0 stays true where the rule holds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.rules.rule import Atom, halfspace_rule
from rlpd_gx.safe_sets.backend import to_numpy
from rlpd_gx.types import Array

Function = Callable[[Any], Any]  # of a state [n], or of states [B, n] where the rule is batched


def cbf_rule(
    h: Function,
    *,
    dynamics: tuple[Function, Function],
    alpha: float | Callable[[Array], Array] = 1.0,
    gradient: Function | None = None,
    name: str | None = None,
    batched: bool = False,
) -> Atom:
    """A rule from a barrier function of a control-affine system dx/dt = f(x) + g(x) a.

    The rule keeps h(x) >= 0 by the half-space  dh/dx (f + g a) >= -alpha(h)  for each barrier, so that the nearest
    allowed action is exact.

    h: state [n] -> a number, or [m] for several barriers; written with torch, unless `gradient` is given.
    dynamics: (f, g) with f: state -> [n] and g: state -> [n, d], as numpy arrays.
    alpha: how fast h may fall, per second: a number k for k h, or an increasing function with alpha(0) = 0. Actions
        are held for a control period, so choose k below one over that period, and leave h some room.
    gradient: state -> dh/dx [n] or [m, n].
    batched: the functions take states [B, n] and return one row for each.

    h has to react to the action: dh/dx g must not vanish where h is small, so a barrier for a position contains the
    velocity. A value that is not finite fails the rule, and the Guardian falls back.
    """
    f, g = dynamics

    def half_spaces(state: Any) -> tuple[Array, Array]:
        x = np.asarray(to_numpy(state), dtype=np.float64)
        values, slopes = _by_torch(h, x) if gradient is None else _given(h, gradient, x)
        drift, gain = (np.asarray(to_numpy(part(x)), dtype=np.float64) for part in (f, g))
        if drift.shape != x.shape or gain.shape[:-1] != x.shape:
            raise GxError(
                f"needs f of shape {x.shape} and g of shape {(*x.shape, 'd')}, got {drift.shape} and {gain.shape}"
            )
        decay = np.asarray(alpha(values) if callable(alpha) else alpha * values)
        rows = -np.einsum("...mn,...nd->...md", slopes, gain)
        limits = np.einsum("...mn,...n->...m", slopes, drift) + decay
        if not (np.isfinite(rows).all() and np.isfinite(limits).all()):
            raise GxError("has a barrier, gradient or dynamics that is not finite here")
        return rows, limits

    given = name or str(getattr(h, "__name__", "barrier"))
    rule: Atom = halfspace_rule(
        half_spaces, name="barrier" if given == "<lambda>" else given, batched=batched
    )
    return rule


def _by_torch(h: Function, x: Array) -> tuple[Array, Array]:
    """h [..., m] and its gradient [..., m, n] at x [..., n]."""
    import torch

    point = torch.tensor(x, requires_grad=True)
    try:
        values = h(point)
    except (TypeError, RuntimeError) as error:
        raise GxError(
            f"cannot differentiate h with torch ({error}); write it with torch, or give gradient="
        ) from None
    if not isinstance(values, torch.Tensor) or not values.requires_grad:
        raise GxError("cannot differentiate h with torch; write it with torch, or give gradient=")
    columns = values[..., None] if values.ndim < point.ndim else values
    slopes = [
        torch.autograd.grad(columns[..., k].sum(), point, retain_graph=True)[0]
        for k in range(columns.shape[-1])
    ]
    return columns.detach().numpy(), torch.stack(slopes, dim=-2).numpy()


def _given(h: Function, gradient: Function, x: Array) -> tuple[Array, Array]:
    values, slopes = (np.asarray(to_numpy(part(x)), dtype=np.float64) for part in (h, gradient))
    values = values[..., None] if values.ndim < x.ndim else values
    slopes = slopes[..., None, :] if slopes.ndim == x.ndim else slopes
    if slopes.shape != (*values.shape, x.shape[-1]):
        raise GxError(f"needs a gradient of shape {(*values.shape, x.shape[-1])}, got {slopes.shape}")
    return values, slopes
