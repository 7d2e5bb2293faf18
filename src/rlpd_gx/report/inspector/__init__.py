"""The inspector: one page over run folders, live while they train, or written to a file."""
