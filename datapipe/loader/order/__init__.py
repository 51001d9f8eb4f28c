"""The order of training: the shard and row of every sample, by arithmetic alone. Nothing here reads a file."""
