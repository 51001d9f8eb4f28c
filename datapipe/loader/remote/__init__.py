"""Batches from a server: what `Loader("grpc://…")` is made of. Needs neither numba nor the files of the output."""
