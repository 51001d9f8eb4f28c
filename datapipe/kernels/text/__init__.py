"""Words, lines, sentences and characters of texts."""
