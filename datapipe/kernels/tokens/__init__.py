"""Byte-pair encoding and packing."""
