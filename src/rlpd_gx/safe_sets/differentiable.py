"""A differentiable projection, for an actor that is trained through the Guardian."""

from typing import Any

import torch

from rlpd_gx.safe_sets.asked import Asked
from rlpd_gx.safe_sets.backend import Array
from rlpd_gx.safe_sets.base import SafeSet
from rlpd_gx.safe_sets.compound import Union
from rlpd_gx.safe_sets.convex import ConvexSet, Form

ACTIVE = 1e-6  # a row this close to its bound, relative to its numbers, holds the point


def project(safe_set: SafeSet, a: torch.Tensor) -> torch.Tensor:
    """The nearest allowed actions [..., d]; where there is none, a itself. Gradients flow along the boundary.

    A component of the gradient that points out of the set is lost: from the value alone, an actor gets no gradient
    that moves its proposals back inside.
    """
    return _Projection.apply(a, safe_set)


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, safe_set: SafeSet) -> torch.Tensor:
        # on a CPU numpy's calls are several times cheaper than torch's
        values = a.detach().numpy() if a.device.type == "cpu" else a.detach()
        if bool(safe_set.contains(values).all()):
            point = a.clone()
        else:
            nearest = safe_set.nearest(values)
            found = torch.as_tensor(nearest.found, device=a.device)
            point = torch.where(found[..., None], torch.as_tensor(nearest.point, device=a.device), a)
        ctx.save_for_backward(a, point)
        ctx.safe_set = safe_set
        return point

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        a, point = ctx.saved_tensors
        moved = (point != a).any(dim=-1)
        gradient = gradients[0].clone()
        if moved.any():
            through = along_boundary(ctx.safe_set, a.double(), point.double(), gradient.double())
            gradient = torch.where(moved[..., None], through.to(gradient.dtype), gradient)
        return gradient, None


def along_boundary(
    safe_set: SafeSet, a: torch.Tensor, point: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """The derivative of a -> point applied to a gradient [..., d]; exact where the point is not a corner.

    At the solution, point = a - J' lambda on the free components, with J the slopes of the active rows. So the
    derivative is P = M^-1 - M^-1 J' (J M^-1 J')^-1 J M^-1, where M = I + the curvature of the rows times lambda.
    """
    if isinstance(safe_set, Asked):  # along the boundary of unknown rules the gradient is passed as it is
        return along_boundary(safe_set.convex, a, point, gradient)
    if isinstance(safe_set, Union):
        nearest = torch.stack([part.margin(point) for part in safe_set.parts]).argmax(dim=0)
        each = torch.stack([along_boundary(part, a, point, gradient) for part in safe_set.parts])
        return each.gather(0, nearest[None, ..., None].expand(1, *gradient.shape))[0]
    assert isinstance(safe_set, ConvexSet)
    low, high, rows = _torch_form(safe_set.form, point)
    at_kink = rows.kinked & (point == 0) & (a != 0)
    free = ((point > low) & (point < high) & ~at_kink).double()
    slope = torch.where(point[..., None, :] > 0, rows.pos, -rows.neg) + 2 * rows.quad * point[..., None, :]
    excess = rows.excess(point)
    active = (excess.abs() <= ACTIVE * (1 + rows.magnitude(point))) & excess.isfinite()
    J = torch.where(active[..., None], slope, 0.0) * free[..., None, :]  # [..., K, d]
    multiplier = _solve(J @ J.mT, (J @ (a - point)[..., None])).clamp(min=0)  # [..., K, 1]
    # M^-1, diagonal
    inverse = free / (1 + 2 * (rows.quad * torch.where(active[..., None], multiplier, 0.0)).sum(dim=-2))
    MJ = J * inverse[..., None, :]
    normal = _solve(MJ @ J.mT, MJ @ gradient[..., None])
    return inverse * gradient - (MJ.mT @ normal)[..., 0]


def _torch_form(form: Form, like: torch.Tensor) -> Form:
    def tensor(values: Array) -> torch.Tensor:
        return torch.as_tensor(values, dtype=like.dtype, device=like.device)

    rows = form.rows
    arrays = (tensor(v) for v in (rows.pos, rows.neg, rows.quad, rows.bound))
    return Form(tensor(form.low), tensor(form.high), rows.with_arrays(*arrays))


def _solve(gram: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """gram [..., K, K] may be singular: rows that are inactive or alike. Returns the minimum-norm solution."""
    return torch.linalg.pinv(gram, hermitian=True, rtol=1e-9) @ right
