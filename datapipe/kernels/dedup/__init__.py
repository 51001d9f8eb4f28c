"""Hashes and signatures that identify duplicates, selected grams of repeated spans, and connected components."""
