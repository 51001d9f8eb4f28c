"""One document: read again, run through its stages again, and shown in parts."""
