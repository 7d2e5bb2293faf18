"""Plain records that travel between the halves."""
