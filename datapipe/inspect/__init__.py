"""Looking into an output: documents, clusters of duplicates, and what other thresholds would keep."""
