"""Reports read run folders, never models: they use only what is in the files."""

from rlpd_gx.report.comparison import FILM, write_comparison
from rlpd_gx.report.page import write_report

__all__ = ["FILM", "write_comparison", "write_report"]
