"""Reference rows: what earlier runs know of their documents, for later runs to compare theirs with."""
