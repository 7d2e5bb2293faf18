"""Kinds of safe sets. Below both halves."""
