"""Presets: each a few overrides of one config."""

from typing import Any

from rlpd_gx.errors import GxError
from rlpd_gx.loop.config import Config

_RLPD: dict[str, Any] = {  # no guard, half and half, the least of 2 of 10 critics, the actor on the mean
    "guard": "none", "backup": "none", "actor": "raw", "mix": "constant", "mix_high": 0.5, "sampler": "uniform",
}  # fmt: skip

_PAPER: dict[str, Any] = {  # as printed: least of all critics for target and actor, the entropy subtracted
    "backup": "renormalise", "actor": "raw", "execution": "project", "target_subset": 0, "actor_value": "min",
    "backup_entropy": "subtract", "mix": "sigmoid", "sampler": "stride",
}  # fmt: skip

_GUARDED: dict[str, Any] = {  # the guard as it is executed, in the backup and for the actor
    "backup": "project", "actor": "projected", "execution": "project", "backup_entropy": "none",
    "initial_temperature": 0.1,
}  # fmt: skip

_BEST: dict[str, Any] = _GUARDED | {  # what results/hopper.txt was made with; docs/training.md says what was tried
    "normalise": True, "sampler": "span", "interval_low": 3, "interval_high": 3, "mix": "constant", "mix_high": 0.8,
    "clone_weight": 0.03, "clone_until": 0.15,
}  # fmt: skip

_FULL: dict[str, Any] = _GUARDED | {"mix": "sigmoid", "sampler": "stride"}  # every part on, for the ablations

PRESETS: dict[str, dict[str, Any]] = {
    "rlpd-gx": _BEST,
    "paper": _PAPER,
    "rlpd": _RLPD,
    "sac": _RLPD | {"mix_high": 1.0, "ensemble_size": 2, "updates_per_step": 1, "layer_norm": False},
    "full": _FULL,
    "no-guardian": _FULL | {"guard": "none", "backup": "none", "actor": "raw"},
    "no-guarded-backup": _FULL | {"backup": "none"},
    "no-dts": _FULL | {"sampler": "uniform"},
    "no-dss": _FULL | {"mix": "constant"},
    "clone": {"objective": "clone", "backup": "none", "actor": "raw", "mix": "constant", "mix_high": 0.0},
}


def preset(name: str) -> Config:
    """The config of a preset."""
    if name not in PRESETS:
        raise GxError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return Config(preset=name).with_values(PRESETS[name], f"preset {name}")
