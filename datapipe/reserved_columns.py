"""The reserved columns of the engine. Sources, stages and options cannot use these names."""

OWN_COLUMNS = ("id", "key", "text", "cut_points", "segments")
