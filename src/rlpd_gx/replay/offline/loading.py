"""Files in any known format become an `OfflineDataset`, converted once and then opened from the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from rlpd_gx.replay.offline.checks import OUTSIDE, Checks
from rlpd_gx.replay.offline.dataset import FACTS, KNOWN, LATER_FACTS, OfflineDataset
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source
from rlpd_gx.replay.timeline import Timeline
from rlpd_gx.safe_sets import SafeSet, decode
from rlpd_gx.trees import JsonMapping
from rlpd_gx.types import Array
from rlpd_gx.untrusted import reading

_UNKNOWN_ID = -1  # the action before a piece that begins inside an episode
_LEARNED = ("observation", "proposed_action", "executed_action", "reward")


class LiveSafeSets(NamedTuple):
    """`safe_set(env, action)` in the current state of a live environment, None where unknown.

    `action` is the one that ran there; None after the last.
    """

    safe_set: Callable[[gymnasium.Env, int | None], SafeSet | None]
    rules_fingerprint: str
    state_fingerprint: str | None = None
    """Fingerprint of the rest of what the function does to read the state."""


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
        given = {"format": format, "clip_actions": clip_actions, "time_limit_steps": time_limit_steps}
        _refuse_choices(path, {**given, **(options or {})})
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
        "actions": actions.as_json() if actions else None,
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


def _refuse_choices(folder: Path, choices: JsonMapping) -> None:
    if given := [name for name, value in choices.items() if value]:
        raise GxError(
            f"{folder}: is converted already, so {', '.join(given)} cannot be applied; convert its source again with "
            f"{'it' if len(given) == 1 else 'them'}, or leave {'it' if len(given) == 1 else 'them'} out"
        )


def _checked_actions(
    dataset: OfflineDataset, folder: Path, allowed: ActionRange, strict: bool
) -> OfflineDataset:
    """The dataset with the environment's range; ids out of it are refused, or in an audit reported.

    Continuous actions out of range are a finding: recorded ones may be (demonstrations of Adroit are).
    """
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
    known = dataset.actions is not None and dataset.actions.as_json() == allowed.as_json()
    dataset = replace(dataset, actions=allowed)
    if allowed.count is None:
        outside = np.flatnonzero(line.is_step & allowed.outside(line.executed_action))
        if outside.size and not known:  # else reported when it was converted
            said = (
                f"{folder}: 'executed_action', row {outside[0]}: {OUTSIDE} ({outside.size} steps in all); allowed as "
                "recorded; if they are in other units, convert the source again in those of the environment"
            )
            dataset = replace(dataset, findings=(*dataset.findings, said))
        return dataset
    for name in ("executed_action", "proposed_action"):
        ids = getattr(line, name)
        wrong = np.flatnonzero(line.is_step & allowed.outside(ids))
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
    if checks.strict and source.faults:
        raise source.faults[0]
    with (
        cache.new_folder(folder) as writer,
        Progress(console=console, transient=True, disable=hidden) as bar,
    ):
        task = bar.add_task(f"Reading {escape(path.name)}", total=source.total_steps)
        knows_unsafe_events = knows_proposals = False
        for episode in source.episodes:
            knows_unsafe_events |= episode.unsafe_events is not None
            knows_proposals |= episode.proposed_actions is not None
            bar.advance(task, episode.steps)
            if (checked := checks(episode)) is not None:
                place = f"{episode.file or path}: episode at row {episode.first_row}"
                writer.append(rows_of(checked), place)
        if checks.strict and source.faults:
            raise source.faults[0]
        if not writer.rows:
            raise GxError(f"{path}: no episode with a step in it; give a file with data")
        facts = {
            "name": path.name,
            "format": name,
            "env_id": source.env_id,
            "actions": checks.actions.as_json() if checks.actions else None,
            "rules_fingerprint": source.rules_fingerprint,
            "safe_set_spec": source.safe_set_spec,
            "knows_unsafe_events": knows_unsafe_events,
            "knows_proposals": knows_proposals,
        }
        writer.finish({**facts, "findings": [*source.notes, *map(str, source.faults), *checks.close()]})


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
        executed[:before] = _UNKNOWN_ID
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
        facts = {name: meta[name] for name in FACTS} | {name: meta.get(name) for name in LATER_FACTS}
        line = Timeline.from_columns(columns)
        line.check_episodes()
        if facts["safe_set_spec"] is not None and line.safe_set.shape[1]:
            decode(line.safe_set[:1], facts["safe_set_spec"])
        actions = ActionRange.from_json(meta["actions"])
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


def _where(dataset: OfflineDataset, conditions: Sequence[str]) -> OfflineDataset:
    for condition in conditions:
        dataset = dataset.where(condition)
    return dataset
