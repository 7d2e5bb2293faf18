"""D4RL-style HDF5: one row per step, `terminals` and `timeouts`, extra columns kept."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlpd_gx.errors import missing_extra
from rlpd_gx.replay.offline import flat, hdf5
from rlpd_gx.replay.offline.episode import Source, first_bytes
from rlpd_gx.trees import Json
from rlpd_gx.untrusted import reading

name = "d4rl"
description = "HDF5 with observations, actions, rewards, terminals, timeouts"
meaning = flat.meaning
MAGIC = b"\x89HDF\r\n\x1a\n"


def detect(path: Path) -> bool:
    """An HDF5 file."""
    return first_bytes(path, len(MAGIC)) == MAGIC


def read(path: Path, mapping: Mapping[str, str] | None = None) -> Source:
    """`mapping` says `{name here: name in the file}` where they differ; groups are named `infos/qpos`."""
    try:
        import h5py
    except ImportError:
        raise missing_extra("h5py", "data") from None
    with reading(path), h5py.File(path, "r") as file:
        attributes = dict(file.attrs)
        found = {name: np.asarray(node[()]) for name, node in hdf5.datasets(file, path).items() if node.ndim}
        facts: Json = {fact: _text(attributes.get(fact)) for fact in flat.FACTS}
    columns = flat.rename(found, mapping, path)
    # Datasets of another length under metadata/ or similar describe the file, not its steps.
    rows = len(columns.get("rewards", ()))
    columns = {k: v for k, v in columns.items() if k in flat.KNOWN or "/" not in k or len(v) == rows}
    return flat.source(columns, path, **facts)


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None else str(value)
