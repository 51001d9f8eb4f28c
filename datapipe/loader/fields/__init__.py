"""The fields of a batch, each made from the rows of several batches at a time."""
