"""Turning `module:name`, as a person types it, into an object."""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from rlpd_gx.errors import GxError


def load(spec: str, what: str) -> tuple[Any, ModuleType]:
    """The object named by `module:name`, and its module. Modules in the current folder are found too."""
    module_name, colon, name = spec.partition(":")
    if not colon or not name:
        raise GxError(f"--{what} takes module:name, not {spec!r}; for example my_rules:speed_limit")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise GxError(f"--{what} {spec}: there is no module {error.name!r} here or installed") from None
    except Exception as error:
        raise GxError(
            f"--{what} {spec}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise GxError(f"--{what} {spec}: {module_name} has no {name!r}; it has {', '.join(public[:12])}")
    return getattr(module, name), module
