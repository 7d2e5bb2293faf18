"""File formats, by name. Each module here has the attributes of `Format`; `register` adds formats from elsewhere."""

import inspect
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from rlpd_gx import files, loading
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline.episode import Episode, Source, first_bytes
from rlpd_gx.trees import Json
from rlpd_gx.untrusted import pickled


class Format(Protocol):
    """How one kind of file is read: an object or a module with these attributes.

    `read(path, **options)` returns the episodes, or a `Source` with more facts about the file. What it raises
    for a bad file should be a `GxError` that names file, field and row.
    """

    name: str
    description: str
    read: Callable[..., Source | Iterable[Episode]]

    def detect(self, path: Path) -> bool:
        """Whether the content of a file or folder is of this format."""


_registered: dict[str, Format] = {}


def register(format: Format) -> Format:
    """Let `load` find a format by its name and by its `detect`, before the ones that come with the package."""
    _registered[format.name] = format
    return format


@cache
def _included() -> dict[str, Format]:
    modules: list[ModuleType] = [
        import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    ]
    return {module.name: module for module in modules}


def formats() -> dict[str, Format]:
    """All formats, by name."""
    return {**_registered, **_included(), **_registered}


def find(name: str) -> Format:
    """A format by its name, or by `module:name` of an object outside the package."""
    if ":" in name:
        found, _ = loading.load(name, "format")
        if not (hasattr(found, "name") and callable(getattr(found, "read", None))):
            raise GxError(
                f"--format {name}: is no format; give it `name`, `description`, `detect` and `read`"
            )
        outside: Format = found
        return outside
    if name not in formats():
        raise GxError(f"no format is called {name!r}; known are: {', '.join(formats())}, or module:name")
    return formats()[name]


def code_of(name: str) -> str | None:
    """The checksum of the file that defines a format from outside, whose code may change between two loads."""
    format = find(name)
    if _included().get(format.name) is format:
        return None
    source = inspect.getsourcefile(format if inspect.ismodule(format) else type(format))
    return files.sha256(Path(source)) if source else None


def detect(path: Path) -> str:
    """The name of the format that recognises the content of `path`."""
    if not path.exists():
        raise GxError(f"{path}: no such file or folder; check the path")
    for name, format in formats().items():
        if format.detect(path):
            return name
    if first_bytes(path, 1) == b"\x80":
        raise pickled(path)
    known = ", ".join(f"{name} ({format.description})" for name, format in formats().items())
    raise GxError(f"{path}: not in a format known here; known are: {known}")


def meaning(path: Path, name: str, options: Json) -> Json:
    """The options and what they refer to, so that a cached dataset is not used after that has changed."""
    refers: Callable[..., Json] | None = getattr(find(name), "meaning", None)
    return options | refers(path, options) if refers is not None else options


def read(path: Path, name: str, options: Json) -> Source:
    """Open `path` with the named reader."""
    reader = find(name).read
    accepted = list(inspect.signature(reader).parameters)[1:]
    for option in options:
        if option not in accepted:
            raise GxError(
                f"{path}: the format {name} has no option {option!r}; it has: {', '.join(accepted) or 'none'}"
            )
    content = reader(path, **options)
    return content if isinstance(content, Source) else Source(episodes=iter(content))
