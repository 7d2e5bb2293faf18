"""The inspector: one page over run folders, live while they train, or written to a file."""

from rlpd_gx.report.inspector.server import PORT, Inspector

__all__ = ["PORT", "Inspector"]
