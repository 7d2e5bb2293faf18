"""Safe sets for offline rows. Rules live in another layer: what is needed of them comes in as functions."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import cache
from rlpd_gx.replay.offline.dataset import OfflineDataset
from rlpd_gx.replay.timeline import Timeline
from rlpd_gx.types import Array

Encode = Callable[[Any, Mapping[str, Any]], Array | tuple[Array, Array]]
"""(states [k, ...] or dict of such, context) -> codes [k, width], or (codes, known [k] bool)."""
Missing = Literal["error", "assume-all", "drop"]


def with_safe_sets(
    dataset: OfflineDataset,
    encode: Encode | None,
    fingerprint: str,
    *,
    missing: Missing = "error",
    everything_allowed: Array | None = None,
    batch_rows: int = 4096,
) -> OfflineDataset:
    """The dataset with a safe set in every row, made by the rules with this fingerprint.

    Taken from the file where the fingerprint matches, else computed in batches by `encode` from the stored
    states, and kept in the cache. The context has `previous_action`, `episode_step` and the rows' `extras`.
    Rows for which nothing can be known are an error, or count as `everything_allowed` [width] (the code of
    the full set), or are left out.
    """
    if missing not in ("error", "assume-all", "drop"):
        raise GxError(f"--offline-safe-sets is {missing!r}, but it must be assume-all, drop or error")
    if dataset.rules_fingerprint == fingerprint and dataset.timeline.safe_set.shape[1]:
        return dataset
    if encode is None:
        codes, known = None, np.zeros(len(dataset.timeline), bool)
    else:
        codes, known = _computed(dataset, encode, fingerprint, batch_rows)
    if known.all() and codes is not None:
        return _with_codes(dataset, codes, fingerprint)
    if missing == "error":
        raise _nothing_known(dataset, fingerprint, known)
    if missing == "assume-all":
        if everything_allowed is None:
            raise GxError("assume-all needs the code of the full set; the rules must provide it")
        full = np.tile(everything_allowed, (len(known), 1))
        codes = full if codes is None else np.where(known[:, None], codes, full)
        said = f"{np.count_nonzero(~known)} rows count every action as allowed: their safe sets are unknown"
        dataset = replace(dataset, findings=(*dataset.findings, said))
        return _with_codes(dataset, codes, f"assumed:{fingerprint}")  # never to be taken for the real ones
    needed = known.copy()
    needed[:-1] &= known[1:] | ~dataset.timeline.is_step[:-1]  # a step needs the set at s and at s'
    if codes is None or not (needed & dataset.timeline.is_step).any():
        raise GxError(
            f"{dataset.name}: no row has a safe set, so drop leaves nothing; choose assume-all or other data"
        )
    return _with_codes(dataset, codes, fingerprint).keep(needed)


def _with_codes(dataset: OfflineDataset, codes: Array, fingerprint: str) -> OfflineDataset:
    columns = {**dataset.timeline.columns(), "safe_set": codes}
    return replace(dataset, timeline=Timeline.from_columns(columns), rules_fingerprint=fingerprint)


def _computed(
    dataset: OfflineDataset, encode: Encode, fingerprint: str, batch_rows: int
) -> tuple[Array, Array]:
    """Codes [n, width] and which rows are known [n]."""
    line = dataset.timeline
    file = cache.safe_set_file(dataset.folder, fingerprint) if dataset.folder else None
    if file is not None and file.is_file():
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)), np.ones(len(line), bool)
    codes: Array | None = None
    known = np.ones(len(line), bool)
    for start in range(0, len(line), batch_rows):
        rows = slice(start, min(start + batch_rows, len(line)))
        answer = encode(_states(line, rows), _context(line, rows))
        batch, batch_known = answer if isinstance(answer, tuple) else (answer, np.ones(len(answer), bool))
        if codes is None:
            codes = np.zeros((len(line), batch.shape[1]), batch.dtype)
        codes[rows], known[rows] = batch, batch_known
    assert codes is not None
    if file is not None and known.all() and os.access(file.parent, os.W_OK):
        cache.write_array(file, codes)
    return codes, known


def _states(line: Timeline, rows: slice) -> Any:
    if isinstance(line.observation, Mapping):
        return {name: part[rows] for name, part in line.observation.items()}
    return line.observation[rows]


def _context(line: Timeline, rows: slice) -> dict[str, Any]:
    """What a rule may ask for beside the state.

    The previous action is zero in the first row of an episode, and -1 where an id is not known.
    """
    before = np.arange(rows.start, rows.stop) - 1
    previous = np.array(line.executed_action[np.maximum(before, 0)])
    previous[line.episode_step[rows] == 0] = 0
    return {
        "previous_action": previous,
        "episode_step": line.extras.get("step_in_episode", line.episode_step)[rows],
        "extras": {name: column[rows] for name, column in line.extras.items()},
    }


def _nothing_known(dataset: OfflineDataset, fingerprint: str, known: Array) -> GxError:
    row = int(np.flatnonzero(~known)[0])
    if dataset.rules_fingerprint and dataset.timeline.safe_set.shape[1]:
        why = f"those in the file were made by other rules ({dataset.rules_fingerprint}, not {fingerprint})"
    else:
        why = "the file has none"
    return GxError(
        f"{dataset.name}: 'safe_set', row {row}: the safe set is unknown: {why} and no rule can read it from "
        "the stored state. The guarded backup counts only allowed next actions, so it cannot use such a row; "
        "choose --offline-safe-sets assume-all (every action counts as allowed there) or drop (such rows are "
        "left out)"
    )
