"""The compiled loops of sampling, used where numba is installed (`pip install rlpd-gx[fast]`)."""

from functools import cache
from types import ModuleType

from rlpd_gx.compilers import load_kernel

COMPILING = "note: compiling the replay buffer for this machine; this takes a few seconds, once"


@cache
def kernel() -> ModuleType | None:
    """The module of compiled functions, or None without numba. The first call in a process loads numba."""
    return load_kernel("rlpd_gx.replay.kernel", COMPILING)
