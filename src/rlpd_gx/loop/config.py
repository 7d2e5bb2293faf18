"""All that can be chosen about a run: three sections, each the words of one part, and presets of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rlpd_gx.errors import GxError
from rlpd_gx.learner.config import LearnerConfig


@dataclass(frozen=True)
class RunConfig:
    """The task, the guard, and how long."""

    env: str = ""
    """A Gymnasium environment such as Hopper-v5, or Atari/Seaquest-ram."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Options of the environment, as JSON."""
    rules: str = ""
    """module:name of a rule, or of a list of rules that must all hold."""
    guard: Literal["guardian", "none"] = "guardian"
    """Enforce the rules, or only watch what they would have blocked."""
    rules_state: str = ""
    """module:callable (env, observation, info) -> what rules read (if not given: `state` of the rules' module)."""
    offline: str = ""
    """Offline data: a file or folder in any known format."""
    offline_where: tuple[str, ...] = ()
    """Keep some offline steps, such as "behaviour_iteration <= 20"."""
    offline_state: str = ""
    """module:callable from stored observations [k, ...] to what rules read."""
    offline_safe_sets: Literal["error", "assume-all", "drop"] = "error"
    """For offline rows whose safe set cannot be known: stop, take all actions as allowed, or leave them out."""
    steps: int = 20_000
    """Online environment steps, over all lanes together."""
    lanes: int = 1
    """Environments stepped side by side."""
    random_steps: int = 0
    """Steps at the start with uniformly random proposals (under the guard)."""
    warm_start_updates: int = 0
    """Updates from offline data alone before the first step."""
    complete_share: float = 0.1
    """Share of states whose whole safe set is asked for, under rules that otherwise test only what they must."""
    evaluate_every: int = 2_500
    """Steps between evaluations; 0 evaluates only at the end."""
    evaluation_episodes: int = 5
    """Episodes of each evaluation; the last one has twice as many."""
    evaluation_policy: Literal["mode", "sample"] = "mode"
    """How the policy acts in evaluations."""
    checkpoint_every: int = 2_500
    """Steps between checkpoints."""
    log_every: int = 250
    """Steps between rows of metrics."""
    seed: int = 0
    """Of everything random in the run."""
    device: str = "auto"
    """cpu, cuda, mps, or auto: the best there is."""
    threads: int = 1
    """Threads of torch; equal threads give equal numbers. More help only on a machine with idle cores."""
    tensorboard: bool = True
    """Write TensorBoard files too, where that package is installed."""

    def __post_init__(self) -> None:
        _positive(self, "lanes", "threads", "evaluation_episodes", "checkpoint_every", "log_every")
        if not 0 <= self.complete_share <= 1:
            raise GxError(f"complete_share is a share, not {self.complete_share}")


@dataclass(frozen=True)
class DataConfig:
    """Batches: how much, from where, how far apart in time."""

    batch_size: int = 256
    """Transitions in a minibatch."""
    updates_per_step: int = 20
    """Critic updates for each environment step (UTD)."""
    update_every: int = 1
    """Environment steps between blocks of updates."""
    learning_starts: int = 1_000
    """Online steps before the first update, where there is no offline data."""
    capacity: int = 1_000_000
    """Online rows kept."""
    gamma: float = 0.99
    """Discount of one step."""
    mix: Literal["sigmoid", "constant", "abrupt", "two-stage"] = "constant"
    """How the share of online rows goes: DSS (sigmoid) or a comparator."""
    mix_low: float = 0.05
    """Least share of online rows (sigmoid, abrupt)."""
    mix_high: float = 0.5
    """Largest share of online rows; the share, where it is constant."""
    mix_steepness: float = 10.0
    """k of DSS, in units of 1/T."""
    sampler: Literal["uniform", "stride", "span", "fixed"] = "uniform"
    """Independent transitions, DTS as stride, DTS as span (multi-step), or contiguous windows."""
    window: int = 16
    """Transitions in a window (stride, fixed)."""
    interval_low: int = 1
    """Delta of DTS at the start."""
    interval_high: int = 8
    """Delta of DTS at the end."""
    interval_exponent: float = 1.0
    """beta of DTS."""
    span_correction: Literal["none", "cut", "tree-backup"] = "none"
    """Multi-step targets as they are, cut where the policy would hardly act so, or tree-backup."""
    span_threshold: float = 0.1
    """Probability below which `cut` ends a span."""

    def __post_init__(self) -> None:
        _positive(self, "batch_size", "updates_per_step", "update_every", "capacity", "window")
        if not 0 < self.gamma <= 1:
            raise GxError(f"gamma must lie in (0, 1], got {self.gamma}")


