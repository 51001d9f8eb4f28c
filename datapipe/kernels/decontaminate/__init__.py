"""Finding texts of evaluation sets in documents: words in one form, hashed n-grams, and what is cut around them."""
