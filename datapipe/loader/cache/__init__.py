"""Shards of object stores on a local disk, fetched before they are needed."""
