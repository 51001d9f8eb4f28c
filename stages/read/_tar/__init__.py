"""Tar archives: their members in order, over a stream of bytes."""
