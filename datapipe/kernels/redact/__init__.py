"""Personal data and secrets found in text, and what takes their place."""
