"""A run: preparation, the driver, the local and the Ray engine, retries and progress."""
