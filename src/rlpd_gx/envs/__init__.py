"""Environments we know well enough to bring rules for."""
