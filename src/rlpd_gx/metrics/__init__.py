"""Measurements: pure functions on records."""
