"""The inspector: one page over run folders, live while they train, or written to a file."""

from rlpd_gx.report.inspector.server import PORT, Inspector
from rlpd_gx.report.inspector.static import write_page

__all__ = ["PORT", "Inspector", "write_page"]
