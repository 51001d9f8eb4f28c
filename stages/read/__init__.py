"""Readers: one file a format, which turns input files into batches of documents."""
