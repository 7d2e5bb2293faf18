"""A fingerprint of a rule: the same code with the same numbers gives the same text, all else another one.

Safe sets are stored with data and checkpoints; the fingerprint says whether they still hold. It reads compiled code
(`bytecode`), so comments, docstrings and line numbers do not matter. Another version of Python may give another text:
then safe sets are computed again, which costs time but never safety.

What counts:
- functions: their code, defaults, closure and attributes, and every name they read: globals, names behind dots
  (`limits.LIMIT`, `package.limits.LIMIT`), names imported inside the function, and what those use in turn. A module
  that is used in any other way (passed on, given another name, read with getattr) counts with everything in it.
- classes with their bases, objects with their class and all attributes, arrays with their bytes, dicts in their order.
- decorated, cached and partial functions: what they wrap.
- installed packages, the standard library and rlpd-gx itself, apart from the rules in `rlpd_gx.envs`: by the name of
  what is used, not by its code; plain data in an installed package by value. What a package makes when it is called
  (a wrapper, an interpolator) counts by its contents.

What nobody can read (an open file, a compiled module of one's own, `eval`, `open` or `importlib` called by the rule,
the process environment) gets a text that no other process shares, so that nothing stored is ever taken to match;
`unreadable` names such things.
"""

import ast
import builtins
import functools
import hashlib
import importlib
import os
import sys
import threading
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.rules.bytecode import Import, analyse, inner
from rlpd_gx.rules.origins import MISSING, address, at, attribute, cell_content, homes, is_installed


def fingerprint(*things: Any) -> str:
    """A short hexadecimal text for any mix of functions and plain data."""
    return _read(things).digest.hexdigest()[:16]


def unreadable(*things: Any) -> list[str]:
    """What their fingerprint cannot cover: then it differs from process to process."""
    return list(dict.fromkeys(_read(things).unreadable))


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


_THIS_PROCESS = uuid.uuid4().hex
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
_BOOKKEEPING = {
    "__abstractmethods__",
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__orig_bases__",
    "__parameters__",
    "__slotnames__",
    "__static_attributes__",
    "__type_params__",
    "__weakref__",
    "_abc_impl",
    "_value2member_map_",
}
_ELSEWHERE = (  # what brings in things that are not in the code
    *("builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__", "builtins.globals"),
    *(
        "builtins.open",
        "io.open",
        "_io.open",
        "builtins.input",
        "os.environ",
        "os.environb",
        "os.getenv",
        "os.open",
    ),
    *("sys.modules", "sys.argv", "importlib", "_frozen_importlib", "ctypes", "runpy", "pkgutil"),
    *("numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap"),
    *("json.load", "pickle.load", "_pickle.load", "marshal.load", "tomllib.load", "yaml.load"),
    *("yaml.safe_load", "gzip", "bz2", "lzma", "zipfile", "tarfile", "shelve", "linecache"),
    *("torch.load", "torch.serialization.load", "joblib.load", "joblib.numpy_pickle.load", "codecs.open"),
    *("xml.etree.ElementTree.parse", "PIL.Image.open", "cv2.imread", "imageio", "os.read", "os.popen"),
    *("os.stat", "configparser", "h5py", "zarr", "scipy.io"),
    *("safetensors", "sqlite3", "socket", "subprocess", "urllib.request", "requests", "httpx"),
)
_OUR_RULES = ("rlpd_gx.envs.", "rlpd_gx.experiments.")  # the rest of this package is a library to rules
_READERS = {
    "read_text": "()",
    "read_bytes": "()",
    "__globals__": "",
    "_getframe": "()",
}  # of a path, of other code


