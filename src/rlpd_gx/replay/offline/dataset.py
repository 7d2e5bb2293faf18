"""Offline data as one `OfflineDataset`, whatever file it came from."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import cache, formats
from rlpd_gx.replay.offline.checks import Checks
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source
from rlpd_gx.replay.offline.numbers import cast
from rlpd_gx.replay.timeline import Layout, Timeline
from rlpd_gx.safe_sets import SafeSet, Spec, decode
from rlpd_gx.trees import Json, JsonMapping
from rlpd_gx.types import Array
from rlpd_gx.untrusted import reading

_COMPARISONS: dict[str, Callable[[Array, float], Array]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_FACTS = ("name", "format", "env_id", "rules_fingerprint", "knows_unsafe_events")
_SAFE_SET_FACTS = ("safe_set_spec", "state_fingerprint")  # older versions did not write them
ASSUMED = "assumed:"  # before the fingerprint, where some safe sets are an assumption
KNOWN = "safe_set_known"  # extra column, where the safe sets of some rows are not known
UNKNOWN_ID = -1  # the action before a piece that begins inside an episode
_CHUNK_ROWS = 1 << 12  # written or summed at once
_LEARNED = ("observation", "proposed_action", "executed_action", "reward")
HISTORY_ROWS = 3  # before a piece, as a stack of 4 frames needs


class LiveSafeSets(NamedTuple):
    """`safe_set(env)` in the current state of a live environment, None where unknown."""

    safe_set: Callable[[gymnasium.Env], SafeSet | None]
    rules_fingerprint: str
    state_fingerprint: str | None = None
    """Fingerprint of the rest of what the function does to read the state."""


@dataclass(frozen=True, eq=False)
class OfflineDataset:
    """A timeline and where it came from. Columns may be memory-mapped and are read-only."""

    timeline: Timeline
    name: str
    format: str
    env_id: str | None = None
    actions: ActionRange | None = None
    rules_fingerprint: str | None = None
    """Fingerprint of the rules that made the `safe_set` column, None where unknown."""
    safe_set_spec: Spec | None = None
    """What `rlpd_gx.decode` needs to read the `safe_set` column."""
    state_fingerprint: str | None = None
    """Fingerprint of the function from stored observations to the rules' state, None where they read observations."""
    knows_unsafe_events: bool = False
    findings: tuple[str, ...] = ()
    folder: Path | None = None
    """The converted columns on disk; None once rows were left out."""

    def __repr__(self) -> str:
        return (
            f"OfflineDataset({self.name}, {self.format}, env_id={self.env_id}, {self.steps} steps, "
            f"{self.episodes} episodes)"
        )

    @property
    def steps(self) -> int:
        """Rows from which a step was taken."""
        return int(np.count_nonzero(self.timeline.is_step))

    @property
    def episodes(self) -> int:
        """Pieces of consecutive steps."""
        return int(np.count_nonzero(self.timeline.episode_step == 0))

    @property
    def needs_safe_set(self) -> Array:
        """[n] bool: rows that are s or s' of a step; others only fill frame stacks."""
        needed: Array = self.timeline.is_step.copy()
        needed[1:] |= self.timeline.is_step[:-1]
        return needed

    @property
    def has_safe_set(self) -> Array:
        """[n] bool: rows whose safe set is known."""
        line = self.timeline
        if not line.safe_set.shape[1]:
            return np.zeros(len(line), bool)
        return np.asarray(line.extras.get(KNOWN, np.ones(len(line), bool)))

    def where(self, condition: str) -> OfflineDataset:
        """Only the steps where a condition on an extra column holds: `"behaviour_iteration <= 20"`."""
        match = re.fullmatch(r"\s*(\S+?)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*", condition)
        if not match:
            raise GxError(f"cannot read the condition {condition!r}; write it as: name <= number")
        name, comparison, text = match.groups()
        columns = {**self.timeline.extras, "reward": self.timeline.reward}
        if name not in columns:
            raise GxError(
                f"{self.name}: no column {name!r} to select by; there are: {', '.join(sorted(columns))}"
            )
        try:
            value = {"true": 1.0, "false": 0.0}.get(text.lower()) if text.isalpha() else float(text)
        except ValueError:
            value = None
        if value is None:
            raise GxError(f"cannot read {text!r} in the condition {condition!r} as a number, true or false")
        return self.keep(np.asarray(_COMPARISONS[comparison](columns[name], value)))

    def keep(self, wanted: Array) -> OfflineDataset:
        """Only the steps where `wanted` [n] holds, in pieces that still end with an observation.

        A piece that begins inside an episode keeps a few rows before it, which are no steps, so that its frame stacks
        and previous action do not change. `extras["step_in_episode"]` is its position in the episode.
        """
        line = self.timeline
        kept = wanted & line.is_step
        if not kept.any():
            raise GxError(f"{self.name}: no step is left; choose a wider condition")
        border = np.diff(kept.astype(np.int8), prepend=0, append=0)
        first, final = np.flatnonzero(border == 1), np.flatnonzero(border == -1)
        start = first - np.minimum(line.episode_step[first], HISTORY_ROWS)
        length = final - start + 1  # the row after the last step holds its next observation
        episode_step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        index = np.repeat(start, length) + episode_step
        columns = {name: column[index] for name, column in line.columns().items()}
        columns["episode_step"] = episode_step.astype(np.int32)
        columns["is_step"] = (index >= np.repeat(first, length)) & (index < np.repeat(final, length))
        columns.setdefault("extras/step_in_episode", line.episode_step[index])
        ends = np.cumsum(length) - 1
        columns["truncated"][ends - 1] |= line.is_step[final]  # the episode continues in the file
        for name in ("reward", "terminated", "truncated", "margin", "unsafe_event"):
            columns[name][~columns["is_step"]] = 0
        return replace(self, timeline=Timeline.from_columns(columns), folder=None)

    def check_environment(
        self, env_id: str | None, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> None:
        """Raise unless this data can have come from that environment."""
        if env_id and self.env_id and env_id != self.env_id:
            raise GxError(
                f"{self.name}: 'env_id' is {self.env_id}, not {env_id}; give the data of that environment"
            )
        parts, theirs = trees.named_leaves(self.timeline.observation), trees.named_leaves(observation_space)
        if parts.keys() != theirs.keys():
            raise GxError(
                f"{self.name}: 'observations' has parts {sorted(parts)}, the environment {sorted(theirs)}"
            )
        for name, part in parts.items():
            if part.shape[1:] != theirs[name].shape:
                raise GxError(
                    f"{self.name}: 'observations' {name} has shape {part.shape[1:]} in every row, "
                    f"the environment {env_id or ''} gives {theirs[name].shape}; "
                    "give the data of that environment"
                )
        shape = self.timeline.executed_action.shape[1:]
        if shape != (action_space.shape or ()):
            raise GxError(
                f"{self.name}: 'actions' has shape {shape} in every row, the environment {env_id or ''} "
                f"takes {action_space.shape or ()}; give the data of that environment"
            )

    def with_actions(self, numbered: Callable[[Array], Array]) -> OfflineDataset:
        """With the actions as the Learner numbers them (`ActionView.chosen`)."""
        columns = self.timeline.columns()
        actions = {name: numbered(columns[name]) for name in ("proposed_action", "executed_action")}
        if all(actions[name] is columns[name] for name in actions):
            return self
        return replace(self, timeline=Timeline.from_columns(columns | actions), folder=None)

    def in_layout(self, layout: Layout) -> OfflineDataset:
        """With the dtypes of another timeline (a ring's), so that both can be sampled together."""
        columns, wanted = self.timeline.columns(), layout.columns()
        for name in wanted.keys() | {name for name in columns if name.startswith("observation")}:
            here, there = columns.get(name), wanted.get(name)
            if here is None or there is None or here.shape[1:] != there.shape:
                found = "absent" if here is None else here.shape[1:]
                needed = "absent" if there is None else there.shape
                raise GxError(
                    f"{self.name}: {name!r} is {found} in every row, not {needed}; "
                    "give the data of that environment"
                )
            columns[name] = cast(self.name, name, here, there.base)
        # Safe sets computed from rounded states must not be cached as those of the file.
        return replace(self, timeline=Timeline.from_columns(columns), folder=None)

    def digest(self) -> str:
        """SHA-256 over every number of every column, their types, and what the codes of safe sets mean."""
        columns = self.timeline.columns()
        kinds = {name: (column.dtype.str, column.shape) for name, column in columns.items()}
        about = {"columns": kinds, "spec": self.safe_set_spec, "rules": self.rules_fingerprint}
        total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for _, column in sorted(columns.items()):
            for start in range(0, len(column) if column.size else 0, _CHUNK_ROWS):
                total.update(np.ascontiguousarray(column[start : start + _CHUNK_ROWS]).data.cast("B"))
        return total.hexdigest()

    def save(self, folder: Path) -> Path:
        """Write the columns into a new folder that `load` opens at once."""
        if folder.exists():
            raise GxError(f"{folder}: exists already; name a new folder")
        with cache.new_folder(folder) as writer:
            columns = self.timeline.columns()
            for start in range(0, len(self.timeline), _CHUNK_ROWS):
                writer.append(trees.index(columns, np.s_[start : start + _CHUNK_ROWS]), self.name)
            facts = {name: getattr(self, name) for name in _FACTS + _SAFE_SET_FACTS}
            writer.finish(_meta(self.actions, findings=list(self.findings), **facts))
        return folder


def load(
    path: str | Path,
    *,
    format: str | None = None,
    options: JsonMapping | None = None,
    where: Sequence[str] = (),
    actions: ActionRange | None = None,
    clip_actions: bool = False,
    time_limit_steps: int | None = None,
    live_safe_sets: LiveSafeSets | None = None,
    strict: bool = True,
    root: Path | None = None,
    progress: bool | None = None,
) -> OfflineDataset:
    """Read a dataset in any known format; the second time it is opened from the cache.

    `options` go to the reader of the format. `actions` is the environment's range, which is checked.
    `live_safe_sets` are asked while an action log is replayed. A converted folder takes none of the choices made
    while a file is read.
    """
    path, root = Path(path), root or cache.cache_root()
    if path.is_dir() and cache.is_dataset(path):
        _refuse_choices(path, clip_actions, time_limit_steps, options or {})
        dataset = _open(path, strict)
        if actions is not None:
            dataset = _checked_actions(dataset, path, actions, strict)
        return _where(dataset, where)
    name = format or formats.detect(path)
    options = dict(options or {})
    choices = {
        "content": cache.content_hash(path),
        "format": name,
        "reader": formats.code_of(name),
        "options": formats.meaning(path, name, options),
        "actions": _range_as_json(actions),
        "clip_actions": clip_actions,
        "time_limit_steps": time_limit_steps,
        "rules": live_safe_sets[1:] if live_safe_sets else None,
        "strict": strict,
    }
    folder = root / cache.key_of(choices)
    if not cache.is_dataset(folder):
        if live_safe_sets:
            options["safe_set"] = live_safe_sets.safe_set
        source = formats.read(path, name, options)
        if live_safe_sets:
            source.rules_fingerprint = live_safe_sets.rules_fingerprint
        checks = Checks(
            path,
            actions or source.actions,
            clip_actions,
            time_limit_steps,
            source.time_limit_steps,
            strict,
            source.names,
        )
        _convert(source, checks, path, name, folder, progress)
    return _where(replace(_open(folder, strict), name=path.name), where)


def _refuse_choices(
    folder: Path, clip_actions: bool, time_limit_steps: int | None, options: JsonMapping
) -> None:
    choices = {"clip_actions": clip_actions, "time_limit_steps": time_limit_steps, **options}
    if given := [name for name, value in choices.items() if value]:
        raise GxError(
            f"{folder}: is converted already, so {', '.join(given)} cannot be applied; convert its source again with "
            f"{'it' if len(given) == 1 else 'them'}, or leave {'it' if len(given) == 1 else 'them'} out"
        )


def _checked_actions(
    dataset: OfflineDataset, folder: Path, allowed: ActionRange, strict: bool
) -> OfflineDataset:
    """Refuse actions the environment does not have; in an audit, ids out of range are a finding."""
    line = dataset.timeline
    shape = () if allowed.count is not None else np.asarray(allowed.low).shape
    if line.executed_action.shape[1:] != shape:
        remedy = "give the data of that environment"
        if shape == (1,) and line.executed_action.ndim == 1:
            remedy += ", or convert the source again with --env if these are numbers, not ids"
        raise GxError(
            f"{folder}: 'actions' has shape {line.executed_action.shape[1:]} in every row, the environment takes "
            f"{'ids' if allowed.count is not None else shape}; {remedy}"
        )
    if allowed.count is None:
        return dataset
    for name in ("executed_action", "proposed_action"):
        ids = getattr(line, name)
        wrong = np.flatnonzero(line.is_step & ((ids < 0) | (ids >= allowed.count)))
        if wrong.size:
            said = (
                f"{folder}: {name!r}, row {wrong[0]}: is {ids[wrong[0]]}, but the environment has actions 0 to "
                f"{allowed.count - 1}; give the data of that environment"
            )
            if strict:
                raise GxError(said)
            dataset = replace(dataset, findings=(*dataset.findings, f"{said} ({wrong.size} steps)"))
    return dataset


def _convert(
    source: Source, checks: Checks, path: Path, name: str, folder: Path, progress: bool | None
) -> None:
    console = Console(stderr=True)
    hidden = not console.is_terminal if progress is None else not progress
    with (
        cache.new_folder(folder) as writer,
        Progress(console=console, transient=True, disable=hidden) as bar,
    ):
        task = bar.add_task(f"Reading {escape(path.name)}", total=source.total_steps)
        knows_unsafe_events = False
        for episode in source.episodes:
            knows_unsafe_events |= episode.unsafe_events is not None
            bar.advance(task, episode.steps)
            if (checked := checks(episode)) is not None:
                place = f"{episode.file or path}: episode at row {episode.first_row}"
                writer.append(rows_of(checked), place)
        if checks.strict and source.faults:
            raise source.faults[0]
        if not writer.rows:
            raise GxError(f"{path}: no episode with a step in it; give a file with data")
        writer.finish(
            _meta(
                checks.actions,
                name=path.name,
                format=name,
                env_id=source.env_id,
                rules_fingerprint=source.rules_fingerprint,
                safe_set_spec=source.safe_set_spec,
                knows_unsafe_events=knows_unsafe_events,
                findings=[*source.notes, *map(str, source.faults), *checks.close()],
            )
        )


def rows_of(episode: Episode) -> dict[str, Array]:
    """The rows of one checked episode in the columns of a timeline: `[lead_in + T + 1, ...]` each.

    Columns that are not in the file are left out; `_open` fills them in.
    """
    before, steps = episode.lead_in, episode.steps
    rows = before + steps + 1

    def padded(column: Array) -> Array:
        full = np.zeros((rows, *column.shape[1:]), column.dtype)
        full[before : before + steps] = column
        return full

    last = np.zeros(steps, bool)
    last[-1] = True
    columns = {f"extras/{name}": padded(column) for name, column in episode.extras.items()}
    columns |= trees.named_leaves(episode.observations, "observation")
    executed = padded(episode.actions)
    if episode.actions.ndim == 1:
        executed[:before] = UNKNOWN_ID
    columns |= {
        "is_step": padded(np.ones(steps, bool)),
        "episode_step": np.arange(rows, dtype=np.int32),
        "executed_action": executed,
        "reward": padded(episode.rewards),
        "terminated": padded(last & episode.terminated),
        "truncated": padded(last & episode.truncated),
    }
    if episode.proposed_actions is not None:
        columns["proposed_action"] = padded(episode.proposed_actions)
    if episode.margins is not None:
        columns["margin"] = padded(episode.margins)
    if episode.unsafe_events is not None:
        columns["unsafe_event"] = padded(episode.unsafe_events)
    if episode.safe_sets is not None:
        codes = episode.safe_sets
        columns["safe_set"] = np.concatenate([np.zeros((before, *codes.shape[1:]), codes.dtype), codes])
    if episode.safe_sets_known is not None:
        columns[f"extras/{KNOWN}"] = np.concatenate([np.zeros(before, bool), episode.safe_sets_known])
    return columns


def _open(folder: Path, strict: bool) -> OfflineDataset:
    meta = cache.read_meta(folder)
    columns = cache.open_columns(folder, meta)
    rows = meta["rows"]
    with reading(folder, "delete the folder and convert again"):
        columns.setdefault("proposed_action", columns["executed_action"])
        columns.setdefault("margin", np.full(rows, np.nan, np.float32))
        columns.setdefault("unsafe_event", np.zeros(rows, bool))
        columns.setdefault("safe_set", np.zeros((rows, 0), np.uint8))
        facts = {name: meta[name] for name in _FACTS} | {name: meta.get(name) for name in _SAFE_SET_FACTS}
        line = Timeline.from_columns(columns)
        line.check_episodes()
        if facts["safe_set_spec"] is not None and line.safe_set.shape[1]:
            decode(line.safe_set[:1], facts["safe_set_spec"])
        actions = _range_from_json(meta["actions"])
    if strict:
        _check_finite(folder, line)
    return OfflineDataset(
        timeline=line, actions=actions, findings=tuple(meta["findings"]), folder=folder, **facts
    )


def _check_finite(folder: Path, line: Timeline) -> None:
    """An unknown margin is NaN on purpose, an open bound infinite; nothing else that is learned from may be."""
    for name, column in line.columns().items():
        if name.startswith(_LEARNED) and column.dtype.kind == "f" and not np.isfinite(column).all():
            row = int(np.argwhere(~np.isfinite(column))[0][0])
            raise GxError(
                f"{folder}: {name!r}, row {row}: is NaN or infinite; see `rlpd-gx data audit`, then repair the "
                "source and convert it again"
            )


def _meta(actions: ActionRange | None, **facts: object) -> Json:
    return {**facts, "actions": _range_as_json(actions)}


def _where(dataset: OfflineDataset, conditions: Sequence[str]) -> OfflineDataset:
    for condition in conditions:
        dataset = dataset.where(condition)
    return dataset


def _range_as_json(actions: ActionRange | None) -> Json | None:
    if actions is None:
        return None
    if actions.count is not None:
        return {"count": actions.count}
    return {"low": np.asarray(actions.low).tolist(), "high": np.asarray(actions.high).tolist()}


def _range_from_json(value: Json | None) -> ActionRange | None:
    if value is None:
        return None
    if "count" in value:
        return ActionRange(count=value["count"])
    return ActionRange(low=np.asarray(value["low"]), high=np.asarray(value["high"]))
