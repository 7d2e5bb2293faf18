"""A fingerprint of a rule: the same code with the same numbers gives the same text, all else another one.

Safe sets are stored with data and checkpoints; the fingerprint is what says whether they still hold. It reads
compiled code, so comments do not matter, and another version of Python may give another text: then safe sets are
computed anew, which costs time but never safety. The same holds for rules that use objects nobody can read.
"""

import ast
import hashlib
import sys
import types
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np


def fingerprint(*things: Any) -> str:
    """A short hexadecimal text for any mix of functions and plain data."""
    digest = hashlib.sha256()
    own = frozenset(str(getattr(t, "__module__", "")).partition(".")[0] for t in things if callable(t))
    for text in _texts(things, (), own | {"__main__"}):
        digest.update(text if isinstance(text, bytes) else f"<{text}>".encode())
    return digest.hexdigest()[:16]


def code_of(file: str) -> str:
    """What a module's source says, without comments and docstrings: for rules that run a lot of code."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                line
                for line in body
                if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ]
    return ast.dump(tree)


def _texts(thing: Any, above: tuple[int, ...], own: frozenset[str]) -> Iterator[str | bytes]:
    """What tells `thing` apart, piece by piece; `above` are the objects it stands in, `own` the rule's packages."""
    if isinstance(thing, (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))):
        yield f"{type(thing).__name__}:{thing!r}"
        return
    if id(thing) in above:
        yield f"again:{len(above) - above.index(id(thing))}"
        return
    above = (*above, id(thing))
    if isinstance(thing, types.ModuleType):
        yield f"module:{thing.__name__}"
    elif isinstance(thing, np.ndarray) or _is_tensor(thing):
        array = np.ascontiguousarray(thing.detach().cpu().numpy() if _is_tensor(thing) else thing)
        yield f"array:{array.dtype}:{array.shape}"
        yield from _texts(array.tolist(), above, own) if array.dtype.hasobject else (array.tobytes(),)
    elif isinstance(thing, np.generic):
        yield f"{thing.dtype}:{thing!r}"
    elif isinstance(thing, (list, tuple)):
        yield f"sequence:{len(thing)}"
        for item in thing:
            yield from _texts(item, above, own)
    elif isinstance(thing, (set, frozenset)):
        yield f"set:{len(thing)}"
        yield from sorted(repr(list(_texts(item, above, own))) for item in thing)
    elif isinstance(thing, Mapping):
        yield f"mapping:{len(thing)}"
        for key in sorted(thing, key=repr):
            yield from _texts((key, thing[key]), above, own)
    elif isinstance(thing, partial):
        yield from _texts(("partial", thing.func, thing.args, thing.keywords), above, own)
    elif isinstance(thing, types.MethodType):
        yield from _texts(("method", thing.__func__, thing.__self__), above, own)
    elif isinstance(thing, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        yield f"descriptor:{thing.__qualname__}"
    elif isinstance(thing, types.UnionType):  # an annotation such as float | None
        yield f"union:{thing!r}"
    elif isinstance(thing, types.CodeType):
        yield from _texts(
            ("code", thing.co_code, thing.co_names, thing.co_varnames, thing.co_consts), above, own
        )
    elif _is_library(thing, own):
        yield f"library:{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', repr(thing))}"
    elif isinstance(thing, types.FunctionType):
        yield from _function(thing, above, own)
    elif isinstance(thing, (staticmethod, classmethod)):
        yield from _texts(("static", thing.__func__), above, own)
    elif isinstance(thing, property):
        yield from _texts(("property", thing.fget), above, own)
    elif isinstance(thing, type):
        yield f"class:{thing.__qualname__}"
        for base in thing.__mro__:
            if not _is_library(base, own):
                yield from _texts({k: v for k, v in vars(base).items() if k not in _BOOKKEEPING}, above, own)
    elif isinstance(getattr(thing, "fingerprint", None), str):
        yield f"own:{thing.fingerprint}"
    else:
        yield from _object(thing, above, own)


def _function(
    function: types.FunctionType, above: tuple[int, ...], own: frozenset[str]
) -> Iterator[str | bytes]:
    """Code, defaults, closure, and the globals it names - also those behind a dot of the user's own modules."""
    code = function.__code__
    cells = [_content(cell) for cell in function.__closure__ or ()]
    yield from _texts((code, function.__defaults__, function.__kwdefaults__, cells), above, own)
    names = _names(code)
    for name in sorted(names & set(function.__globals__)):
        value = function.__globals__[name]
        yield name
        yield from _texts(value, above, own)
        if isinstance(value, types.ModuleType) and not _is_library(value, own):
            for attribute in sorted(names & set(vars(value))):
                yield from _texts((attribute, vars(value)[attribute]), above, own)


def _object(thing: Any, above: tuple[int, ...], own: frozenset[str]) -> Iterator[str | bytes]:
    """Any other object: its class, and what it takes to make it again."""
    kind = type(thing)
    yield f"object:{kind.__module__}.{kind.__qualname__}"
    yield from _texts(kind, above, own)
    try:
        parts = thing.__reduce_ex__(2)
    except (
        Exception
    ):  # of such an object nobody can tell whether it changes: no other process shares this text
        yield f"unknown:{_THIS_PROCESS}:{thing!r}"
        return
    made = parts if isinstance(parts, str) else [list(p) if isinstance(p, Iterator) else p for p in parts]
    yield from _texts(made, above, own)


_THIS_PROCESS = uuid.uuid4().hex
_BOOKKEEPING = {
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__firstlineno__",
    "__static_attributes__",
}


def _names(code: types.CodeType) -> set[str]:
    """Names used by a function and by the functions inside it."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet: a function that names itself
        return None


def _is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def _is_library(thing: Any, own: frozenset[str]) -> bool:
    """Whether something is not the rule's own code: built in, or installed with another package."""
    if isinstance(
        thing, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    ):
        return not hasattr(thing, "__self__") or isinstance(thing.__self__, (types.ModuleType, type))
    if isinstance(thing, np.ufunc):
        return True
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    if not isinstance(name, str) or not isinstance(thing, (types.ModuleType, types.FunctionType, type)):
        return False
    package = name.partition(".")[0]
    if package in own:
        return False
    if package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file
