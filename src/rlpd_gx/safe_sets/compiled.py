"""The compiled projection, used where numba is installed (`pip install rlpd-gx[fast]`)."""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from rlpd_gx.compilers import load_kernel
from rlpd_gx.safe_sets.separable import Rows

INSIDE, MOVED, EMPTY, UNSURE = range(4)
FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
COMPILING = "note: compiling the projection for this machine; this takes about half a minute, once"


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
    """The module of compiled functions, or None without numba. The first call in a process takes about a second.

    The first call on a machine compiles it, which takes half a minute. A Guardian makes that call when it is
    constructed, so no verdict waits for it.
    """
    return load_kernel("rlpd_gx.safe_sets.kernel", COMPILING)


def nearest(
    a: np.ndarray, low: np.ndarray, high: np.ndarray, rows: Rows, metric: np.ndarray
) -> Answers | None:
    """Answers for proposals a [B, d] of 32 or 64 bits; the rest has B rows or one for all. None without numba."""
    compiled = kernel() if a.dtype in FLOATS else None
    if compiled is None:
        return None
    count, k = len(a), rows.bound.shape[-1]
    answers = Answers(np.empty(a.shape), np.empty(count, np.int8), np.empty((count, k)))
    arrays = (a, low, high, metric, rows.pos, rows.neg, rows.quad, rows.bound)
    compiled.nearest_rows(
        *(plain(v) for v in arrays), rows.kinked, rows.curved, a.dtype == np.float32, *answers
    )
    return answers


def one_at_a_time(
    low: np.ndarray, high: np.ndarray, rows: Rows
) -> Callable[[np.ndarray], np.ndarray | None] | None:
    """A function from a proposal [d] to its nearest point, or to None where that is not certain; None without numba."""
    compiled = kernel()
    if compiled is None:
        return None
    (d,), (k,) = low.shape, rows.bound.shape
    box = (plain(low[None]), plain(high[None]), np.ones((1, d)))
    arrays = tuple(plain(v[None]) for v in (rows.pos, rows.neg, rows.quad, rows.bound))
    kinked, curved, call, empty = rows.kinked, rows.curved, compiled.nearest_rows, np.empty

    def project(a: np.ndarray) -> np.ndarray | None:
        dtype = a.dtype
        if a.shape != (d,) or dtype not in FLOATS:
            return None
        point, status = empty((1, d)), empty(1, np.int8)
        proposal = a.astype(np.float64)[None]
        call(proposal, *box, *arrays, kinked, curved, dtype == np.float32, point, status, empty((1, k)))
        return point[0].astype(dtype, copy=False) if status[0] <= MOVED else None

    return project


def plain(v: np.ndarray) -> np.ndarray:
    """The array as the one kind that the kernel is compiled for: float64, contiguous, writable."""
    return v if v.flags.carray and v.dtype == np.float64 else np.array(v, np.float64, order="C")
