"""Environments that come with rules; each module is loaded on first use."""

from importlib import import_module
from types import ModuleType

_MODULES = ("atari", "highway", "making", "mujoco")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted(_MODULES)
