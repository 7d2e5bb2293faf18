"""Turning `module:name`, as a person types it, into an object."""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from rlpd_gx.errors import GxError

GIVEN = "given_to_rlpd_gx"  # modules whose names begin with it hold objects passed to gx.train


def load(spec: str, what: str) -> tuple[Any, ModuleType]:
    """The object named by `module:name` after the flag --`what`, and its module."""
    module, name = load_module(spec, what)
    if not hasattr(module, name):
        public = [
            n for n, v in vars(module).items() if not n.startswith("_") and not isinstance(v, ModuleType)
        ]
        instead = did_you_mean(name, public) or f"; it has {', '.join(public[:12])}"
        raise GxError(f"--{what} {spec}: {module.__name__} has no {name!r}{instead}")
    return getattr(module, name), module


def load_module(spec: str, what: str) -> tuple[ModuleType, str]:
    """The module and the name in `module:name`. Modules in the current folder are found too."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise GxError(f"--{what} takes module:name, not {spec!r}; for example my_rules:speed_limit")
    if module_name.endswith(".py") or os.sep in module_name:
        module_name = module_name.removesuffix(".py").removeprefix(f".{os.sep}").replace(os.sep, ".")
        raise GxError(f"--{what} {spec}: write it as a module, {module_name}:{name}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name), name
    except ModuleNotFoundError as error:
        if module_name.startswith(GIVEN):
            raise GxError(
                f"this run was started from Python with its own {what}, which no other process can import; open it in "
                "Python with run = gx.Run(folder, env=..., rules=...) and use run.resume(), run.fork(), run.evaluate() "
                f"or run.policy, or train with {what}='module:name' if other commands shall open the run"
            ) from None
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise GxError(
                f"--{what} {spec}: {module_name} imports {error.name}, which is not installed"
            ) from None
        here = [file[:-3] for file in os.listdir() if file.endswith(".py")]
        raise GxError(
            f"--{what} {spec}: there is no module {error.name!r} in this folder or installed"
            f"{did_you_mean(module_name, here)}"
        ) from None
    except Exception as error:
        raise GxError(f"--{what} {spec}: importing {module_name} {raised(error)}") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion, if anything known is similar."""
    from difflib import get_close_matches

    similar = get_close_matches(word, list(known), 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def raised(error: BaseException) -> str:
    """`raised KeyError: 'x' (my_env.py, line 12)`: what external code raised, and where in it."""
    frames = own_frames(error) or traceback.extract_tb(error.__traceback__)
    where = ""
    if frames and not isinstance(error, SyntaxError):
        where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
    return f"raised {type(error).__name__}: {error}{where}"


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines that led to an error and are neither ours nor of an installed package."""
    others = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    ours = os.path.dirname(__file__)
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((ours, "<frozen", *others))]
