"""npz with the columns of the D4RL layout; `env_id` and `rules_fingerprint` may be strings in it."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlpd_gx.errors import GxError
from rlpd_gx.replay.offline import flat
from rlpd_gx.replay.offline.episode import Source, first_bytes, pickled

DESCRIPTION = "npz with observations, actions, rewards, terminals, timeouts"


def recognises(path: Path) -> bool:
    """A zip archive of .npy members."""
    if first_bytes(path, 2) != b"PK":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except zipfile.BadZipFile:  # a cut download: let `read` say so
        return path.suffix == ".npz"


def read(path: Path, mapping: Mapping[str, str] | None = None) -> Source:
    """`mapping` says `{name here: name in the file}` where they differ."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise pickled(path) from None
        raise GxError(f"{path}: an array in it cannot be read ({error}); save it again") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise GxError(
            f"{path}: the archive is damaged or cut short ({error}); copy or download it again"
        ) from None
    texts = {
        name: str(value) for name, value in found.items() if value.dtype.kind in "US" and value.ndim == 0
    }
    columns = flat.rename({k: v for k, v in found.items() if k not in texts}, mapping, path)
    rows = flat.check(columns, path)
    notes: list[str] = []
    return Source(
        episodes=flat.episodes(columns, path, notes),
        env_id=texts.get("env_id"),
        total_steps=rows,
        rules_fingerprint=texts.get("rules_fingerprint"),
        notes=notes,
    )
