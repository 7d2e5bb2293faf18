"""Settings by name: as flags, as lines of a file, as a row of JSON."""

import ast
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rlpd_gx.config import PRESETS, Config, DataConfig, LearnerConfig, RunConfig, Settings
from rlpd_gx.errors import GxError, first_line
from rlpd_gx.loading import did_you_mean

FORMAT = 2
"""Changes whenever a setting changes its meaning: a run of another format is refused, not reinterpreted."""
COMMAND_LINE = "command line"
"""The source of flags: errors name the flag itself."""
SECTIONS = {"run": RunConfig, "data": DataConfig, "learner": LearnerConfig}


@dataclass(frozen=True)
class Setting:
    """One setting: its section, type, default and sentence."""

    name: str
    section: str
    type: Any
    default: Any
    help: str

    def read(self, value: object, source: str) -> Any:
        """A value from a flag or a file, checked and converted."""
        try:
            return _read(self.type, value)
        except (TypeError, ValueError, OverflowError) as error:
            named = self.flag if source == COMMAND_LINE else f"{source}: {self.name}"
            raise GxError(f"{named} cannot be {value!r}: {error}") from None

    @property
    def flag(self) -> str:
        """The flag, as typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def metavar(self) -> str:
        """The placeholder for a value in the help."""
        kind = get_args(self.type)[0] if get_origin(self.type) is tuple else self.type
        words = "WORD|X" if float in get_args(kind) else "WORD"
        one = {int: "N", float: "X", str: "TEXT"}.get(kind, "JSON" if self.type == Settings else words)
        return f"{one},..." if get_origin(self.type) is tuple and kind is not str else one

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words, where it is a choice."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    def value(self, config: Config) -> Any:
        """The value in force."""
        return getattr(getattr(config, self.section), self.name)


def with_values(config: Config, values: Mapping[str, Any], source: str) -> Config:
    """The config with some settings changed, by name; errors name the `source`."""
    sections: dict[str, Settings] = {}
    for name, value in values.items():
        if name not in SETTINGS:
            instead = did_you_mean(str(name), SETTINGS) or "; `rlpd-gx train --help-all` lists them"
            raise GxError(f"{source}: there is no setting {name!r}{instead}")
        setting = SETTINGS[name]
        sections.setdefault(setting.section, {})[name] = setting.read(value, source)
    return replace(config, **{s: replace(getattr(config, s), **changed) for s, changed in sections.items()})


def preset_values(name: str) -> Settings:
    """The settings that a preset changes."""
    if not isinstance(name, str) or name not in PRESETS:
        raise GxError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def flat(config: Config) -> Settings:
    """All settings by name, ready for JSON."""
    values = {name: setting.value(config) for name, setting in SETTINGS.items()}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"format": FORMAT, "preset": config.preset, **plain}


def from_flat(values: Mapping[str, Any], source: str) -> Config:
    """The inverse of `flat`."""
    rest = dict(values)
    if (found := rest.pop("format", None)) != FORMAT:
        newer = isinstance(found, int) and found > FORMAT
        made_by = "a newer version" if newer else "an older version"
        raise GxError(
            f"{source}: was written by {made_by} of rlpd-gx and cannot be continued; start a new run"
        )
    return with_values(Config(preset=rest.pop("preset", "rlpd-gx")), rest, source)


def read_file(path: Path) -> tuple[str | None, Settings]:
    """Preset (if named) and settings of a YAML, TOML or JSON file; sections are allowed, not required."""
    try:
        content = _parsed(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GxError(f"{path}: cannot be read: {error.strerror}") from None
    except GxError:
        raise
    except Exception as error:  # each parser has its own
        mark = getattr(error, "problem_mark", None)  # YAML says the line elsewhere
        where = "" if mark is None else f" (line {mark.line + 1})"
        raise GxError(
            f"{path}: cannot be read as {path.suffix[1:].upper()}: {first_line(error)}{where}"
        ) from None
    if not isinstance(content, dict):
        raise GxError(f"{path}: must hold settings by name")
    values: Settings = {}
    for name, value in content.items():
        values |= (value or {}) if name in SECTIONS and isinstance(value, dict | None) else {name: value}
    preset = values.pop("preset", None)
    with_values(Config(), values, str(path))  # so that a mistake is reported as one in this file
    return preset, {name: SETTINGS[name].read(value, str(path)) for name, value in values.items()}


def _parsed(path: Path, text: str) -> object:
    if path.suffix == ".toml":
        import tomllib

        return tomllib.loads(text)
    if path.suffix in (".yaml", ".yml"):
        import yaml

        return yaml.safe_load(text) or {}
    if path.suffix == ".json":
        return json.loads(text)
    raise GxError(f"{path}: a config is a .yaml, .toml or .json file")


def _read(kind: Any, value: object) -> Any:
    """`value` as a setting of this type."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        if value not in get_args(kind):
            raise ValueError(f"choose {', '.join(map(str, get_args(kind)))}")
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(
            _read(get_args(kind)[0], item) for item in (items if isinstance(items, list | tuple) else [items])
        )
    if origin is dict:
        try:
            value = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ValueError("give a JSON object, such as '{\"frame_skip\": 4}'")
        return value
    if origin is str:
        if not isinstance(value, str):
            raise ValueError("give text")
        return value
    if origin is bool:
        if not isinstance(value, bool):
            raise ValueError("give true or false")
        return value
    if origin not in (int, float):  # a word, or a number
        words, number = get_args(kind)
        return value if value in get_args(words) else _read(number, value)
    return _number(origin, value)


def _number(kind: type, value: Any) -> int | float:
    """A finite number; whole ones may be written as 1e6."""
    expected = "a whole number" if kind is int else "a number"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"give {expected}") from None
    if isinstance(value, bool) or not math.isfinite(number) or (kind is int and number != int(number)):
        raise ValueError(f"give {expected}")
    if kind is float:
        return number
    return int(value) if isinstance(value, int) or str(value).lstrip("-").isdigit() else int(number)


def _settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for section, kind in SECTIONS.items():
        hints, sentences, defaults = get_type_hints(kind), _sentences(kind), kind()
        for f in fields(kind):
            assert f.name not in found, f"two settings are named {f.name}"
            found[f.name] = Setting(
                f.name, section, hints[f.name], getattr(defaults, f.name), sentences[f.name]
            )
    return found


def _sentences(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass."""
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for here, below in pairwise(definition.body):
        if (
            isinstance(here, ast.AnnAssign)
            and isinstance(here.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            texts[here.target.id] = " ".join(ast.literal_eval(below.value).split())
    return texts


SETTINGS = _settings()
