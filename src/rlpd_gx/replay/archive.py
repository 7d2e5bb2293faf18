"""One file of arrays and JSON, without pickle: written whole or not at all, read without a second copy."""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlpd_gx import files
from rlpd_gx.errors import GxError
from rlpd_gx.trees import Json, JsonMapping
from rlpd_gx.types import Array

_CHUNK = 1 << 24
_STATE = "state.json"


def write(path: str | os.PathLike[str], arrays: Mapping[str, Array], state: JsonMapping) -> None:
    """Write a zip of .npy members and one JSON member; the old file stays until the new one is complete."""
    with files.whole_file(Path(path)) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_STATE, json.dumps(state))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


class Reader:
    """An open archive: its `state`, and its arrays, read into existing memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
            self.state: Json = json.loads(self._archive.read(_STATE))
        except (OSError, zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
            raise GxError(f"{path} cannot be read as a saved state: {error}") from error

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, name: str, target: Array) -> None:
        """Fill `target`, contiguous or at least along its first axis, with the array of this name."""
        try:
            with self._archive.open(f"{name}.npy") as member:
                np.lib.format.read_magic(member)
                shape, _, dtype = np.lib.format.read_array_header_1_0(member)
                if (shape, dtype) != (target.shape, target.dtype):
                    raise GxError(
                        f"{self._path}: {name} is {dtype} {shape}, not {target.dtype} {target.shape}"
                    )
                rows: list[Array] | Array = [target] if target.flags.c_contiguous else target
                for row in rows:
                    flat = memoryview(row.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
                    for start in range(0, len(flat), _CHUNK):
                        chunk = flat[start : start + _CHUNK]
                        chunk[:] = member.read(len(chunk))
        except (OSError, EOFError, zipfile.BadZipFile, KeyError, ValueError) as error:
            if isinstance(error, GxError):
                raise
            raise GxError(f"{self._path}: {name} cannot be read: {error}") from error
