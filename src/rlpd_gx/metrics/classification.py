"""How good predicted probabilities of events are: precision and recall at a threshold, and calibration."""

import numpy as np

from rlpd_gx.types import Array

BINS = 10


def threshold_for(risk: Array, event: Array, missed: float) -> float:
    """The largest threshold at which at most a share `missed` of the events lies below; risk, event [B]."""
    ordered = np.sort(risk[event])
    return float(ordered[int(missed * len(ordered))])


def classification(risk: Array, event: Array, threshold: float) -> dict[str, float]:
    """Precision and recall of `risk >= threshold` [B], Brier score, and expected calibration error over 10 bins."""
    flagged, count = risk >= threshold, max(len(risk), 1)
    right = float((flagged & event).sum())
    place = np.minimum((risk * BINS).astype(int), BINS - 1)
    gaps = [abs(float(risk[place == b].sum() - event[place == b].sum())) for b in range(BINS)]
    return {
        "precision": right / max(float(flagged.sum()), 1.0),
        "recall": right / max(float(event.sum()), 1.0),
        "brier": float(np.mean((risk - event) ** 2)),
        "calibration_error": sum(gaps) / count,
    }
