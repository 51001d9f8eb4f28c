"""What an operator sees of a run: the screen, Prometheus figures, a line for each event, and a file with its state."""
