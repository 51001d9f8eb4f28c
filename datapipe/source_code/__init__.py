"""The definitions of the source code that a stage or a task reaches, and their digest for fingerprints."""
