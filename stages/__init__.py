"""The stages: one file each, found by name. `filter.gopher_quality` is `stages/filter/gopher_quality.py`."""
