"""Ring storage, offline formats, temporal sampling, hybrid mixing."""
