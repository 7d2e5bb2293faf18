"""One module per file format. Adding a module here adds the format: nothing else needs to change.

Each has `DESCRIPTION`, `recognises(path) -> bool` (by content), `read(path, **options) -> Source`.
"""

import inspect
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline.episode import Source, first_bytes, pickled


@cache
def formats() -> dict[str, ModuleType]:
    """Name -> module, for every format known."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}") for name in names}


def detect(path: Path) -> str:
    """The name of the format that recognises the content of `path`."""
    if not path.exists():
        raise GxError(f"{path}: no such file or folder; check the path")
    for name, module in formats().items():
        if module.recognises(path):
            return name
    if first_bytes(path, 1) == b"\x80":
        raise pickled(path)
    known = ", ".join(f"{name} ({module.DESCRIPTION})" for name, module in formats().items())
    raise GxError(f"{path}: not in a format known here; known are: {known}")


def meaning(path: Path, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with what they stand for besides their names, so that a cached dataset is not used in its stead."""
    module = formats().get(name)
    return (
        options | module.meaning(path, options)
        if module is not None and hasattr(module, "meaning")
        else options
    )


def read(path: Path, name: str, options: dict[str, Any]) -> Source:
    """Open `path` with the named reader."""
    if name not in formats():
        raise GxError(f"no format is called {name!r}; known are: {', '.join(formats())}")
    reader = formats()[name].read
    accepted = list(inspect.signature(reader).parameters)[1:]
    for option in options:
        if option not in accepted:
            raise GxError(
                f"{path}: the format {name} has no option {option!r}; it has: {', '.join(accepted) or 'none'}"
            )
    source: Source = reader(path, **options)
    return source
