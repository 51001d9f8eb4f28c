"""Exports of a snapshot to the formats of other tools, whole or not at all."""
