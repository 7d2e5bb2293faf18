"""Safe sets for offline rows. Rules belong to another layer: they are passed in as functions."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from rlpd_gx import trees
from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import cache
from rlpd_gx.replay.offline.dataset import ASSUMED, KNOWN, OfflineDataset
from rlpd_gx.replay.offline.episode import same_spec
from rlpd_gx.replay.timeline import Timeline
from rlpd_gx.safe_sets import Mask, SafeSet, Spec, decode
from rlpd_gx.trees import Json, Tree
from rlpd_gx.types import Array

Sets = SafeSet | Array
Encode = Callable[[Tree, Mapping[str, Tree]], Sets | tuple[Sets, Array]]
"""(states [k, ...] or dict of such, context) -> k safe sets or their codes [k, width], or with known [k] bool."""
Missing = Literal["error", "assume-all", "drop"]


class _Found(NamedTuple):
    """Codes [n, width] (None if there are none at all), which rows are known [n], and the spec of the codes."""

    codes: Array | None
    known: Array
    spec: Spec | None = None


def with_safe_sets(
    dataset: OfflineDataset,
    encode: Encode | None,
    fingerprint: str,
    *,
    missing: Missing = "error",
    everything_allowed: Sets | None = None,
    state_fingerprint: str | None = None,
    unreadable: str = "no rule can read it from the stored state",
    batch_rows: int = 4096,
) -> OfflineDataset:
    """The dataset with a safe set in every row, made by the rules with this fingerprint.

    Taken from the file where the fingerprint matches, else computed in batches by `encode` from the stored
    states, and cached. The context has `previous_action`, `episode_step` and the rows' `extras`.
    Rows for which nothing can be known (`unreadable` says why) are an error, or count as `everything_allowed`
    (the full set, or its code [width]), or are left out. `state_fingerprint` is of what `encode` does to stored
    observations before rules read them.
    """
    if missing not in ("error", "assume-all", "drop"):
        raise GxError(f"--offline-safe-sets is {missing!r}, but it must be assume-all, drop or error")
    if dataset.rules_fingerprint not in (None, fingerprint, f"{ASSUMED}{fingerprint}"):
        unknown = np.full_like(dataset.timeline.margin, np.nan)  # those in the file are of other rules
        dataset = replace(dataset, timeline=replace(dataset.timeline, margin=unknown))
    if _made_by(dataset, fingerprint, state_fingerprint):
        found = _Found(dataset.timeline.safe_set, dataset.has_safe_set, dataset.safe_set_spec)
    elif encode is None:
        found = _Found(None, np.zeros(len(dataset.timeline), bool))
    else:
        found = _computed(dataset, encode, fingerprint, state_fingerprint, batch_rows)
        dataset = replace(dataset, state_fingerprint=state_fingerprint)
    codes, known = found.codes, found.known | ~dataset.needs_safe_set
    if known.all() and codes is not None:
        same = codes is dataset.timeline.safe_set
        return dataset if same else _with_codes(dataset, found, fingerprint)
    if missing == "error":
        raise _nothing_known(dataset, fingerprint, known, unreadable)
    if missing == "assume-all":
        return _assumed(dataset, found._replace(known=known), fingerprint, everything_allowed)
    needed = known.copy()
    needed[:-1] &= known[1:] | ~dataset.timeline.is_step[:-1]  # a step needs the set at s and at s'
    if codes is None or not (needed & dataset.timeline.is_step).any():
        raise GxError(
            f"{dataset.name}: no row has a safe set, so drop leaves nothing; choose assume-all or other data"
        )
    kept = _with_codes(dataset, found, fingerprint).keep(needed)
    said = (
        f"{dataset.name}: {dataset.steps - kept.steps} of {dataset.steps} steps left out: the safe set before or "
        "after them is unknown"
    )
    return replace(kept, findings=(*kept.findings, said))


def executed_margins(dataset: OfflineDataset) -> Array:
    """[n] margin of each executed action: that in its stored safe set (+1 or -1 in a mask), or a lower one in the file.

    NaN where neither is known: an untested action, the last state of an episode.
    """
    line = dataset.timeline
    if dataset.safe_set_spec is None or not line.safe_set.shape[1]:
        return line.margin
    margin = np.asarray(_sets(dataset).margin(_flat_actions(line)))
    return np.fmin(np.where(line.is_step, margin, np.nan), line.margin).astype(np.float32)


def as_online_rows(dataset: OfflineDataset) -> OfflineDataset:
    """The rows as the replay buffer stores its own.

    Forbidden actions have a margin below zero, so that spans end before them. A set that allows nothing holds the
    action that ran, alone, so that a backup has something to use; in the last state of an episode the one before.
    """
    line, codes = dataset.timeline, dataset.timeline.safe_set
    margin = executed_margins(dataset)
    rows = np.flatnonzero(~(margin >= 0))  # elsewhere the set holds what ran
    if dataset.safe_set_spec is not None and codes.shape[1] and rows.size:
        sets, ran = _sets(dataset)[rows], _flat_actions(line)[np.where(line.is_step[rows], rows, rows - 1)]
        empty = ~sets.allowed.any(axis=1) if isinstance(sets, Mask) else np.asarray(sets.nearest(ran).empty)
        if empty.any():
            codes = np.array(codes)
            codes[rows[empty]] = sets[empty].only(ran[empty]).encode()
    return replace(dataset, timeline=replace(line, margin=margin, safe_set=codes))


def _sets(dataset: OfflineDataset) -> SafeSet:
    """The safe sets of all rows; where masks list joint actions, of their numbers, since that is what rows hold."""
    assert dataset.safe_set_spec is not None
    sets = decode(dataset.timeline.safe_set, dataset.safe_set_spec)
    if isinstance(sets, Mask) and sets.nvec is not None:
        return Mask(sets.allowed, sets.tested)
    return sets


def _flat_actions(line: Timeline) -> Array:
    action = line.executed_action
    return action.reshape(len(action), -1) if action.ndim > 1 else action


def _made_by(dataset: OfflineDataset, fingerprint: str, state_fingerprint: str | None) -> bool:
    """Whether the stored codes are of these rules; without a spec nobody can read them."""
    same_state = state_fingerprint in (None, dataset.state_fingerprint)
    return bool(
        dataset.rules_fingerprint == fingerprint
        and same_state
        and dataset.safe_set_spec is not None
        and dataset.timeline.safe_set.shape[1]
    )


def _with_codes(dataset: OfflineDataset, found: _Found, fingerprint: str) -> OfflineDataset:
    assert found.codes is not None
    columns = {**dataset.timeline.columns(), "safe_set": found.codes}
    if found.known.all():
        columns.pop(f"extras/{KNOWN}", None)
    else:
        columns[f"extras/{KNOWN}"] = found.known
    line = Timeline.from_columns(columns)
    return replace(dataset, timeline=line, rules_fingerprint=fingerprint, safe_set_spec=found.spec)


def _assumed(
    dataset: OfflineDataset, found: _Found, fingerprint: str, everything_allowed: Sets | None
) -> OfflineDataset:
    if everything_allowed is None:
        raise GxError("assume-all needs the code of the full set; the rules must provide it")
    full, spec = _encoded(everything_allowed)
    if spec is not None:
        spec = same_spec(found.spec, spec)
    codes = np.tile(full, (len(found.known), 1))
    if found.codes is not None:
        codes = np.where(found.known[:, None], found.codes, codes)
    said = f"{np.count_nonzero(~found.known)} rows count every action as allowed: their safe sets are unknown"
    dataset = replace(dataset, findings=(*dataset.findings, said))
    # Must not be mistaken for real safe sets.
    return _with_codes(dataset, _Found(codes, found.known, spec), f"{ASSUMED}{fingerprint}")


def _computed(
    dataset: OfflineDataset, encode: Encode, fingerprint: str, state_fingerprint: str | None, batch_rows: int
) -> _Found:
    line = dataset.timeline
    key = fingerprint if state_fingerprint is None else f"{fingerprint} {state_fingerprint}"
    if dataset.folder and (kept := cache.read_safe_sets(dataset.folder, key)) is not None:
        return _Found(kept[0], np.ones(len(line), bool), kept[1])
    codes: Array | None = None
    spec: Spec | None = None
    known = np.zeros(len(line), bool)
    for start in range(0, len(line), batch_rows):
        rows = slice(start, min(start + batch_rows, len(line)))
        answer = encode(trees.index(line.observation, rows), _context(line, rows))
        sets, known[rows] = answer if isinstance(answer, tuple) else (answer, True)
        if not known[rows].any():
            continue
        batch, batch_spec = _encoded(sets)
        spec = batch_spec if batch_spec is None else same_spec(spec, batch_spec)
        if codes is None:
            codes = np.zeros((len(line), batch.shape[1]), batch.dtype)
        codes[rows] = batch
    if codes is not None and dataset.folder and known.all() and os.access(dataset.folder, os.W_OK):
        cache.write_safe_sets(dataset.folder, key, codes, spec)
    return _Found(codes, known, spec)


def _encoded(sets: Sets) -> tuple[Array, Spec | None]:
    return (np.asarray(sets.encode()), sets.spec) if isinstance(sets, SafeSet) else (sets, None)


def _context(line: Timeline, rows: slice) -> Json:
    """What a rule may ask for beside the state.

    The previous action is zero in the first row of an episode, and -1 where an id is not known.
    """
    before = np.arange(rows.start, rows.stop) - 1
    previous = np.array(line.executed_action[np.maximum(before, 0)])
    previous[line.episode_step[rows] == 0] = 0
    return {
        "previous_action": previous,
        "episode_step": line.extras.get("step_in_episode", line.episode_step)[rows],
        "extras": trees.index(line.extras, rows),
    }


def _nothing_known(dataset: OfflineDataset, fingerprint: str, known: Array, unreadable: str) -> GxError:
    row = int(np.flatnonzero(~known)[0])
    stored = dataset.rules_fingerprint if dataset.timeline.safe_set.shape[1] else None
    if stored == fingerprint and dataset.safe_set_spec is None:
        why = f"the file does not tell how to read its codes (safe_set_spec) and {unreadable}"
    elif stored == fingerprint:
        why = "the rules could not be asked when it was recorded or replayed"
    elif stored:
        why = f"those in the file were made by other rules ({stored}, not {fingerprint}) and {unreadable}"
    else:
        why = f"the file has none and {unreadable}"
    return GxError(
        f"{dataset.name}: 'safe_set', row {row}: the safe set is unknown: {why}. The guarded backup counts only "
        "allowed next actions, so it cannot use such a row; choose --offline-safe-sets assume-all (every action "
        "counts as allowed there) or drop (such rows are left out)"
    )
