"""Reference rows: rows of earlier runs about their documents, which later runs compare theirs with."""
