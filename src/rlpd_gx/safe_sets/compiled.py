"""The compiled projection, used where numba is installed (`pip install rlpd-gx[fast]`)."""

import os
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from rlpd_gx.safe_sets.separable import Rows

INSIDE, MOVED, EMPTY, UNSURE = range(4)


class Answers(NamedTuple):
    """`point` [B, d] in float64; `status` [B]: INSIDE, MOVED, EMPTY or UNSURE; `proof` [B, k]: multipliers where EMPTY.

    A point that is INSIDE or MOVED satisfies bounds and rows in exact arithmetic. EMPTY is a claim that `proof` has to
    show; UNSURE is no answer.
    """

    point: np.ndarray
    status: np.ndarray
    proof: np.ndarray


@cache
def kernel() -> ModuleType | None:
    """The module of compiled functions, or None without numba. The first call takes about a second.

    Machine code is kept beside the module, or in the user's cache folder where that cannot be written; on a machine
    that has none yet, the first projection takes some ten seconds longer.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    try:
        from rlpd_gx.safe_sets import kernel
    except ImportError:
        return None
    return kernel


def nearest(
    a: np.ndarray, low: np.ndarray, high: np.ndarray, rows: Rows, metric: np.ndarray
) -> Answers | None:
    """Answers for proposals a [B, d] of 32 or 64 bits; the rest has B rows or one for all. None without numba."""
    compiled = kernel() if a.dtype in (np.float32, np.float64) else None
    if compiled is None:
        return None
    count, k = len(a), rows.bound.shape[-1]
    answers = Answers(np.empty(a.shape), np.empty(count, np.int8), np.empty((count, k)))
    arrays = (a, low, high, metric, rows.pos, rows.neg, rows.quad, rows.bound)
    compiled.nearest_rows(
        *(plain(v) for v in arrays), rows.kinked, rows.curved, a.dtype == np.float32, *answers
    )
    return answers


def plain(v: np.ndarray) -> np.ndarray:
    """The array as the one kind that the kernel is compiled for: float64, contiguous, writable."""
    return v if v.flags.carray and v.dtype == np.float64 else np.array(v, np.float64, order="C")
