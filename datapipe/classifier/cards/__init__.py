"""The card of a trained model: its figures on held-out documents, its heaviest features, as JSON and as a text."""
