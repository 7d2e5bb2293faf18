"""Reports read run folders, never models: they use only what is in the files."""

import os
from pathlib import Path

from rlpd_gx.report.comparison import FILM, write_comparison
from rlpd_gx.report.inspector.static import write_page

__all__ = ["FILM", "write_comparison", "write_report"]


def write_report(run_folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into a run folder from the files there, and return its path."""
    folder = Path(run_folder)
    return write_page([folder], folder / "report.html")
