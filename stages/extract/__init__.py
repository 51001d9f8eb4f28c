"""From the pages of web archives to text."""
