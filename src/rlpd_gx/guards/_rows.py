"""What stored rows say about rules."""

import numpy as np

from rlpd_gx.replay.offline import OfflineDataset
from rlpd_gx.safe_sets import decode
from rlpd_gx.types import Array


def forbidden(data: OfflineDataset) -> Array:
    """[n] bool: steps whose executed action their stored safe set forbids; untested actions are not."""
    line = data.timeline
    if data.safe_set_spec is None or not line.safe_set.shape[1]:
        return np.zeros(len(line), bool)
    margin = np.asarray(decode(line.safe_set, data.safe_set_spec).margin(line.executed_action))
    return line.is_step & (margin < 0)
