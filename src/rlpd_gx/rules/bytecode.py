"""What a function's compiled code says, without line numbers and docstrings, and the names it reads."""

import dis
import inspect
import re
import types
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_")
_CLASS_BOOKKEEPING = ("__doc__", "__firstlineno__")


@dataclass(frozen=True)
class Read:
    """A variable that is read, and the attributes read from it at once: `a.b.c` is ("a", ("b", "c"))."""

    name: str
    path: tuple[str, ...]
    is_global: bool


@dataclass(frozen=True)
class Import:
    """An import statement inside a function: `name` is bound to the module, or to what lies at `path` in it."""

    name: str | None  # None: the module is used in a way that is not followed
    module: str
    level: int  # of a relative import
    path: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """A code object without what cannot change its result."""

    signature: tuple[int, ...]
    body: tuple[Any, ...]
    """Instructions with their constants and names, nested code objects among them."""
    reads: tuple[Read, ...]
    imports: tuple[Import, ...]


@dataclass
class _Step:
    """One instruction; two variables read at once are two steps."""

    operation: str
    value: Any
    offset: int
    is_constant: bool = False
    is_jump: bool = False


@lru_cache(maxsize=1024)
def analyse(code: types.CodeType) -> Code:
    """Read a code object."""
    steps = _without_class_bookkeeping(list(_steps(code)))
    reads, imports = tuple(_reads(code, steps)), tuple(_imports(steps))
    offsets = [step.offset for step in steps]

    def place(offset: int) -> int:  # offsets depend on how large the constants' numbers are; places do not
        return bisect_left(offsets, offset)

    body = [(s.operation, place(s.value) if s.is_jump else s.value) for s in steps]
    handlers = [
        tuple(place(o) for o in (entry.start, entry.end, entry.target))
        for entry in dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    ]
    signature = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
    return Code(signature, (*body, ("handlers", tuple(handlers)), code.co_varnames), reads, imports)


def inner(code: types.CodeType) -> list[types.CodeType]:
    """The functions and classes written inside a function."""
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _steps(code: types.CodeType) -> Iterator[_Step]:
    for found in dis.get_instructions(code):
        if found.opname in ("NOP", "CACHE", "EXTENDED_ARG"):
            continue
        names = found.argval
        if isinstance(names, tuple) and "_FAST_" in found.opname:  # such as LOAD_FAST_LOAD_FAST
            kinds = re.findall("(?:LOAD|STORE)_FAST", found.opname)
            for kind, name in zip(kinds, names, strict=True):
                yield _Step(kind, name, found.offset)
            continue
        is_jump = found.opcode in dis.hasjrel or found.opcode in dis.hasjabs
        yield _Step(found.opname, found.argval, found.offset, found.opcode in dis.hasconst, is_jump)


def _without_class_bookkeeping(steps: list[_Step]) -> list[_Step]:
    """Without the docstring and the line number of a class written inside a function."""
    stores = {
        i
        for i, step in enumerate(steps)
        if step.operation == "STORE_NAME" and step.value in _CLASS_BOOKKEEPING and steps[i - 1].is_constant
    }
    return [step for i, step in enumerate(steps) if i not in stores and i + 1 not in stores]


def _reads(code: types.CodeType, steps: list[_Step]) -> Iterator[Read]:
    cells = {*code.co_cellvars, *code.co_freevars}
    for i, step in enumerate(steps):
        if not step.operation.startswith(_READS) or step.operation == "LOAD_FAST_AND_CLEAR":
            continue
        if step.operation.startswith("LOAD_FAST") and step.value in cells:
            continue  # handed on to a function inside, which is read by itself
        path = []
        for after in steps[i + 1 :]:
            if after.operation not in _ATTRIBUTES:
                break
            path.append(after.value)
        yield Read(step.value, tuple(path), step.operation == "LOAD_GLOBAL")


def _imports(steps: list[_Step]) -> Iterator[Import]:
    for i, step in enumerate(steps):
        if step.operation != "IMPORT_NAME":
            continue
        level, members = steps[i - 2].value, steps[i - 1].value
        bound = False
        path: tuple[str, ...] = ()
        for after in steps[i + 1 :]:
            if after.operation == "IMPORT_FROM":
                path = (after.value,) if members else (*path, after.value)
            elif after.operation.startswith("STORE_") and isinstance(after.value, str):
                whole = step.value if members or level else step.value.partition(".")[0]
                yield Import(after.value, whole, level, path)
                if not members and step.value != whole:  # `import a.b` also makes sure that a has b
                    yield Import("", step.value, level, ())
                bound = True
                if not members:
                    break
            elif after.operation not in ("SWAP", "ROT_TWO") and (after.operation != "POP_TOP" or members):
                break
        if not bound:
            yield Import(None, step.value, level, ())
