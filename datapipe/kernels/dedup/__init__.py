"""Hashes and signatures by which duplicates are found, and their clusters."""
