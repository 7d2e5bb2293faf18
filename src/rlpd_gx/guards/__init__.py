"""Guards: what `--guard` chooses. Each file says what one guard changes in execution, backup, data and losses."""

from importlib import import_module
from pathlib import Path

from rlpd_gx.errors import GxError
from rlpd_gx.guards.base import Guard
from rlpd_gx.loading import load

NAMES = tuple(
    sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in ("__init__", "base"))
)

__all__ = ["NAMES", "Guard", "find"]


def find(name: str) -> Guard:
    """The guard of this name: one of ours, or `module:name` of your own."""
    if ":" in name:
        guard = load(name, "guard")[0]
        if not isinstance(guard, Guard):
            raise GxError(f"--guard {name} is a {type(guard).__name__}; it must be an rlpd_gx.guards.Guard")
        return guard
    if name not in NAMES:
        raise GxError(
            f"there is no guard {name!r}; there are {', '.join(NAMES)}, or give module:name of your own"
        )
    return import_module(f"{__name__}.{name}").GUARD
