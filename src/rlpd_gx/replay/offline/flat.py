"""Row-per-step columns (HDF5, npz, CSV, Parquet) cut into episodes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.loading import did_you_mean
from rlpd_gx.replay.offline.episode import Episode, Source, problem
from rlpd_gx.replay.offline.numbers import flags, is_numeric, numbers
from rlpd_gx.safe_sets import Spec, decode
from rlpd_gx.trees import Json
from rlpd_gx.types import Array
from rlpd_gx.untrusted import reading

REQUIRED = ("observations", "actions", "rewards")
KNOWN = (
    *REQUIRED,
    "next_observations",
    "terminals",
    "timeouts",
    "episode",
    "proposed_actions",
    "margins",
    "unsafe_events",
    "safe_sets",
    "next_safe_sets",
)
FACTS = ("env_id", "rules_fingerprint", "safe_set_spec")  # texts beside the columns
CLOCKS = ("step", "time")  # columns that must grow within an episode, and show where rows are missing
EVEN, JUMP = 0.1, 1.5  # how much of its usual growth a clock may deviate by, and what is a gap
FIELDS = (*KNOWN, *CLOCKS)  # what a mapping may name; other columns keep the name they have in the file


def meaning(path: Path, options: Json) -> Json:
    """See `formats.meaning`: files cached before gaps were cut and repeated rows refused are read again."""
    return {"gaps": "cut", "repeated": "refused"}


def check_mapping(mapping: Mapping[str, Any] | None, file: Path) -> None:
    """Refuse fields that do not exist: a misspelled `timeouts` would be kept as an extra, and never read."""
    for name in mapping or {}:
        if name not in FIELDS:
            instead = (
                did_you_mean(name, FIELDS) or "; leave it out, other columns are kept under their own names"
            )
            raise GxError(f"{file}: the mapping has no field {name!r} (it has {', '.join(FIELDS)}){instead}")


def rename(found: Mapping[str, Array], mapping: Mapping[str, str] | None, file: Path) -> dict[str, Array]:
    """Columns under the names used here; `mapping` says `{name here: name in the file}`."""
    check_mapping(mapping, file)
    columns = dict(found)
    for name, name_in_file in (mapping or {}).items():
        if not isinstance(name_in_file, str):
            raise GxError(f"the mapping of {name!r} is {name_in_file!r}; in this format it is one name")
        if name_in_file not in found:
            raise problem(
                file, name_in_file, None, f"is not there (found: {_names(found)})", "fix the mapping"
            )
        columns.pop(name_in_file, None)
        columns[name] = found[name_in_file]
    return columns


def source(
    found: Mapping[str, Array],
    file: Path,
    left_out: Sequence[str] = (),
    safe_set_spec: str | None = None,
    **facts: Any,
) -> Source:
    """The episodes of `[N, ...]` columns. `safe_set_spec` is the JSON of what `rlpd_gx.decode` needs to read safe sets.

    Columns without numbers are left out, like those in `left_out`, which the reader has dropped already; they are
    refused if they are needed.
    """
    left_out = [*left_out, *(name for name in found if name not in KNOWN and not is_numeric(found[name]))]
    columns = {name: numbers(file, name, column) for name, column in found.items() if name not in left_out}
    rows = _check(columns, file)
    source = Source(
        episodes=iter(()), total_steps=rows, safe_set_spec=_spec(columns, file, safe_set_spec), **facts
    )
    if left_out:
        source.notes.append(f"columns without numbers are left out: {', '.join(left_out)}")
    source.episodes = _episodes(columns, file, source)
    return source


def _check(columns: dict[str, Array], file: Path) -> int:
    """Every needed column is there and fits the others; the number of rows."""
    for name in REQUIRED:
        if name not in columns:
            raise problem(
                file,
                name,
                None,
                f"is missing (found: {_names(columns)})",
                "add it, or name it with `rlpd-gx data convert --mapping FILE`",
            )
    if "terminals" not in columns and "episode" not in columns:
        hint = "a bare done flag does not say which ends were time limits: " if "dones" in columns else ""
        raise problem(
            file,
            "terminals",
            None,
            f"is missing (found: {_names(columns)})",
            f"{hint}without it nothing says where episodes end; add terminals (and timeouts), or name them with "
            "`rlpd-gx data convert --mapping FILE`",
        )
    rows = len(columns["rewards"])
    for name, column in columns.items():
        if len(column) != rows:
            raise problem(
                file,
                name,
                min(len(column), rows),
                f"has {len(column)} rows where 'rewards' has {rows}",
                "make all columns the same length",
            )
    if rows == 0:
        raise problem(file, "rewards", None, "has no rows", "give a file with data")
    for name in ("rewards", "margins", "episode", *CLOCKS):
        if name in columns:
            if columns[name].size != rows:
                shape = columns[name].shape[1:]
                raise problem(file, name, None, f"has shape {shape} in every row", "store one number a row")
            columns[name] = columns[name].reshape(rows)
    if columns["observations"].ndim == 1:
        columns["observations"] = columns["observations"][:, None]
    for name in ("observations", "safe_sets"):
        here, there = columns.get(name), columns.get(f"next_{name}")
        if here is not None and there is not None:
            if here.size != there.size:
                what = f"has shape {there.shape[1:]} in every row, {name!r} {here.shape[1:]}"
                raise problem(file, f"next_{name}", None, what, "give both one shape")
            columns[f"next_{name}"] = there.reshape(here.shape)
    if "episode" in columns and not np.isfinite(columns["episode"]).all():
        row = int(np.argmin(np.isfinite(columns["episode"])))
        raise problem(file, "episode", row, "is empty or not finite", "number every row's episode")
    return rows


def _episodes(columns: Mapping[str, Array], file: Path, source: Source) -> Iterator[Episode]:
    """Cut `[N, ...]` columns where an episode ends by a flag, by its id, or by a break in the observations.

    Without `next_observations` the last observation of an episode was never stored. After a terminal it is
    not needed (no bootstrap) and the last one is repeated; elsewhere the last step is left out.
    """
    rows, notes = len(columns["rewards"]), source.notes
    observations = columns["observations"]
    following = columns.get("next_observations")
    none = np.zeros(rows, bool)
    terminal = flags(file, "terminals", columns["terminals"]) if "terminals" in columns else none
    timeout = flags(file, "timeouts", columns["timeouts"]) if "timeouts" in columns else none
    ends = terminal | timeout
    ends[-1] = True
    if "episode" in columns:
        ends[:-1] |= columns["episode"][1:] != columns["episode"][:-1]
    if following is not None:
        breaks = _differ(observations[1:], following[:-1]) & ~ends[:-1]
        if breaks.any():
            notes.append(
                f"{int(breaks.sum())} rows are not followed by their next_observations though no flag says "
                f"so (first: row {int(np.argmax(breaks))}); each is taken as a time limit"
            )
            ends[:-1] |= breaks
    elif "timeouts" not in columns and "episode" not in columns:
        notes.append(
            "only terminals say where episodes end: a time limit between two rows would not be seen, and its episode "
            "would run on into the next one; add timeouts, episode or next_observations if there were time limits"
        )
    if "terminals" not in columns:
        notes.append("no column says which episodes ended as terminal: each end is taken as a time limit")
    source.faults += _shuffled(columns, ends, file, source)
    for name in CLOCKS:
        if name in columns:
            ends[:-1] |= _gaps(columns[name], ends, file, source, name)
    extras = {name: column for name, column in columns.items() if name not in KNOWN}
    repeated = dropped = start = 0
    for end in (np.flatnonzero(ends) + 1).tolist():
        steps = slice(start, end)
        final = (observations if following is None else following)[end - 1 : end]
        episode = Episode(
            observations=np.concatenate([observations[steps], final]),
            actions=columns["actions"][steps],
            rewards=columns["rewards"][steps],
            terminated=bool(terminal[end - 1]),
            truncated=bool(timeout[end - 1]) or not terminal[end - 1],
            first_row=start,
            final_observation_known=following is not None,
            proposed_actions=_part(columns, "proposed_actions", steps),
            margins=_part(columns, "margins", steps),
            unsafe_events=_part(columns, "unsafe_events", steps),
            safe_sets=_safe_sets(columns, steps),
            safe_sets_known=_known(columns, steps, bool(terminal[end - 1])),
            final_safe_set_known="next_safe_sets" in columns,
            extras={name: column[steps] for name, column in extras.items()},
        )
        start = end
        if not episode.final_observation_known:
            repeated += episode.terminated
            dropped += not episode.terminated
            episode = episode if episode.terminated else episode.without_last_step()
        if episode.steps:
            yield episode
    if repeated:
        notes.append(
            f"the final observation of {repeated} terminated episodes is not in the file: last one repeated"
        )
    if dropped:
        notes.append(f"the last step of {dropped} cut episodes has no next observation in the file: left out")


def _shuffled(columns: Mapping[str, Array], ends: Array, file: Path, source: Source) -> Iterator[GxError]:
    """Signs that rows are not in time order, or are there twice."""
    clocks = [name for name in CLOCKS if name in columns]
    if clocks:  # one of them may be coarse, so a row is there twice only if all of them say so
        stays = np.all([columns[name][1:] == columns[name][:-1] for name in clocks], axis=0) & ~ends[:-1]
        if stays.any():
            row = int(np.argmax(stays)) + 1
            label = source.names.get(clocks[0], (clocks[0],))[0]
            yield problem(
                file,
                label,
                row,
                f"stays at {columns[clocks[0]][row]} within an episode, so a row may be there twice "
                f"({int(stays.sum())} such rows)",
                "leave out the row that is too many, or rename that column if it is no clock",
            )
    for name in CLOCKS:
        if name in columns:
            back = (columns[name][1:] < columns[name][:-1]) & ~ends[:-1]
            if back.any():
                row = int(np.argmax(back)) + 1
                label = source.names.get(name, (name,))[0]
                what = f"falls from {columns[name][row - 1]} to {columns[name][row]} within an episode"
                yield _shuffle(
                    file, label, row, what, f"sort the rows by {label!r}, or leave that column out"
                )
    if "episode" in columns:
        first = np.concatenate([[0], np.flatnonzero(columns["episode"][1:] != columns["episode"][:-1]) + 1])
        ids, at = np.unique(columns["episode"][first], return_index=True)
        if len(ids) < len(first):
            row = int(np.delete(first, at)[0])
            label = source.names.get("episode", ("episode",))[0]
            what = "comes back to an episode after rows of another one"
            yield _shuffle(
                file, label, row, what, "sort the rows by episode and time, or number episodes apart"
            )


def _gaps(clock: Array, ends: Array, file: Path, source: Source, name: str) -> Array:
    """[n - 1] bool: rows are missing after this one, as a clock that grows evenly jumps within an episode.

    The episode is cut there, since a step across the gap never happened.
    """
    label = source.names.get(name, (name,))[0]
    if not np.isfinite(clock).all():
        row = int(np.argmin(np.isfinite(clock)))
        source.faults.append(problem(file, label, row, "is empty or not finite", "fill it or leave it out"))
    grows = np.where(ends[:-1], 0, np.diff(clock.astype(np.float64)))  # unsigned differences would wrap
    growth = grows[grows > 0]
    if not growth.size or (grows < 0).any():  # rows out of order are refused already
        return np.zeros(len(grows), bool)
    usual = np.median(growth)
    if np.mean(np.abs(growth - usual) <= EVEN * usual) <= 0.5:
        source.notes.append(
            f"{file}: {label!r} does not grow evenly, so rows that are missing cannot be seen in it"
        )
        return np.zeros(len(grows), bool)
    gaps: Array = grows > JUMP * usual
    if gaps.any():
        row = int(np.argmax(gaps)) + 1
        source.notes.append(
            f"{file}: {label!r}, row {row}: jumps from {clock[row - 1]} to {clock[row]} within an episode, so rows "
            f"are missing before it ({int(gaps.sum())} such gaps); the episode is cut there"
        )
    return gaps


def _shuffle(file: Path, name: str, row: int, what: str, remedy: str) -> GxError:
    return problem(file, name, row, f"{what}: the rows look shuffled", remedy)


def _differ(here: Array, there: Array) -> Array:
    """[n] rows that differ; NaN, which the checks report, equals itself."""
    differ = here != there
    if here.dtype.kind == "f" and there.dtype.kind == "f":
        differ &= ~(np.isnan(here) & np.isnan(there))
    return differ.reshape(len(here), -1).any(axis=1)


def _names(columns: Mapping[str, Array]) -> str:
    names = sorted(columns)
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") or "nothing"


def _part(columns: Mapping[str, Array], name: str, steps: slice) -> Array | None:
    return columns[name][steps] if name in columns else None


def _safe_sets(columns: Mapping[str, Array], steps: slice) -> Array | None:
    """Codes at the T + 1 observations; the set after the last step comes from `next_safe_sets`."""
    if "safe_sets" not in columns:
        return None
    codes = columns["safe_sets"]
    following = columns.get("next_safe_sets", codes)
    return np.concatenate([codes[steps], following[steps.stop - 1 : steps.stop]])


def _known(columns: Mapping[str, Array], steps: slice, terminated: bool) -> Array | None:
    """Without `next_safe_sets`, the set after the last step is unknown; after a terminal it is not needed."""
    if "safe_sets" not in columns or "next_safe_sets" in columns:
        return None
    known = np.ones(steps.stop - steps.start + 1, bool)
    known[-1] = terminated
    return known


def _spec(columns: Mapping[str, Array], file: Path, text: str | None) -> Spec | None:
    """The spec, once it has read a row."""
    if text is None or "safe_sets" not in columns:
        return None
    with reading(f"{file}: 'safe_set_spec'", "give the JSON of a safe set's spec"):
        spec: Spec = json.loads(text)
        decode(columns["safe_sets"][:1], spec)
    return spec
