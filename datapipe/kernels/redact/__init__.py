"""Finds personal data and secrets in text, and writes their replacements."""
