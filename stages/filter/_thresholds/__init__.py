"""Published thresholds of the heuristic filters."""
