"""Offline datasets: many formats in, one `OfflineDataset` out."""

from rlpd_gx.replay.offline.audit import audit
from rlpd_gx.replay.offline.dataset import OfflineDataset
from rlpd_gx.replay.offline.episode import ActionRange, Episode, Source
from rlpd_gx.replay.offline.formats import Format, register
from rlpd_gx.replay.offline.loading import LiveSafeSets, load
from rlpd_gx.replay.offline.safe_sets import as_online_rows, executed_margins, with_safe_sets

__all__ = [
    "ActionRange",
    "Episode",
    "Format",
    "LiveSafeSets",
    "OfflineDataset",
    "Source",
    "as_online_rows",
    "audit",
    "executed_margins",
    "load",
    "register",
    "with_safe_sets",
]
