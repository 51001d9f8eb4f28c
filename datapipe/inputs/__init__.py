"""The input files of a run: finding them, and reading them as they were planned."""
