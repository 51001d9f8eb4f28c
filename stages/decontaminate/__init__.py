"""Removing documents that hold items of evaluation sets, or the passages that do."""
