"""The steps of one environment as the segments of a ring hold them, in order, without the ring."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay import archive
from rlpd_gx.replay.storage import record_dtype
from rlpd_gx.replay.timeline import Layout
from rlpd_gx.trees import JsonMapping
from rlpd_gx.types import Array


def stored_steps(
    folder: Path, names: Sequence[JsonMapping], ring: JsonMapping, layout: Layout, env: int
) -> Array:
    """Records [n] of `record_dtype(layout)`: all rows of an environment from its first on.

    `names` and `ring` are `segments` and `ring` of a checkpoint. Large observations are not read.
    """
    written = ring["written"][env]
    if written > ring["rows"]:
        raise GxError("the replay buffer is full and has dropped the first episodes, so none can be replayed")
    rows = np.zeros(written, record_dtype(layout))
    for entry in names:
        counts = np.array(entry["stop"]) - np.array(entry["first"])
        part = np.empty((int(counts.sum()), rows.dtype.itemsize), np.uint8)
        with archive.Reader(folder / entry["name"]) as segment:
            segment.read("records", part)
        start = int(counts[:env].sum())
        mine = part[start : start + int(counts[env])]
        rows[entry["first"][env] : entry["stop"][env]] = mine.reshape(-1).view(rows.dtype)
    return rows
