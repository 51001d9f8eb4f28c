"""Batches over the network: `datapipe serve OUTPUT…`. The client stands behind `Loader("grpc://…")`."""
