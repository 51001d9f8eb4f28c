"""What is on disk: schemas, packed shards in their formats, and the manifest that makes them a snapshot."""
