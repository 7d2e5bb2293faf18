"""Pictures as PNG, without a library."""

import struct
import zlib

import numpy as np

from rlpd_gx.types import Array


def png(image: Array) -> bytes:
    """An image [height, width, 3] of bytes as a PNG file."""
    height, width = image.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = image[..., :3].reshape(height, 3 * width)
    rows[:, 0] = 2  # each row is stored as its difference to the one above, which packs well
    rows[1:, 1:] -= image[:-1, :, :3].reshape(height - 1, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 4)), (b"IEND", b""))
    parts = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
