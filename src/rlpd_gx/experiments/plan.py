"""The table of runs of a sweep, before anything has run: settings, labels, fingerprints, a person's own grid."""

import hashlib
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from rlpd_gx import envs, files, settings
from rlpd_gx.config import Config, Settings
from rlpd_gx.envs.making import ATARI, make
from rlpd_gx.errors import GxError
from rlpd_gx.guardian.named import guard_options
from rlpd_gx.loop.configure import configure
from rlpd_gx.rules import Rule
from rlpd_gx.settings import SETTINGS
from rlpd_gx.trees import Json

BUNDLED = Path(envs.__file__).parent / "atari" / "offline"  # folders of action logs, by set and game
ELSEWHERE = ("device", "checkpoint_every", "log_every")  # settings that do not change what is learned


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: an ordinary run folder once it has run."""

    name: str
    """Its folder below that of the sweep."""
    values: Settings
    """Settings by name, over those of the preset."""
    preset: str = "rlpd-gx"
    labels: Json = field(default_factory=dict)
    """What tables group by: game, variant, seed."""
    measure: tuple[str, ...] = ()
    """Measurements of the finished run, beside those that training makes."""
    measuring: Json = field(default_factory=dict)
    """How much of it: episodes, critical states, horizon."""
    fork: "Planned | None" = None
    """The run whose last checkpoint this one starts from."""

    @cached_property
    def config(self) -> Config:
        """All settings."""
        return configure(self.preset, self.values, self.name)

    @cached_property
    def fingerprint(self) -> str:
        """The same for runs with the same settings, rules and offline data, wherever their files are."""
        values = {k: v for k, v in settings.flat(self.config).items() if k not in (*ELSEWHERE, "preset")}
        values["offline"] = _content(values["offline"])
        values["rules"] = _rules(values["env"], json.dumps(values["env_kwargs"]), values["rules"])
        # it changes rounding; left in, so that rows of before keep their fingerprint
        values["compile"] = False
        if values["policy_tau"] == 1:  # rows from before there was this setting keep their fingerprint, too
            del values["policy_tau"]
        if seen := _seen(values["env"]):
            values["observation"] = seen
        values["fork"] = self.fork.fingerprint if self.fork else None
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def command(self) -> str:
        """What a person would type for this run alone, beside its offline data."""
        words = ["rlpd-gx", "train", "--preset", self.preset]
        if self.fork is not None:
            words = ["rlpd-gx", "train", "--from", f"{self.fork.name}@{self.fork.config.run.steps}"]
        for name, value in self.changes.items():
            words += flags(name, offline_name(value) if name == "offline" else value)
        return shlex.join(words)

    @property
    def changes(self) -> Settings:
        """The settings over those of the preset, or of the run that it forks from."""
        before = {} if self.fork is None else self.fork.values
        return {
            name: value for name, value in self.values.items() if name not in before or value != before[name]
        }


def offline_name(path: str) -> str:
    """Offline data without the place where it lies here; a set of the package by its name."""
    return Path(path).parent.name if Path(path).is_relative_to(BUNDLED) else Path(path).name


def flags(name: str, value: Any) -> list[str]:
    """A setting as typed on the command line."""
    setting = SETTINGS[name]
    if setting.type is bool:
        return [setting.flag if value else f"--no-{setting.flag[2:]}"]
    if setting.type == tuple[str, ...]:
        return [word for one in value for word in (setting.flag, one)]
    if isinstance(value, Mapping):
        return [setting.flag, json.dumps(value)]
    return [setting.flag, ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)]


def grid(axes: Sequence[str], values: Settings, preset: str = "rlpd-gx") -> list[Planned]:
    """Every combination of the axes: `seed=0..4`, `guard=guardian,none`; `|` separates values that hold commas."""
    choices = dict(_axis(axis) for axis in axes)
    for name in choices:
        if name != "preset" and name not in SETTINGS:
            settings.with_values(Config(), {name: ""}, "--grid")  # says which settings there are
    plan = []
    for chosen in itertools.product(*choices.values()):
        labels = dict(zip(choices, chosen, strict=True))
        over = {
            name: SETTINGS[name].read(text, "--grid") for name, text in labels.items() if name in SETTINGS
        }
        name = ",".join(f"{key}={_in_a_name(text)}" for key, text in labels.items())
        plan.append(Planned(name, values | over, labels.get("preset", preset), labels | {"variant": name}))
    return plan


def _axis(text: str) -> tuple[str, list[str]]:
    name, equals, choices = text.partition("=")
    name = name.replace("-", "_")
    if not equals or not choices:
        raise GxError(f"--grid takes setting=values such as seed=0..4 or guard=guardian,none, not {text!r}")
    low, dots, high = choices.partition("..")
    if dots:
        if not (low.isdigit() and high.isdigit() and int(low) <= int(high)):
            raise GxError(f"--grid {text}: give a range of whole numbers, such as {name}=0..4")
        return name, [str(n) for n in range(int(low), int(high) + 1)]
    found = choices.split("|" if "|" in choices else ",")
    if len(set(found)) < len(found):
        raise GxError(f"--grid {text}: names a value twice")
    return name, found


def _in_a_name(text: str) -> str:
    """A value as part of a folder's name."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text)


@lru_cache
def _rules(env_id: str, env_kwargs: str, name: str) -> str:
    """Rules by what they allow: a table of results never mixes runs under different rules of one name."""
    if not name:
        return ""
    env = make(env_id, **json.loads(env_kwargs))
    try:
        found = guard_options(env, name)[0]
        return ",".join(rule.fingerprint for rule in ([found] if isinstance(found, Rule) else found))
    finally:
        env.close()


@lru_cache
def _seen(env_id: str) -> str:
    """What the numbers of `cells` are: rows of an earlier version are not those of this one.

    Other observations have no part in a fingerprint, so that rows from before keep theirs.
    """
    ours = ATARI.fullmatch(env_id)
    if ours is None or ours["observation"] != "cells":
        return ""
    from rlpd_gx.envs.atari.cells import encoder_of

    return encoder_of("cells", ours["game"]).fingerprint


@lru_cache
def _content(path: str) -> str:
    """A file by its content, so that its place does not matter; a folder by its name."""
    if not path:
        return ""
    return files.sha256(Path(path)) if Path(path).is_file() else Path(path).name