class _Reader:
    """Puts what tells things apart into a digest, in an order that is the same in every process."""

    def __init__(self, own: frozenset[str]) -> None:
        self.digest = hashlib.sha256()
        self.unreadable: list[str] = []
        self._own = own  # packages that count as the rule's own code, wherever they are installed
        self._seen: dict[int, tuple[int, Any]] = {}  # functions, classes, modules, objects: each is read once
        self._above: list[int] = []  # containers being read
        self._where: list[str] = []

    def put(self, *texts: str | bytes) -> None:
        for text in texts:
            content = text if isinstance(text, bytes) else text.encode()
            self.digest.update(b"%d:" % len(content))
            self.digest.update(content)

    def read(self, thing: Any, name: str = "") -> None:
        """Anything; `name` is how a person would find it."""
        if type(thing) in _PLAIN:
            self.put(type(thing).__name__, repr(thing))
            return
        self._where += [name] if name else []
        if (part := self._part(thing)) is not None:
            self._once(thing, part)
        elif id(thing) in self._above:
            self.put("again", str(len(self._above) - self._above.index(id(thing))))
        else:
            self._above.append(id(thing))
            self._container(thing)
            self._above.pop()
        if name:
            self._where.pop()

    def read_all(self, things: Iterable[Any]) -> None:
        for thing in things:
            self.read(thing)

    def read_named(self, things: Mapping[str, Any], leave_out: Iterable[str] = ()) -> None:
        """A namespace: in the order of its names."""
        for name in sorted(set(things) - set(leave_out)):
            self.put(name)
            self.read(things[name], name)

    def mark(self, what: str) -> None:
        """What cannot be read."""
        where = ".".join(self._where)
        self.unreadable.append(f"{what} in {where}" if where else what)
        self.put("unreadable", _THIS_PROCESS, str(os.getpid()))  # a forked process is another one

    def _once(self, thing: Any, part: Callable[[Any], None]) -> None:
        if id(thing) in self._seen:
            self.put("seen", str(self._seen[id(thing)][0]))
            return
        self._seen[id(thing)] = (len(self._seen), thing)
        part(thing)

    def _container(self, thing: Any) -> None:
        """Data without an identity of its own: two equal lists count as one list used twice."""
        if type(thing) in (list, tuple):
            self.put("sequence", str(len(thing)))
            self.read_all(thing)
        elif type(thing) in (dict, types.MappingProxyType):
            self.put("mapping", str(len(thing)))
            for key, value in thing.items():
                self.read(key)
                self.read(value, f"[{key!r}]" if type(key) in _PLAIN else "")
        elif type(thing) in (set, frozenset):
            self.put("set", *sorted(self._apart(item) for item in thing))
        elif type(thing) is types.CodeType:
            self._code(thing)
        elif isinstance(thing, np.generic):
            self.put("number", str(thing.dtype), thing.tobytes())
        elif _is_tensor(thing):
            self._tensor(thing)
        else:
            self._array(thing)

    def _apart(self, thing: Any) -> bytes:
        """The digest of one thing by itself, for what has no order."""
        reader = _Reader(self._own)
        reader._where, reader._above, reader._seen = self._where, self._above, dict(self._seen)
        reader.read(thing)
        self.unreadable += reader.unreadable
        return reader.digest.digest()

    def _array(self, array: Any) -> None:
        self.put("array", str(array.dtype), str(array.shape))
        if array.dtype.hasobject:
            self.read(array.tolist())
        else:
            self.put(array.tobytes())

    def _tensor(self, tensor: Any) -> None:
        self.put("tensor", str(tensor.dtype), str(tuple(tensor.shape)))
        try:
            self.read(tensor.detach().cpu().contiguous().view(sys.modules["torch"].uint8).numpy())
        except Exception:  # a single number, or a layout without plain memory
            self.read(tensor.detach().cpu().tolist())

    def _part(self, thing: Any) -> Callable[[Any], None] | None:
        """How to read what has an identity; None for plain containers."""
        kind = type(thing)
        if kind in (list, tuple, dict, set, frozenset, types.MappingProxyType, types.CodeType, np.ndarray):
            return None
        if _is_tensor(thing) or (isinstance(thing, np.generic) and not isinstance(thing, np.object_)):
            return None
        if isinstance(thing, types.ModuleType):
            return self._module
        if thing is os.environ or (self._is_library_name(thing)):
            return self._by_name
        if isinstance(thing, types.FunctionType):
            return self._function
        if isinstance(thing, type):
            return self._class
        if kind in _SIMPLE:
            return self._simple
        return self._object

    def _by_name(self, thing: Any) -> None:
        """Something that an installed package, or Python itself, holds under its name."""
        module, name = ("os", "environ") if thing is os.environ else address(thing)
        self._named(module, name)

    def _named(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        self.put("library", full)
        reads = name.startswith("read_") and module.partition(".")[0] != "rlpd_gx"  # as pandas and polars do
        if reads or any(full == hidden or full.startswith(f"{hidden}.") for hidden in _ELSEWHERE):
            self.mark(full.removeprefix("builtins."))

    def _is_library_name(self, thing: Any) -> bool:
        module, name = address(thing)
        return bool(name) and self._is_library(module) and at(sys.modules[module], name) is thing

    def _is_library(self, name: str) -> bool:
        """Whether a module is not the rule's own code: built in, or installed with another package."""
        package = name.partition(".")[0]
        if package == "rlpd_gx":  # the same text whether this package is installed or not
            return not f"{name}.".startswith(_OUR_RULES)
        if package in self._own or name not in sys.modules:
            return False
        return is_installed(sys.modules[name])

    def _module(self, module: types.ModuleType) -> None:
        """A module used as a whole: everything in it may matter."""
        self.put("module", module.__name__)
        if self._is_library(module.__name__):
            self._named(module.__name__, "")
        elif module.__name__.partition(".")[0] == "rlpd_gx":  # its source says it all, and quickly
            self.put(code_of(str(module.__file__)))
        elif isinstance(vars(module).get("__loader__"), ExtensionFileLoader):
            self.mark(f"the compiled module {module.__name__}")
        else:
            self.read_named({n: v for n, v in vars(module).items() if not n.startswith("__")})

    def _function(self, function: types.FunctionType) -> None:
        """Code, defaults, attributes, and what its names stand for."""
        if hasattr(function, "registry") and hasattr(function, "dispatch"):  # functools.singledispatch
            self.put("dispatch")
            registry = {f"{address(kind)}": part for kind, part in function.registry.items()}
            self.read_named(registry)
            return
        self.put("function")
        self.read(function.__code__)
        self.read_all((function.__defaults__, function.__kwdefaults__))
        self.read_named(vars(function), ("__doc__",))
        names, cells = function.__code__.co_freevars, [cell_content(c) for c in function.__closure__ or ()]
        if self._is_library(address(function)[0]):  # made by a package: its own globals count by their names
            self.read_all(cells)
        else:
            held = {name: [cell] for name, cell in zip(names, cells, strict=True)}
            self._names(function.__code__, function.__globals__, held)

    def _code(self, code: types.CodeType) -> None:
        said = analyse(code)
        self.put("code", str(said.signature))
        self.read(said.body)
        for name in sorted(_READERS.keys() & set(code.co_names)):
            self.mark(f"{name}{_READERS[name]}")

    def _names(self, code: types.CodeType, space: dict[str, Any], cells: dict[str, list[Any]]) -> None:
        """What the variables of a function, and of those written inside it, stand for.

        `cells`: what those of the functions around it may stand for.
        """
        said = analyse(code)
        bound: dict[str, list[Any]] = {}
        for found in said.imports:
            module = self._imported(found, space)
            if found.name is None:
                self.read(module, found.module)
            elif found.name:
                value, rest = self._follow(module, found.path)
                bound.setdefault(found.name, []).append(MISSING if rest else value)
        for variable in sorted(set(said.reads), key=lambda r: (r.name, r.path, r.is_global)):
            values = bound.get(variable.name, [])
            if not values and variable.name in cells:
                values = cells[variable.name]
            elif (
                not values
                and variable.name in space
                and (variable.is_global or not _is_local(code, variable.name))
            ):
                values = [space[variable.name]]
            elif not values and variable.name in vars(builtins) and variable.is_global:
                values = [vars(builtins)[variable.name]]
            elif not values and variable.is_global:
                self.mark(f"the name {variable.name}, which is not defined yet,")
            for value in values:
                self.put("name", variable.name, *variable.path)
                self._chain(value, variable.name, variable.path)
        for part in inner(code):
            self._names(part, space, cells | bound)

    def _chain(self, value: Any, name: str, path: tuple[str, ...]) -> None:
        """What lies behind the dots: through modules step by step, other things are read whole."""
        while path and isinstance(value, types.ModuleType):
            library = self._is_library(value.__name__)
            if library and f"{value.__name__}.{path[0]}" in _ELSEWHERE:
                self._named(value.__name__, path[0])
                return
            held = attribute(value, path[0])
            if "__getattr__" in vars(value) and path[0] not in vars(value):
                self.read(vars(value)["__getattr__"], f"{name}.__getattr__")
            if library and not isinstance(held, types.ModuleType) and not self._counts(held):
                self._named(value.__name__, path[0])
                return
            value, name, path = held, f"{name}.{path[0]}", path[1:]
        if value is MISSING:
            self.put("missing", name)
        else:
            self.read(value, name)

    def _counts(self, held: Any) -> bool:
        """Whether what an installed package holds counts by more than its name: data, and the rule's own code."""
        if isinstance(held, (type, types.FunctionType, types.MethodType, functools.partial)):
            return not self._is_library(address(held)[0])
        return _is_data(held)

    def _imported(self, found: Import, space: dict[str, Any]) -> Any:
        name = "." * found.level + found.module
        try:
            return importlib.import_module(name, space.get("__package__") or None)
        except Exception:  # the function will find that out by itself
            return MISSING

    def _follow(self, value: Any, path: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        while path and isinstance(value, types.ModuleType):
            value, path = attribute(value, path[0]), path[1:]
        return value, path

    def _class(self, kind: type) -> None:
        self.put("class", kind.__qualname__)
        if kind.__module__ == "builtins":  # such as type(None), which has no public name
            return
        if not kind.__flags__ & 1 << 9:  # made by compiled code, not by a class statement
            self.mark(f"the compiled class {kind.__qualname__}")
        if type(kind) is not type:
            self.read(type(kind))
        for base in kind.__mro__:
            if base is not kind and self._is_library_name(base):
                self._by_name(base)
            else:
                self.read_named(vars(base), _BOOKKEEPING)

    def _simple(self, thing: Any) -> None:
        """Wrappers whose parts are known."""
        self.put(type(thing).__name__)
        self.read_all(_SIMPLE[type(thing)](thing))

    def _object(self, thing: Any) -> None:
        """Any other object: its class, and what it holds."""
        kind = type(thing)
        if kind in _LOCKS:  # holds nothing that a rule could depend on
            self.put("lock")
            return
        if isinstance(getattr(thing, "fingerprint", None), str) and _is_ours(kind):
            self.put("fingerprint", thing.fingerprint)
            return
        if kind.__module__ == "typing" or kind in (types.UnionType, types.GenericAlias):  # an annotation
            self.put("annotation", repr(thing))
            return
        self.put("object", kind.__module__, kind.__qualname__)
        if kind.__module__.startswith("numba.") and hasattr(thing, "py_func"):
            self.read(thing.py_func)
            return
        own = kind.__module__ != "builtins" and not self._is_library_name(kind)
        if own:
            self.read(kind)
            self.read_named(_state(thing))
            for base, content in _BASES.items():
                if isinstance(thing, base):
                    self.read(content(thing))
        bases = [
            b for b in kind.__mro__ if self._is_library_name(b) and b not in _NO_STATE and b not in _BASES
        ]
        if bases or not own:
            self._reduced(thing)

    def _reduced(self, thing: Any) -> None:
        """An object of an installed class: what it takes to make it again."""
        try:
            parts = thing.__reduce_ex__(2)
        except Exception:
            parts = ""
        if isinstance(parts, str):  # a name, but not one of an installed package
            home = sys.modules.get(type(thing).__module__.partition(".")[0])
            if parts and getattr(home, parts, MISSING) is thing:
                self._named(str(getattr(home, "__name__", "")), parts)
            else:
                self.mark(f"an object of type {type(thing).__module__}.{type(thing).__qualname__}")
            return
        for part in parts:
            if type(part) is dict:  # attributes
                self.read_named(_lasting(type(thing), part), ("__doc__",))
            else:
                self.read(list(part) if isinstance(part, Iterator) else part)


_NO_STATE = (object, typing.Generic, typing.Protocol)
_BASES: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    list: lambda thing: list(list.__iter__(thing)),
    tuple: lambda thing: list(tuple.__iter__(thing)),
    set: lambda thing: set(set.__iter__(thing)),
    frozenset: lambda thing: frozenset(frozenset.__iter__(thing)),
    dict: lambda thing: dict(dict.items(thing)),
    np.ndarray: lambda thing: thing.view(np.ndarray),
}
_SIMPLE: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    functools.partial: lambda t: (t.func, t.args, t.keywords, vars(t)),
    type(functools.lru_cache(len)): lambda t: (t.__wrapped__,),
    functools.cached_property: lambda t: (t.func,),
    property: lambda t: (t.fget, t.fset),
    staticmethod: lambda t: (t.__func__,),
    classmethod: lambda t: (t.__func__,),
    types.MethodType: lambda t: (t.__func__, t.__self__),
    types.BuiltinFunctionType: lambda t: (t.__name__, t.__self__),
    types.MethodWrapperType: lambda t: (t.__name__, t.__self__),
    types.GetSetDescriptorType: lambda t: (t.__qualname__,),
    types.MemberDescriptorType: lambda t: (t.__qualname__,),
    types.MethodDescriptorType: lambda t: (t.__qualname__,),
    types.WrapperDescriptorType: lambda t: (t.__qualname__,),
    types.ClassMethodDescriptorType: lambda t: (t.__qualname__,),
}


