"""What the readers of web archives share: members of a file, records in them, HTTP responses, and batches of documents."""
