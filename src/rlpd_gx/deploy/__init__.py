"""Using a trained policy and its guard elsewhere: export, load, play."""