def _read(things: tuple[Any, ...]) -> _Reader:
    own = {"__main__"}
    for thing in things:
        own |= {name.partition(".")[0] for name in homes(thing, [])}
    reader = _Reader(frozenset(own - {"builtins", "functools"}))
    reader.read_all(things)
    return reader


def _is_ours(kind: type) -> bool:
    """Whether a `fingerprint` is what this package means by it: a subclass of one of its classes has it."""
    return any(base.__module__.startswith("rlpd_gx.") for base in kind.__mro__)


def _is_data(thing: Any) -> bool:
    if type(thing) in (list, tuple, set, frozenset):
        return all(map(_is_data, thing))
    if type(thing) is dict:
        return all(map(_is_data, thing)) and all(map(_is_data, thing.values()))
    return type(thing) in _PLAIN or type(thing) is np.ndarray or isinstance(thing, np.generic)


def _state(thing: Any) -> dict[str, Any]:
    """The attributes of an object."""
    kind, found = type(thing), dict(getattr(thing, "__dict__", {}))
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            hidden = f"_{base.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name
            if name not in ("__dict__", "__weakref__") and hasattr(thing, hidden):
                found[hidden] = getattr(thing, hidden)
    return _lasting(kind, found)


def _lasting(kind: type, attributes: dict[str, Any]) -> dict[str, Any]:
    """Without results that an object only remembers."""
    return {
        n: v for n, v in attributes.items() if type(getattr(kind, n, None)) is not functools.cached_property
    }


def _is_local(code: types.CodeType, name: str) -> bool:
    return name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars


def _is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)
