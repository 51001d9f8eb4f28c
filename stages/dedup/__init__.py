"""Global stages: documents are compared with all others of the run."""
