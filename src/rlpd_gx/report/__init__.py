"""Reports read run folders, never models: they use only what is in the files."""

import os
from collections.abc import Sequence
from pathlib import Path

from rlpd_gx.report.inspector.static import write_page

__all__ = ["write_comparison", "write_report"]


def write_report(run_folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into a run folder from the files there, and return its path."""
    folder = Path(run_folder)
    return write_page([folder], folder / "report.html")


def write_comparison(folders: Sequence[Path]) -> Path:
    """Write `comparison.html` into the first folder: the runs side by side, and each of them in full."""
    return write_page(folders, folders[0] / "comparison.html")
