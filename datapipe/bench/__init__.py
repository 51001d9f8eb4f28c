"""Benchmarks of a mixture: the time of each kind of work on one core, on a sample of the user's data."""
