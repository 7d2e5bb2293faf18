"""Atari screens as in the benchmark; environments and replayed logs share this code."""

import numpy as np
from numpy.typing import NDArray

from rlpd_gx.errors import missing_extra

SIDE = 84


def grey84(screen: NDArray[np.uint8], before: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """[84, 84] uint8: the brighter of the last two grey frames (sprites flicker), averaged over areas."""
    try:
        import cv2  # Pillow's box filter rounds differently; the benchmark is defined by OpenCV's
    except ImportError:
        raise missing_extra("opencv", "atari") from None
    if before is not None:
        screen = np.maximum(screen, before)
    return np.asarray(cv2.resize(screen, (SIDE, SIDE), interpolation=cv2.INTER_AREA), dtype=np.uint8)
