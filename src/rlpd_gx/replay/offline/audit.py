"""What is in a dataset, before anything is trained on it."""

from collections.abc import Mapping

import numpy as np
from rich.markup import escape
from rich.table import Table

from rlpd_gx import trees
from rlpd_gx.replay.offline.dataset import ASSUMED, OfflineDataset
from rlpd_gx.safe_sets import decode
from rlpd_gx.safe_sets.asked import Asked
from rlpd_gx.trees import Json, JsonMapping, Tree
from rlpd_gx.types import Array

BATCH_ROWS = 4096


def audit(dataset: OfflineDataset) -> Json:
    """Facts and findings as plain numbers, lists and strings."""
    line = dataset.timeline
    steps = line.is_step
    episode = np.cumsum(line.episode_step == 0) - 1
    returns = np.bincount(episode, weights=np.where(steps, line.reward, 0).astype(np.float64))
    lengths = np.bincount(episode, weights=steps)
    rewards, actions = line.reward[steps], line.executed_action[steps]
    report: Json = {
        "name": dataset.name,
        "format": dataset.format,
        "env_id": dataset.env_id,
        "rows": len(line),
        "steps": dataset.steps,
        "episodes": dataset.episodes,
        "terminated_episodes": int(np.count_nonzero(line.terminated)),
        "truncated_episodes": int(np.count_nonzero(line.truncated)),
        "episode_steps": _spread(lengths),
        "episode_return": _spread(returns),
        "reward": _spread(rewards),
        "observation": _observation(line.observation),
        "action": _actions(actions),
        "actions_out_of_range_steps": _outside(dataset, actions),
        "corrected_share": _corrected(dataset, line.proposed_action[steps], actions),
        "unsafe_share": float(np.mean(line.unsafe_event[steps])) if dataset.knows_unsafe_events else None,
        "not_finite_rows": _not_finite(dataset),
        "safe_sets": _safe_sets(dataset),
        "extras": sorted(line.extras),
        "findings": list(dataset.findings),
    }
    if report["safe_sets"]["missing_rows"] and not (dataset.rules_fingerprint or "").startswith(ASSUMED):
        report["findings"].append(
            f"{report['safe_sets']['missing_rows']} rows have no safe set: give `data convert` --rules that can "
            "read the stored state, or choose --offline-safe-sets assume-all or drop there"
        )
    empty, missing = report["safe_sets"]["empty_rows"], report["safe_sets"]["missing_rows"]
    if empty and empty + missing == np.count_nonzero(dataset.needs_safe_set):
        report["findings"].append(
            f"the safe sets of all {empty} rows that have one allow no action; check the rules that made them"
        )
    return report


def as_table(report: JsonMapping) -> Table:
    """The report for a terminal. Names of files and columns may hold brackets, which rich would read as markup."""
    title = escape(f"{report['name']} ({report['format']})")
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in report.items():
        if key not in ("name", "format", "findings"):
            table.add_row(key.replace("_", " "), escape(_as_text(value)))
    for finding in report["findings"]:
        table.add_row("finding", escape(finding), style="yellow")
    if not report["findings"]:
        table.add_row("findings", "none", style="green")
    return table


def _as_text(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_as_text(part)}" for key, part in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(_as_text(part) for part in value) or "none"
    return str(value)


def _spread(values: Array) -> dict[str, float] | None:
    """Of the finite values; the others are counted separately."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return {"min": float(np.min(values)), "mean": float(np.mean(values)), "max": float(np.max(values))}


def _observation(observation: Tree) -> dict[str, str]:
    parts = trees.named_leaves(observation)
    return {name or "all": f"{part.dtype}{list(part.shape[1:])}" for name, part in parts.items()}


def _actions(actions: Array) -> Json:
    if actions.dtype.kind in "iu" and actions.ndim == 1:
        ids, counts = np.unique(actions, return_counts=True)
        return {f"id {number}": int(count) for number, count in zip(ids, counts, strict=True)}
    actions = actions[np.isfinite(actions.reshape(len(actions), -1)).all(axis=1)]
    if not len(actions):
        return {}
    return {"min": actions.min(axis=0).tolist(), "max": actions.max(axis=0).tolist()}


def _outside(dataset: OfflineDataset, actions: Array) -> int | None:
    """Steps with an action outside the range; None where the range is not known."""
    allowed = dataset.actions
    return None if allowed is None else int(np.count_nonzero(allowed.outside(actions)))


def _corrected(dataset: OfflineDataset, proposed: Array, executed: Array) -> float | None:
    """The fraction of steps whose proposal was not executed; None where no proposals were recorded."""
    if dataset.knows_proposals is False:
        return None
    share = float(np.mean((proposed != executed).reshape(len(executed), -1).any(axis=1)))
    return share if dataset.knows_proposals or share else None  # an older folder does not say


def _not_finite(dataset: OfflineDataset) -> dict[str, int]:
    """Rows with NaN or infinity, by column. An unknown margin is NaN on purpose, an open bound infinite."""
    found = {}
    for name, column in dataset.timeline.columns().items():
        if column.dtype.kind == "f" and name not in ("margin", "safe_set") and not np.isfinite(column).all():
            bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
            found[name] = int(np.count_nonzero(bad))
    return found


def _safe_sets(dataset: OfflineDataset) -> Json:
    """Counts over the rows that are s or s' of a step; None where the codes cannot be read."""
    needed = dataset.needs_safe_set
    rows, missing = int(needed.sum()), int((needed & ~dataset.has_safe_set).sum())
    empty = None
    if dataset.safe_set_spec is not None:
        empty = _empty(dataset, np.flatnonzero(needed & dataset.has_safe_set))
    return {
        "rules": dataset.rules_fingerprint,
        "missing_rows": missing,
        "missing_share": missing / rows,
        "empty_rows": empty,
        "empty_share": None if empty is None else empty / rows,
    }


def _empty(dataset: OfflineDataset, rows: Array) -> int:
    """How many of these rows allow no action at all."""
    line, spec, count = dataset.timeline, dataset.safe_set_spec, 0
    assert spec is not None
    for some in np.array_split(rows, len(rows) // BATCH_ROWS + 1):
        anywhere = np.zeros_like(line.executed_action[some])
        if anywhere.ndim > 2:
            anywhere = anywhere.reshape(len(some), -1)
        sets = decode(line.safe_set[some], spec)
        # only the convex part can prove emptiness, and the rules are not loaded here
        if isinstance(sets, Asked):
            sets = sets.convex
        count += int(np.count_nonzero(sets.nearest(anywhere).empty))
    return count
