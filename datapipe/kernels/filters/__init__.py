"""Measurements of the quality filters."""
