"""A fingerprint of a rule: the same code with the same numbers gives the same text, all else another one.

Safe sets are stored with data and checkpoints; the fingerprint is what says whether they still hold.
"""

import hashlib
import inspect
import textwrap
import types
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np


def fingerprint(*things: Any) -> str:
    """A short hexadecimal text for any mix of functions and plain data."""
    digest = hashlib.sha256()
    _feed(digest, things, set())
    return digest.hexdigest()[:16]


def _feed(digest: Any, thing: Any, seen: set[int]) -> None:
    """Hash by content. Functions count with their source, defaults, closure and the globals they name."""

    def tag(text: str) -> None:
        digest.update(f"<{text}>".encode())

    if isinstance(thing, (bool, int, float, complex, str, bytes, type(None))):
        return tag(f"{type(thing).__name__}:{thing!r}")
    if id(thing) in seen:
        return tag("again")
    if isinstance(thing, np.ndarray) or hasattr(thing, "detach"):
        array = np.ascontiguousarray(thing.detach().cpu().numpy() if hasattr(thing, "detach") else thing)
        tag(f"array:{array.dtype}:{array.shape}")
        return digest.update(array.tobytes())
    if isinstance(thing, np.generic):
        return tag(f"{thing.dtype}:{thing!r}")
    if isinstance(thing, (list, tuple)):
        tag(f"sequence:{len(thing)}")
        for item in thing:
            _feed(digest, item, seen)
        return None
    if isinstance(thing, (set, frozenset)):
        return _feed(digest, sorted(thing, key=repr), seen)
    if isinstance(thing, Mapping):
        tag(f"mapping:{len(thing)}")
        for key in sorted(thing, key=repr):
            _feed(digest, (key, thing[key]), seen)
        return None
    if isinstance(thing, types.ModuleType):
        return tag(f"module:{thing.__name__}")
    seen = seen | {id(thing)}
    if isinstance(thing, partial):
        return _feed(digest, ("partial", thing.func, thing.args, thing.keywords), seen)
    if isinstance(thing, types.MethodType):
        return _feed(digest, ("method", thing.__func__, thing.__self__), seen)
    if isinstance(thing, types.FunctionType):
        return _feed_function(digest, thing, seen)
    if isinstance(thing, (type, types.BuiltinFunctionType, np.ufunc)):
        return tag(f"named:{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', thing)}")
    own = getattr(thing, "fingerprint", None)
    if isinstance(own, str):
        return tag(f"own:{own}")
    # Any other object: its class, the source of its call, and what it holds.
    tag(f"object:{type(thing).__module__}.{type(thing).__qualname__}")
    call = getattr(type(thing), "__call__", None)  # noqa: B004
    if isinstance(call, types.FunctionType):
        _feed_function(digest, call, seen)
    return _feed(digest, getattr(thing, "__dict__", {}), seen)


def _feed_function(digest: Any, function: types.FunctionType, seen: set[int]) -> None:
    code = function.__code__
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):  # typed into a shell: the compiled code is all there is
        source = code.co_code.hex()
    constants = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
    digest.update(source.encode())
    cells = [c.cell_contents for c in (function.__closure__ or ())]
    named = {n: function.__globals__[n] for n in _names(code) if n in function.__globals__}
    parts = (constants, function.__defaults__, function.__kwdefaults__, cells, named)
    _feed(digest, parts, seen)


def _names(code: types.CodeType) -> set[str]:
    """Global names used by a function and by the functions inside it."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))
