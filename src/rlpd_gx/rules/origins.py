"""Where things come from: the modules that hold them, and whether those are somebody's own code or installed."""

import functools
import importlib
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

MISSING: Any = object()
_STANDARD_LIBRARY = {os.path.realpath(p) for n in ("stdlib", "platstdlib") if (p := sysconfig.get_path(n))}


def homes(thing: Any, above: list[int]) -> Iterator[str]:
    """The modules that something callable comes from, and what it wraps."""
    if not callable(thing) or id(thing) in above:
        return
    above = [*above, id(thing)]
    if isinstance(thing, types.FunctionType):
        yield str(thing.__globals__.get("__name__", ""))
        for cell in thing.__closure__ or ():
            yield from homes(cell_content(cell), above)
    else:
        yield str(getattr(thing if isinstance(thing, type) else type(thing), "__module__", ""))
    for name in ("func", "__func__", "__self__", "__wrapped__"):
        yield from homes(getattr(thing, name, None), above)


def address(thing: Any) -> tuple[str, str]:
    """The module and the name under which something should be found."""
    if isinstance(thing, types.FunctionType):  # functools.wraps changes __module__
        return str(thing.__globals__.get("__name__", "")), thing.__qualname__
    if isinstance(thing, np.ufunc):
        scipy = sys.modules.get("scipy.special")
        return "numpy" if hasattr(np, thing.__name__) or scipy is None else "scipy.special", thing.__name__
    if isinstance(thing, types.BuiltinFunctionType) and isinstance(thing.__self__, types.ModuleType):
        return str(thing.__module__), thing.__name__
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    return (module, name) if isinstance(module, str) and isinstance(name, str) else ("", "")


def at(value: Any, path: str) -> Any:
    """What lies behind dots."""
    for name in path.split("."):
        value = getattr(value, name, MISSING)
    return value


def attribute(module: types.ModuleType, name: str) -> Any:
    """What stands behind a dot; a submodule that nobody has imported yet is imported."""
    if name in vars(module):
        return vars(module)[name]
    with suppress(Exception):
        if "__path__" in vars(module):
            return importlib.import_module(f"{module.__name__}.{name}")
    with suppress(Exception):
        return getattr(module, name)
    return MISSING


def is_installed(module: types.ModuleType) -> bool:
    """Whether a module lies in the standard library or with the installed packages, or is built in."""
    said = vars(module)  # not getattr: a module may answer for names that it does not hold
    places = [said.get("__file__"), *(said.get("__path__") or ())]
    for place in places:
        if place:
            return _is_with_packages(str(place))
    return module.__name__ in sys.builtin_module_names or module.__name__ in sys.stdlib_module_names


@functools.lru_cache(maxsize=4096)
def _is_with_packages(place: str) -> bool:
    real = os.path.realpath(place)
    if {"site-packages", "dist-packages"}.intersection(Path(real).parts):
        return True
    return any(real.startswith(folder + os.sep) for folder in _STANDARD_LIBRARY)


def cell_content(cell: types.CellType) -> Any:
    """What a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet: a function that names itself
        return None
