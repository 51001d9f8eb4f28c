"""Stages that rewrite the text of documents and drop none."""
