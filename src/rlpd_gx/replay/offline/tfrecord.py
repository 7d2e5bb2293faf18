"""TFRecord files and `tf.train.Example` messages without TensorFlow.

A record is: length (uint64), masked CRC32C of the length (uint32), data, masked CRC32C of the data.
"""

import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from rlpd_gx.errors import GxError, missing_extra
from rlpd_gx.replay.offline.episode import first_bytes
from rlpd_gx.types import Array
from rlpd_gx.untrusted import check_size, reading

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_VARINT = 10  # bytes: 64 bits, seven in each


def records(path: Path) -> Iterator[bytes]:
    """The data of each record; a damaged one is an error that names its number."""
    masked = _masked_crc()

    def damaged(row: int, what: str) -> GxError:
        return GxError(f"{path}: record {row}: {what}; the file is damaged, copy or download it again")

    stored, packed = path.stat().st_size, _is_packed(path)
    with _open(path) as file:
        row = 0
        while True:
            place = f"{path}: record {row}"
            with reading(f"{place}: the gzip stream is cut short or damaged" if packed else place):
                header = file.read(12)
                if not header:
                    return
                if len(header) < 12:
                    raise damaged(row, "the file ends inside its length")
                length, length_crc = struct.unpack("<QI", header)
                if masked(header[:8]) != length_crc:
                    raise damaged(row, "the checksum (CRC32C) of its length is wrong")
                if not packed and length > stored:
                    raise damaged(row, "the file ends inside its data")
                check_size(place, length, stored, packed)
                data = file.read(length)
                footer = file.read(4)
            if len(data) < length or len(footer) < 4:
                raise damaged(row, "the file ends inside its data")
            if masked(data) != struct.unpack("<I", footer)[0]:
                raise damaged(row, "the checksum (CRC32C) of its data is wrong")
            yield data
            row += 1


def looks_like_tfrecord(path: Path) -> bool:
    """Whether the file, unpacked, starts with a length whose checksum fits."""
    if not path.is_file():
        return False
    try:
        with _open(path) as file:
            header = file.read(12)
    except Exception:  # damaged bytes raise anything
        return False
    return len(header) == 12 and _masked_crc()(header[:8]) == struct.unpack("<I", header[8:])[0]


def parse_example(message: bytes) -> dict[str, list[bytes] | Array]:
    """Features of a `tf.train.Example`: lists of bytes, float32 `[n]` or int64 `[n]`.

    Example { features = 1 { feature = 1 (map entry: key = 1, value = 2) } };
    Feature { bytes_list = 1 | float_list = 2 | int64_list = 3 }, each with `value = 1` repeated.
    """
    features: dict[str, list[bytes] | Array] = {}
    for number, block in _fields(message):
        if number != 1:
            continue
        for _, entry in _fields(cast(bytes, block)):
            parts = dict(_fields(cast(bytes, entry)))
            kind, values = next(iter(_fields(cast(bytes, parts.get(2, b"")))), (0, b""))
            name = cast(bytes, parts[1]).decode()
            items = [value for number, value in _fields(cast(bytes, values)) if number == 1]
            if kind == 1:
                features[name] = cast(list[bytes], items)
            elif kind == 2:  # packed or not, floats arrive as raw bytes
                features[name] = np.frombuffer(b"".join(cast(list[bytes], items)), "<f4")
            elif kind == 3:
                features[name] = _integers(items)
    return features


def _masked_crc() -> Callable[[bytes], int]:
    try:
        from google_crc32c import value as crc32c  # a checksum in pure Python is far too slow for gigabytes
    except ImportError:
        raise missing_extra("google-crc32c", "data") from None
    return lambda data: (((crc := crc32c(data)) >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_packed(path: Path) -> bool:
    return first_bytes(path, 2) == GZIP_MAGIC


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if _is_packed(path) else path.open("rb")


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) pairs of a protobuf message: varints as int, everything else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(message, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + length > len(message):
            raise ValueError("a field runs past the end")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(LONGEST_VARINT):
        if at >= len(message):
            raise ValueError("a number runs past the end")
        byte = message[at]
        value |= (byte & 0x7F) << 7 * place
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError(f"a number of more than {LONGEST_VARINT} bytes")


def _integers(items: list[bytes | int]) -> Array:
    numbers: list[int] = []
    for item in items:
        if isinstance(item, int):
            numbers.append(item)
            continue
        at = 0
        while at < len(item):
            number, at = _varint(item, at)
            numbers.append(number)
    return np.array(numbers, np.uint64).astype(np.int64)  # negative numbers are stored modulo 2**64
