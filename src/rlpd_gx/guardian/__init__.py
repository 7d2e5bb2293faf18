"""Rules in, verdicts out. Never imports the Learner: they meet in the loop."""
