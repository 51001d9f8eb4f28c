"""Documents on disk as text: Parquet files and JSON lines, for people and for other tools."""
