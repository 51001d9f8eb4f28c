"""Rows moved between workers by hash, and documents handed from one step to the next."""
