"""Global stages: every document is compared with all other documents of the run."""