@dataclass(frozen=True)
class Config:
    """A run. Field names are unique over the sections, so a flag needs no section."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    preset: str = "rlpd-gx"

    def with_values(self, values: Mapping[str, Any], source: str) -> Config:
        """Some fields changed, by their names; `source` is named in errors."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name not in FIELDS:
                raise GxError(f"{source}: there is no setting {name!r}; `rlpd-gx train --help` lists them")
            sections.setdefault(FIELDS[name].section, {})[name] = FIELDS[name].read(value, source)
        return replace(self, **{s: replace(getattr(self, s), **v) for s, v in sections.items()})

    def flat(self) -> dict[str, Any]:
        """All settings by name, JSON-able."""
        values = {name: getattr(getattr(self, f.section), name) for name, f in FIELDS.items()}
        return {"preset": self.preset} | {
            n: list(v) if isinstance(v, tuple) else v for n, v in values.items()
        }

    @classmethod
    def from_flat(cls, values: Mapping[str, Any], source: str) -> Config:
        """The inverse of `flat`."""
        rest = dict(values)
        preset = rest.pop("preset", "rlpd-gx")
        return replace(cls(), preset=preset).with_values(rest, source)


@dataclass(frozen=True)
class Field:
    """One setting: where it belongs, its type, default and sentence."""

    name: str
    section: str
    type: Any
    default: Any
    help: str

    def read(self, value: Any, source: str) -> Any:
        """A value from a flag or a file, checked."""
        kind = get_origin(self.type) or self.type
        try:
            if kind is Literal:
                if value not in get_args(self.type):
                    raise ValueError(f"choose {', '.join(map(str, get_args(self.type)))}")
                return value
            if kind is tuple:
                items = value.split(",") if isinstance(value, str) else [value] if _single(value) else value
                return tuple(get_args(self.type)[0](item) for item in items)
            if kind is dict:
                value = json.loads(value) if isinstance(value, str) else value
                if not isinstance(value, dict):
                    raise ValueError("give a JSON object")
                return value
            if kind is bool and not isinstance(value, bool):
                raise ValueError("give true or false")
            if kind is int and float(value) != int(value):
                raise ValueError("give a whole number")
            return kind(value)
        except (TypeError, ValueError) as error:
            raise GxError(f"{source}: {self.name} cannot be {value!r}: {error}") from None


def read_file(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Preset (if named) and settings of a YAML or TOML file; sections are allowed, not needed."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            import tomllib

            content = tomllib.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            import yaml

            content = yaml.safe_load(text) or {}
        elif path.suffix == ".json":
            content = json.loads(text)
        else:
            raise GxError(f"{path}: a config is a .yaml, .toml or .json file")
    except OSError as error:
        raise GxError(f"{path}: cannot be read: {error.strerror}") from None
    except GxError:
        raise
    except Exception as error:  # each parser has its own
        first_line = str(error).splitlines()[0]
        raise GxError(f"{path}: cannot be read as {path.suffix[1:].upper()}: {first_line}") from None
    if not isinstance(content, dict):
        raise GxError(f"{path}: must hold settings by name")
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name in ("run", "data", "learner") and isinstance(value, dict):
            values |= value
        else:
            values[name] = value
    preset = values.pop("preset", None)
    return preset, values


def _fields() -> dict[str, Field]:
    found: dict[str, Field] = {}
    for section, kind in (("run", RunConfig), ("data", DataConfig), ("learner", LearnerConfig)):
        hints, help_texts, defaults = get_type_hints(kind), _sentences(kind), kind()
        for f in fields(kind):
            found[f.name] = Field(
                f.name, section, hints[f.name], getattr(defaults, f.name), help_texts[f.name]
            )
    return found


def _sentences(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    texts = {}
    for here, below in pairwise(body):
        if isinstance(here, ast.AnnAssign) and isinstance(below, ast.Expr):
            texts[here.target.id] = " ".join(below.value.value.split())  # type: ignore
    return texts


def _single(value: Any) -> bool:
    return not isinstance(value, list | tuple)


def _positive(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= 1:
            raise GxError(f"{name} must be 1 or more, got {getattr(config, name)}")


FIELDS = _fields()
assert len(FIELDS) == sum(len(dataclasses.fields(c)) for c in (RunConfig, DataConfig, LearnerConfig))
