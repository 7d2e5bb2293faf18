"""Guards: what `--guard` chooses. Each file says what one guard changes in execution, backup, data and losses."""

import dataclasses
from importlib import import_module
from pathlib import Path

from rlpd_gx.errors import GxError
from rlpd_gx.guards.base import Guard
from rlpd_gx.loading import load

PENALTY = "+penalty"
NAMES = tuple(
    sorted(
        path.stem.replace("_", "-")
        for path in Path(__file__).parent.glob("*.py")
        if path.stem != "base" and not path.stem.startswith("_")
    )
)

__all__ = ["NAMES", "Guard", "find"]


def find(name: str) -> Guard:
    """The guard of this name: one of ours, or `module:name` of your own.

    `name=number` gives it its number; `name+penalty` (or `name+penalty=number`) adds a penalty for each correction.
    """
    if PENALTY in name:
        base, _, number = name.partition(PENALTY)
        from rlpd_gx.guards.penalty import Penalty

        added = find(f"penalty{number}")
        assert isinstance(added, Penalty)
        return added.beside(find(base), name)
    if ":" in name:
        guard = load(name, "guard")[0]
        if not isinstance(guard, Guard):
            raise GxError(f"--guard {name} is a {type(guard).__name__}; it must be an rlpd_gx.guards.Guard")
        return guard
    plain, equals, number = name.partition("=")
    if plain not in NAMES:
        raise GxError(
            f"there is no guard {plain!r}; there are {', '.join(NAMES)}, or give module:name of your own"
        )
    guard = import_module(f"{__name__}.{plain.replace('-', '_')}").GUARD
    return dataclasses.replace(guard, value=_number(guard, name, number)) if equals else guard


def _number(guard: Guard, name: str, text: str) -> float:
    if guard.value is None:
        raise GxError(f"--guard {name}: {guard.name} takes no number; give --guard {guard.name}")
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise GxError(f"--guard {name}: give a number of 0 or more, such as {guard.name}={guard.value:g}")
    return number
