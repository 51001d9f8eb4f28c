"""The page of `datapipe browse`: static files, without a build step. README.md describes it."""
