"""Arrow IPC: the messages of files and streams, found without their bodies, and the record batches in them."""
