"""Drawing, stacking and copying rows, compiled: the same numbers as `extent.py` and `gather.py`, in one loop each.

This file is imported only where numba is installed; `compiled.py` decides. Sampling a small batch is bound by the
cost of array calls, and that of a large one by memory.
All functions are in one file, since numba's cache looks at the time of a function's own file only.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
# numba infers the types of compiled functions, and gives intrinsics their first argument.

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

CACHE_LINE = 64
AHEAD = 8  # rows that are loaded before they are copied: records are small and far apart
MISSING = "a row that was drawn does not exist"


def _jit(function):
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return njit(nogil=True)(function)


@intrinsic
def _copy_bytes(_context, target, source, count):
    """memcpy between addresses: twice as fast as the loops that numba makes of records of odd sizes."""

    def generate(_target_context, builder, _signature, arguments):
        to, origin = (builder.inttoptr(address, ir.IntType(8).as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def _prefetch(_context, address):
    """Start to load the cache line at an address."""

    def generate(_target_context, builder, _signature, arguments):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        # to read, into all caches, data
        builder.call(function, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])

    return types.void(types.intp), generate


@_jit
def usable_rows(numbers, ends, length, oldest, is_step, episode_step, rows_per_env, stack, rows):
    """Fill rows [n] with the usable rows among those that numbers [m] in [0, 1) choose; how many there were."""
    found = 0
    total = float(ends[-1])
    for number in numbers:
        if found == len(rows):
            break
        ticket = int(number * total)
        env, last = 0, len(ends) - 1
        while env < last:  # the first env that ends after the ticket
            middle = (env + last) // 2
            if ends[middle] > ticket:
                last = middle
            else:
                env = middle + 1
        place = ticket - (ends[env] - length[env])
        row = env * rows_per_env + place
        if not is_step[row]:
            continue
        if stack > 1 and (place - oldest[env]) % rows_per_env < min(episode_step[row], stack - 1):
            continue
        rows[found] = row
        found += 1
    return found


@_jit
def stack_rows(rows, episode_step, rows_per_env, stack, index):
    """Fill index [n, stack + ahead] with the rows of the stacks at rows [n]."""
    for i in range(len(rows)):
        row = rows[i]
        if not 0 <= row < len(episode_step):
            raise IndexError(MISSING)
        place = row % rows_per_env
        first = -min(stack - 1, episode_step[row]) if stack > 1 else 0
        for k in range(index.shape[1]):
            index[i, k] = row - place + (place + max(k + 1 - stack, first)) % rows_per_env


@_jit
def copy_rows(source, index, places, out):
    """Copy the rows index [n, k] of source [m, bytes] to out [places[n], k, bytes], which is given flat."""
    size, across = source.shape[1], index.shape[1]
    origin, target = source.ctypes.data, out.ctypes.data
    for i in range(len(index)):
        at = target + places[i] * across * size
        first, count = index[i, 0], 0
        for row in index[i]:
            if not 0 <= row < len(source):
                raise IndexError(MISSING)
            if row == first + count:
                count += 1
            else:
                _copy_bytes(at, origin + first * size, count * size)
                at += count * size
                first, count = row, 1
        _copy_bytes(at, origin + first * size, count * size)


@_jit
def copy_steps(
    records, terminated, rows_per_env, rows, places, online, gamma, out, row, is_online, discount, span_length
):
    """Copy each record of rows [n] and the one after it to out [places[n], 2, bytes], which is given flat."""
    size = records.shape[1]
    origin, target = records.ctypes.data, out.ctypes.data
    for i in range(len(rows)):
        here, to = rows[i], places[i]
        if not 0 <= here < len(records):
            raise IndexError(MISSING)
        if i + AHEAD < len(rows):
            coming = origin + rows[i + AHEAD] * size
            for line in range(coming, coming + 2 * size, CACHE_LINE):
                _prefetch(line)
        at = target + 2 * to * size
        if (here + 1) % rows_per_env:
            _copy_bytes(at, origin + here * size, 2 * size)
        else:  # the last row of an env comes before its first
            _copy_bytes(at, origin + here * size, size)
            _copy_bytes(at + size, origin + (here + 1 - rows_per_env) * size, size)
        row[to], is_online[to], span_length[to] = here, online, 1
        discount[to] = 0.0 if terminated[here] else gamma


def warm_up() -> None:
    """Compile everything, or load it from the cache, so that no sample waits for it."""
    records = np.zeros(2, np.dtype([("flag", np.bool_), ("episode_step", np.int32)], align=True))
    flag, episode_step = records["flag"], records["episode_step"]
    zero, one, index = np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros((1, 1), np.int64)
    source, out = np.zeros((2, 1), np.uint8), np.empty(2, np.uint8)
    usable_rows(np.zeros(1), one, one, zero, flag, episode_step, 2, 1, one.copy())
    stack_rows(zero, episode_step, 2, 1, index)
    is_online, discount = np.empty(1, np.bool_), np.empty(1, np.float32)
    copy_steps(source, flag, 2, zero, zero, True, 1.0, out, zero.copy(), is_online, discount, one.copy())
    copy_rows(source, index, zero, out)
    source.flags.writeable = False  # as columns of a read-only file
    copy_rows(source, index, zero, out)
