"""Matrix products of updates by oneDNN, which on AMD processors takes half the time of MKL."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

ROUNDING = 1e-5  # of float32 products, relative to the largest; bfloat16 has 1e-3


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Within it, torch lets oneDNN multiply float32 matrices on the CPU, if it does so in float32 here.

    torch hands them to oneDNN only with leave to round to bfloat16. Processors with units for that (AMX) would, and
    what is learned should not depend on that; all others multiply as exactly as MKL.
    """
    if device.type != "cpu" or not _is_exact():
        yield
        return
    with _leave_to_round():
        yield


@contextmanager
def _leave_to_round() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@lru_cache
def _is_exact() -> bool:
    """Whether products with leave to round are as exact as others on this processor."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(128, 128, generator=generator) for _ in range(2))
    with _leave_to_round():
        found = left @ right
    exact = left.double() @ right.double()
    return bool((found - exact).abs().max() < ROUNDING * exact.abs().max())
