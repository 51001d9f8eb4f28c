"""Formats of input files: rows and values of delimited text."""
