"""D4RL-style HDF5: one row per step, `terminals` and `timeouts`, extra columns kept."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.replay.offline import flat
from rlpd_gx.replay.offline.episode import Source, first_bytes, problem
from rlpd_gx.types import Array

DESCRIPTION = "HDF5 with observations, actions, rewards, terminals, timeouts"
MAGIC = b"\x89HDF\r\n\x1a\n"


def recognises(path: Path) -> bool:
    """An HDF5 file."""
    return first_bytes(path, len(MAGIC)) == MAGIC


def read(path: Path, mapping: Mapping[str, str] | None = None) -> Source:
    """`mapping` says `{name here: name in the file}` where they differ; groups are named `infos/qpos`."""
    try:
        import h5py
    except ImportError:
        raise missing_extra("h5py", "data") from None
    found: dict[str, Array] = {}

    def collect(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset) and node.ndim > 0:
            if node.dtype.kind not in "biuf":
                raise problem(
                    path, name, None, f"holds {node.dtype}, not numbers", "remove it or store numbers"
                )
            found[name] = np.asarray(node[()])

    try:
        with h5py.File(path, "r") as file:
            attributes = dict(file.attrs)
            file.visititems(collect)
    except OSError as error:
        raise GxError(f"{path}: the HDF5 file cannot be read ({error}); copy or download it again") from None
    columns = flat.rename(found, mapping, path)
    # Datasets of another length under metadata/ or similar describe the file, not its steps.
    rows = len(columns.get("rewards", ()))
    columns = {k: v for k, v in columns.items() if k in flat.KNOWN or "/" not in k or len(v) == rows}
    flat.check(columns, path)
    notes: list[str] = []
    return Source(
        episodes=flat.episodes(columns, path, notes),
        env_id=_text(attributes.get("env_id")),
        total_steps=rows,
        rules_fingerprint=_text(attributes.get("rules_fingerprint")),
        notes=notes,
    )


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None else str(value)
