"""Row-per-step columns (HDF5, npz, CSV, Parquet) cut into episodes."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rlpd_gx.replay.offline.episode import Episode, problem
from rlpd_gx.types import Array

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


def rename(found: Mapping[str, Array], mapping: Mapping[str, str] | None, file: Path) -> dict[str, Array]:
    """Columns under the names used here; `mapping` says `{name here: name in the file}`."""
    columns = dict(found)
    for name, name_in_file in (mapping or {}).items():
        if name_in_file not in found:
            raise problem(
                file, name_in_file, None, f"is not there (found: {_names(found)})", "fix the mapping"
            )
        columns.pop(name_in_file, None)
        columns[name] = found[name_in_file]
    return columns


def check(columns: Mapping[str, Array], file: Path) -> int:
    """Every needed column is there and all have the same length, which is returned."""
    for name in REQUIRED:
        if name not in columns:
            raise problem(
                file, name, None, f"is missing (found: {_names(columns)})", "add it, or name it in a mapping"
            )
    if "terminals" not in columns and "episode" not in columns:
        hint = "a bare done flag does not say which ends were time limits: " if "dones" in columns else ""
        raise problem(
            file,
            "terminals",
            None,
            f"is missing (found: {_names(columns)})",
            f"{hint}without it nothing says where episodes end; add terminals (and timeouts), or map them",
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
    return rows


def episodes(columns: Mapping[str, Array], file: Path, notes: list[str]) -> Iterator[Episode]:
    """Cut `[N, ...]` columns where an episode ends by a flag, by its id, or by a break in the observations.

    Without `next_observations` the last observation of an episode was never stored. After a terminal it is
    not needed (no bootstrap) and the last one is repeated; elsewhere the last step is left out.
    """
    rows = check(columns, file)
    observations = columns["observations"]
    following = columns.get("next_observations")
    terminal = _flags(columns, "terminals", rows)
    timeout = _flags(columns, "timeouts", rows)
    ends = terminal | timeout
    ends[-1] = True
    if "episode" in columns:
        ends[:-1] |= columns["episode"][1:] != columns["episode"][:-1]
    if following is not None:
        axes = tuple(range(1, observations.ndim))
        breaks = np.any(observations[1:] != following[:-1], axis=axes) & ~ends[:-1]
        if breaks.any():
            notes.append(
                f"{int(breaks.sum())} rows are not followed by their next_observations though no flag says "
                f"so (first: row {int(np.argmax(breaks))}); each is taken as a time limit"
            )
            ends[:-1] |= breaks
    if "terminals" not in columns:
        notes.append("no column says which episodes ended as terminal: each end is taken as a time limit")
    extras = {name: column for name, column in columns.items() if name not in KNOWN}
    repeated = dropped = start = 0
    for end in (np.flatnonzero(ends) + 1).tolist():
        last = end  # one past the last step kept
        if following is not None:
            final = following[end - 1 : end]
        elif terminal[end - 1]:
            final = observations[end - 1 : end]
            repeated += 1
        else:
            last = end - 1
            final = observations[last:end]
            dropped += 1
        if last > start:
            steps = slice(start, last)
            yield Episode(
                observations=np.concatenate([observations[steps], final]),
                actions=columns["actions"][steps],
                rewards=columns["rewards"][steps],
                terminated=bool(terminal[last - 1]) and last == end,
                truncated=bool(timeout[last - 1]) or not terminal[end - 1],
                first_row=start,
                proposed_actions=_part(columns, "proposed_actions", steps),
                margins=_part(columns, "margins", steps),
                unsafe_events=_part(columns, "unsafe_events", steps),
                safe_sets=_safe_sets(columns, start, last, end),
                extras={name: column[steps] for name, column in extras.items()},
            )
        start = end
    if repeated:
        notes.append(
            f"the final observation of {repeated} terminated episodes is not in the file: last one repeated"
        )
    if dropped:
        notes.append(f"the last step of {dropped} cut episodes has no next observation in the file: left out")


def _names(columns: Mapping[str, Array]) -> str:
    names = sorted(columns)
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") or "nothing"


def _flags(columns: Mapping[str, Array], name: str, rows: int) -> Array:
    return columns[name].astype(bool).reshape(rows) if name in columns else np.zeros(rows, bool)


def _part(columns: Mapping[str, Array], name: str, steps: slice) -> Array | None:
    return columns[name][steps] if name in columns else None


def _safe_sets(columns: Mapping[str, Array], start: int, last: int, end: int) -> Array | None:
    """Codes at the T + 1 observations; the set after the last step comes from `next_safe_sets`."""
    if "safe_sets" not in columns:
        return None
    codes = columns["safe_sets"]
    if last < end:  # the row left out still says what is allowed in the final observation
        return codes[start:end]
    following = columns.get("next_safe_sets", codes)
    return np.concatenate([codes[start:end], following[end - 1 : end]])
