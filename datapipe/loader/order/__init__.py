"""The order of training: which row of which shard every sample is, as arithmetic alone. No file is read."""
