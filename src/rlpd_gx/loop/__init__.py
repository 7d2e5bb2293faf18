"""Where Learner, Guardian, data and environments meet: train, evaluate, checkpoint."""
