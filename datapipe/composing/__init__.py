"""Snapshots that compose: sources whose rows other runs have packed."""
