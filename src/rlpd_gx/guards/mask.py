"""Exec-Mask: actions are sampled from the policy over the safe set; targets and actor use the raw policy."""

from rlpd_gx.guards.base import Guard

GUARD = Guard("mask", mode="enforce", settings={"backup": "none", "execution": "resample"})
