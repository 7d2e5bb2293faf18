"""Matrix products of updates by oneDNN, which on AMD processors takes half the time of MKL."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache

import torch

ROUNDING = 1e-5  # of float32 products, relative to the largest; bfloat16 has 1e-3


def fast_products(device: torch.device) -> AbstractContextManager[None]:
    """Within it, torch lets oneDNN multiply float32 matrices on the CPU, if it does so in float32 here.

    torch hands them to oneDNN only with leave to round to bfloat16. Processors with units for that (AMX) would, and
    what is learned should not depend on that; all others multiply as exactly as MKL.
    """
    free = device.type == "cpu" and not _is_set_otherwise()
    return _leave_to_round() if free and _is_exact() else nullcontext()


@contextmanager
def _leave_to_round() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _is_set_otherwise() -> bool:
    """Whether somebody has chosen a precision through torch.backends, which then is not ours to change."""
    try:
        torch.get_float32_matmul_precision()
    except RuntimeError:  # both ways of setting it do not go together
        return True
    return False


@lru_cache
def _is_exact() -> bool:
    """Whether products with leave to round are as exact as others on this processor."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(128, 128, generator=generator) for _ in range(2))
    with _leave_to_round():
        found = left @ right
    exact = left.double() @ right.double()
    return bool((found - exact).abs().max() < ROUNDING * exact.abs().max())
