"""RLPD-GX: safe hybrid offline-to-online reinforcement learning.

`import rlpd_gx as gx` is quick: each name below is loaded from its module on first use.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "rlpd_gx.errors": ("GxError", "StopEpisode"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBPACKAGES = ("theory", "envs")

__all__ = ["__version__", *_MODULE_OF, *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name in _SUBPACKAGES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
