"""Ways to damage a file: blindly in its bytes, or with its format in mind and every checksum recomputed."""

import functools
import gzip
import io
import json
import struct
import zipfile
import zlib

import numpy as np

ODD = [
    None,
    True,
    -1,
    0.5,
    7,
    10**30,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "x",
    "ALE/Pong-v5",
    [],
    {},
    [[]],
]
VALUES = [np.nan, np.inf, -np.inf, 1e300, -1.0, 7.0, 0.5, 1e9]
HUGE = [2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1]
TYPES = ["U5", "S3", "M8[s]", "m8[s]", "c16", "f2", "f8", ">f4", "i1", ">i8", "u8", "?", "O", "V4"]


def damaged_bytes(data: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    """Bits flipped, cut, a piece overwritten, doubled, removed, inserted or exchanged, a size field enlarged."""
    kind = str(
        rng.choice(["flip", "flip", "flips", "cut", "zero", "double", "remove", "insert", "swap", "huge"])
    )
    spoiled = bytearray(data)
    if not spoiled:
        return b"\x00", "insert"
    at, other = (int(rng.integers(len(spoiled))) for _ in range(2))
    size = int(rng.integers(1, 64))
    if kind in ("flip", "flips"):
        for place in [at] if kind == "flip" else rng.integers(len(spoiled), size=rng.integers(2, 20)):
            spoiled[place] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del spoiled[at:]
    elif kind == "zero":
        spoiled[at : at + size] = bytes(len(spoiled[at : at + size]))
    elif kind == "double":
        spoiled[at:at] = spoiled[other : other + 16 * size]
    elif kind == "remove":
        del spoiled[at : at + size]
    elif kind == "insert":
        spoiled[at:at] = rng.bytes(size)
    elif kind == "swap":
        piece = bytes(spoiled[other : other + size])
        spoiled[at : at + len(piece)] = piece
    else:
        huge = HUGE[rng.integers(len(HUGE))].to_bytes(8, "little")
        width = int(rng.choice([4, 8]))
        spoiled[at : at + width] = huge[:width]
    return bytes(spoiled), f"{kind} at {at}"


def damaged_columns(columns: dict[str, np.ndarray], rng: np.random.Generator) -> tuple[dict, str]:
    """A column removed, renamed, of another type, shape or length, or with a value that must not be."""
    columns = {name: np.asarray(column) for name, column in columns.items()}
    name = str(rng.choice(list(columns)))
    column = columns[name]
    kind = str(rng.choice(["remove", "rename", "type", "shape", "value", "value", "shorter", "empty"]))
    if kind in ("remove", "rename"):
        del columns[name]
        if kind == "rename":
            columns[str(rng.choice(["dones", "x/y", "", "\u00e9", name + "s"]))] = column
    elif kind == "type":
        dtype = str(rng.choice(TYPES))
        columns[name] = np.zeros(column.shape, dtype) if dtype == "V4" else column.astype(dtype)
        kind = f"type {dtype}"
    elif kind == "shape":
        shapes = [(*column.shape, 1), (1, *column.shape), (-1,), (*column.shape[:1], 1, -1)]
        columns[name] = column.reshape(shapes[rng.integers(len(shapes))])
    elif kind == "value":
        value = float(rng.choice(VALUES))
        spoiled = column.astype(np.float64)
        spoiled.reshape(-1)[rng.integers(max(1, column.size))] = value
        columns[name] = spoiled
        kind = f"value {value}"
    else:
        columns[name] = column[:-1] if kind == "shorter" and column.ndim else np.zeros((0, *column.shape[1:]))
    return columns, f"{name!r}: {kind}"


def damaged_json(value: object, rng: np.random.Generator) -> tuple[object, str]:
    """One place in nested lists and dicts replaced, removed, renamed or doubled."""
    value = json.loads(json.dumps(value))
    node, path = value, ""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[rng.integers(len(keys))]
        path += f"/{key}"
        child = node[key]
        if not (isinstance(child, dict | list) and child) or rng.random() < 0.3:
            break
        node = child
    kind = str(rng.choice(["replace", "replace", "replace", "remove", "rename", "double"]))
    if kind == "rename" and isinstance(node, dict):
        node[f"{key}s"] = node.pop(key)
    elif kind == "remove":
        del node[key]
    elif kind == "double" and isinstance(node, list):
        node.insert(key, child)
    else:
        odd = ODD[rng.integers(len(ODD))]
        kind, node[key] = f"is {odd!r}", odd
    return value, f"{path}: {kind}"


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """A .npy file that may declare another shape than it has."""
    out = io.BytesIO()
    descr = {
        "descr": array.dtype.str,
        "fortran_order": False,
        "shape": array.shape if shape is None else shape,
    }
    np.lib.format.write_array_header_2_0(out, descr)
    return out.getvalue() + array.tobytes()


def npz(columns: dict[str, np.ndarray], packed: bool = False, shapes: dict | None = None) -> bytes:
    """An .npz whose arrays may declare other shapes than they have."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, column in columns.items():
            archive.writestr(f"{name}.npy", npy(column, (shapes or {}).get(name)))
    return out.getvalue()


@functools.cache
def bomb(kind: str) -> bytes:
    """320 MiB of zeros in a few hundred kilobytes: a gzip member, or an .npz with the array `rewards`."""
    out, zeros = io.BytesIO(), bytes(1 << 20)
    if kind == "gzip":
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9, mtime=0) as stream:
            for _ in range(320):
                stream.write(zeros)
        return out.getvalue()
    packed = zipfile.ZIP_DEFLATED
    with (
        zipfile.ZipFile(out, "w", packed, compresslevel=9) as archive,
        archive.open("rewards.npy", "w") as member,
    ):
        member.write(npy(np.zeros(0, np.uint8), (320 << 20,)))
        for _ in range(320):
            member.write(zeros)
    return out.getvalue()


def huge_png(side: int) -> bytes:
    """A PNG of a few bytes that declares side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
