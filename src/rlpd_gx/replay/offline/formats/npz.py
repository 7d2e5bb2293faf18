"""npz with the columns of the D4RL layout; the facts of `flat.FACTS` may be strings in it."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

from rlpd_gx.replay.offline import flat
from rlpd_gx.replay.offline.episode import Source, first_bytes
from rlpd_gx.trees import Json
from rlpd_gx.untrusted import read_npz

name = "npz"
description = "npz with observations, actions, rewards, terminals, timeouts"
meaning = flat.meaning


def detect(path: Path) -> bool:
    """A zip archive of .npy members."""
    if first_bytes(path, 2) != b"PK":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except Exception:  # damaged bytes raise anything: let `read` say so
        return path.suffix == ".npz"


def read(path: Path, mapping: Mapping[str, str] | None = None) -> Source:
    """`mapping` says `{name here: name in the file}` where they differ."""
    found = read_npz(path)
    texts = {
        name: str(value) for name, value in found.items() if value.dtype.kind in "US" and value.ndim == 0
    }
    columns = flat.rename({k: v for k, v in found.items() if k not in texts}, mapping, path)
    facts: Json = {fact: texts.get(fact) for fact in flat.FACTS}
    return flat.source(columns, path, **facts)
