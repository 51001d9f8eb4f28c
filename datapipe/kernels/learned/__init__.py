"""Trained classifiers: the features of texts, their scores, and training."""
