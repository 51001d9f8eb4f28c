"""Stages that keep or drop a document by itself."""
