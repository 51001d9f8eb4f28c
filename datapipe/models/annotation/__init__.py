"""Annotation of documents by a language model: README.md follows a document from the sample to its score."""
