"""Orders of samples, and rows of batches."""
