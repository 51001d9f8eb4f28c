"""Mixture → steps → tasks, each with its fingerprint, and what a worker does for each kind of task."""
