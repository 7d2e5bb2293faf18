"""What compiles on this machine: kernels by numba (`pip install rlpd-gx[fast]`), graphs of torch by a C++ compiler."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


def has_cpp_compiler() -> bool:
    """Whether there is a C++ compiler, which graphs of torch need on a CPU."""
    return any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++")))


def load_kernel(name: str, note: str) -> ModuleType | None:
    """A module of functions that numba compiles, warmed up; None without numba. `note` is printed before it compiles.

    Machine code is kept beside the module, or in the user's cache folder where that cannot be written.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    try:
        module = import_module(name)
    except ImportError:
        return None
    with announced(note):
        module.warm_up()
    return module


@contextmanager
def announced(note: str) -> Iterator[None]:
    """Prints the note before numba compiles anything in it; what comes from the cache is not compiled."""
    from numba.core import event

    class Once(event.Listener):
        said = False

        def on_start(self, event: object) -> None:
            if not self.said:
                print(note, file=sys.stderr, flush=True)
            self.said = True

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Once()):
        yield
