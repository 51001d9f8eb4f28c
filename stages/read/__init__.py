"""Readers: raw files become batches of documents."""
