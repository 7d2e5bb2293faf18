"""Tabular guarded value iteration: the ground truth for every later test."""
