"""Ring storage, offline formats, temporal sampling, hybrid minibatches."""
