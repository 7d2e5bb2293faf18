"""One module for each published result of ours: the commands, and what they wrote into results/."""
