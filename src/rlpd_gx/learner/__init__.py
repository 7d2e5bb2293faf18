"""Networks, Q-ensemble, guarded backup, SAC. Never imports the Guardian: they meet in the loop."""
