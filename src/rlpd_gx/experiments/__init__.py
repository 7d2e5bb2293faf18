"""One module for each of our published results: the commands that write results/."""
