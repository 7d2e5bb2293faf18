"""Files that may be damaged or hostile: declared sizes are checked before use, and nothing is unpickled."""

import gzip
import io
import math
import zipfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rlpd_gx.errors import GxError, first_line

UNPACKED_TIMES, UNPACKED_FLOOR = 250, 1 << 28
"""Packed data may unpack to this many times its size, or to 256 MiB where that is more."""
AGAIN = "copy or download it again"


@contextmanager
def reading(place: object, remedy: str = AGAIN) -> Iterator[None]:
    """Turn what a library raises about damaged bytes into one sentence; which exceptions come is undocumented."""
    try:
        yield
    except GxError:
        raise
    except Exception as error:
        raise GxError(f"{place}: cannot be read ({first_line(error)[:200]}); {remedy}") from error


def check_size(place: object, declared: int, stored: int, packed: bool) -> None:
    """Raise if `declared` bytes cannot come out of `stored` ones."""
    most = max(UNPACKED_FLOOR, UNPACKED_TIMES * stored) if packed else stored
    if declared > most:
        raise GxError(
            f"{place}: declares {declared} bytes but stores {stored}, and at most {most} are read from that; "
            + ("if this is real, store it without compression" if packed else AGAIN)
        )


def pickled(place: object) -> GxError:
    """The refusal of pickled data, with the way out."""
    return GxError(
        f"{place}: holds pickled Python objects, and opening a pickle runs whatever code it contains, so it "
        "is refused; in the program that made it, save plain arrays instead: "
        "numpy.savez(file, observations=..., actions=..., rewards=..., terminals=..., timeouts=...)"
    )


def npy_header(
    stream: IO[bytes] | gzip.GzipFile, place: object
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, Fortran order, dtype) of a .npy stream, which is then at its first number."""
    with reading(place):
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise GxError(
                f"{place}: is a .npy of version {version}; save plain numbers with numpy 1.x or 2.x"
            )
        parse = (
            np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        )
        shape, fortran_order, dtype = parse(stream)
        if dtype.hasobject:
            raise pickled(place)
        if any(size < 0 for size in shape):
            raise ValueError(f"shape {shape}")
    return tuple(map(int, shape)), fortran_order, dtype


def read_npz(path: Path, wanted: Container[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file (only those `wanted`, if given), every checksum verified."""
    arrays = {}
    with reading(path), zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if wanted is None or info.filename[:-4] in wanted]
        if len({info.filename for info in members}) < len(members):
            raise GxError(f"{path}: holds two arrays of one name; save it again")
        packed = any(info.compress_type != zipfile.ZIP_STORED for info in members)
        check_size(path, sum(info.file_size for info in members), path.stat().st_size, packed)
        for info in members:
            name = info.filename.removesuffix(".npy")
            arrays[name] = _npy(archive.read(info), f"{path}: {name!r}")  # to its end, so the CRC is checked
    return arrays


def _npy(data: bytes, place: str) -> NDArray[Any]:
    stream = io.BytesIO(data)
    shape, fortran_order, dtype = npy_header(stream, place)
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise GxError(
            f"{place}: has {len(data) - stream.tell()} bytes, but its header declares another number"
        )
    flat = np.frombuffer(data, dtype, offset=stream.tell()) if math.prod(shape) else np.zeros(0, dtype)
    return flat.reshape(shape, order="F" if fortran_order else "C")


def gunzip(path: Path) -> bytes:
    """All of a gzip file, its CRC verified."""
    most = max(UNPACKED_FLOOR, UNPACKED_TIMES * path.stat().st_size)
    with reading(f"{path}: the gzip stream is cut short or damaged"), gzip.open(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        check_size(path, len(content), path.stat().st_size, packed=True)
    return content
