"""What stored rows say about rules."""

import numpy as np

from rlpd_gx.replay.offline import OfflineDataset
from rlpd_gx.safe_sets import Mask, decode
from rlpd_gx.types import Array


def forbidden(data: OfflineDataset) -> Array:
    """[n] bool: steps whose executed action their stored safe set forbids; untested actions are not."""
    line = data.timeline
    if data.safe_set_spec is None or not line.safe_set.shape[1]:
        return np.zeros(len(line), bool)
    sets, action = decode(line.safe_set, data.safe_set_spec), line.executed_action
    if not isinstance(sets, Mask):
        return line.is_step & (np.asarray(sets.margin(action)) < 0)
    place = action if sets.nvec is not None else action - sets.start  # joint actions are stored by number
    return line.is_step & np.take_along_axis(sets.tested & ~sets.allowed, place[:, None], axis=1)[:, 0]
