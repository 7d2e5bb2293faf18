"""RLPD-GX: safe hybrid offline-to-online reinforcement learning.

`import rlpd_gx as gx` is quick: each name below is loaded from its module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers see
    from rlpd_gx import envs as envs
    from rlpd_gx import theory as theory
    from rlpd_gx.api import Run as Run
    from rlpd_gx.api import train as train
    from rlpd_gx.deploy.export import load_policy as load_policy
    from rlpd_gx.errors import GxError as GxError
    from rlpd_gx.errors import StopEpisode as StopEpisode
    from rlpd_gx.guardian import *  # noqa: F403
    from rlpd_gx.rules import *  # noqa: F403
    from rlpd_gx.safe_sets import *  # noqa: F403
    from rlpd_gx.types import Context as Context
    from rlpd_gx.types import Status as Status
    from rlpd_gx.types import Tally as Tally
    from rlpd_gx.types import Transition as Transition
    from rlpd_gx.types import Verdict as Verdict

__version__ = "0.1.0"

_HOME = {
    "rlpd_gx.errors": ("GxError", "StopEpisode"),
    "rlpd_gx.types": ("Context", "Status", "Tally", "Transition", "Verdict"),
    "rlpd_gx.safe_sets": (
        "Box",
        "Ellipsoid",
        "Intersection",
        "Mask",
        "Polytope",
        "PositiveSum",
        "ProductMask",
        "Union",
        "WeightedL1",
        "decode",
    ),
    "rlpd_gx.rules": (
        "Lookahead",
        "Place",
        "Rule",
        "Twin",
        "bounds_rule",
        "cbf_rule",
        "ellipsoid_rule",
        "halfspace_rule",
        "l1_rule",
        "margin_rule",
        "margins_rule",
        "mask_rule",
        "positive_sum_rule",
        "rule",
    ),
    "rlpd_gx.guardian": ("Audit", "GuardedEnv", "GuardedVectorEnv", "Guardian", "VerdictBatch"),
    "rlpd_gx.deploy.export": ("load_policy",),
    "rlpd_gx.api": ("Run", "train"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBPACKAGES = ("envs", "guards", "metrics", "safe_sets", "theory")

__all__ = ["__version__", *_MODULE_OF, *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name in _SUBPACKAGES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
