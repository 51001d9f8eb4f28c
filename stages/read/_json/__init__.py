"""Lines of JSON: their texts, ids and other fields, and why a line is no document."""
