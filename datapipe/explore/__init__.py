"""Explore an output: documents, clusters, thresholds, two outputs; queries in SQL, printed or served on a page."""
