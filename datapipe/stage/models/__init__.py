"""Trained classifiers of text: the files that hold them, and the scores that they give."""
