"""The columns that are the engine's own: no source, stage or option gives another column such a name."""

OWN_COLUMNS = ("id", "key", "text", "cut_points")
