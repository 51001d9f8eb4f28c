"""Snapshots of an output: published, verified, exported, cleaned, with documents taken down and rows of other outputs."""
