"""Matrix products of updates by oneDNN, which on AMD processors takes half the time of MKL."""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from threading import Lock
from typing import Any

import torch

SETTING: Any = getattr(torch.backends.mkldnn, "matmul", None)  # since torch 2.9
ROUNDING = 1e-5  # of float32 products, relative to the largest; bfloat16 has 1e-3


def fast_products(device: torch.device) -> AbstractContextManager[None]:
    """Within it, torch lets oneDNN multiply float32 matrices on the CPU, if it does so in float32 here.

    torch hands them to oneDNN only with leave to round to bfloat16. Processors with units for that (AMX) would, and
    what is learned should not depend on that; all others multiply as exactly as MKL. The leave holds for all threads of
    a process, which may then see products that differ in the last digit.
    """
    return _LEAVE if device.type == "cpu" and _is_exact() else nullcontext()


class _Leave:
    """Leave to round while anybody is within it; then the setting is again what it was."""

    def __init__(self) -> None:
        self._lock, self._within, self._before = Lock(), 0, "none"

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._before = SETTING.fp32_precision
                SETTING.fp32_precision = "bf16"
            self._within += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                SETTING.fp32_precision = self._before


_LEAVE = _Leave()


@lru_cache
def _is_exact() -> bool:
    """Whether products with leave to round are as exact as others on this processor."""
    if SETTING is None:
        return False
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(128, 128, generator=generator) for _ in range(2))
    with _LEAVE:
        found = left @ right
    exact = left.double() @ right.double()
    return bool((found - exact).abs().max() < ROUNDING * exact.abs().max())
