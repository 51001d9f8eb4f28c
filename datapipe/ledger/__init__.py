"""What is durable: the records of committed tasks, and the lock on an output."""
