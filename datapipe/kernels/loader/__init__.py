"""The order of samples and the rows of batches."""
