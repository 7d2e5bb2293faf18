"""One module for each table or figure of the paper, and for our own: its runs, its measurements, its claims."""

from importlib import import_module

from rlpd_gx.errors import GxError
from rlpd_gx.experiments.experiment import Experiment
from rlpd_gx.loading import did_you_mean

NAMES = (
    "ablation", "shield", "guards", "exploration", "atari100k", "atari100k-cells", "guard-scores", "dts-early",
    "dts-late", "dss", "backup", "constraints", "planning", "adroit", "pixels",
)  # fmt: skip


def find(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in NAMES:
        instead = did_you_mean(name, NAMES)
        raise GxError(f"there is no experiment {name!r}; there are {', '.join(NAMES)}, or all{instead}")
    return import_module(f"{__name__}.{name.replace('-', '_')}").EXPERIMENT
