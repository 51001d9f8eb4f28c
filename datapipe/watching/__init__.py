"""What an operator sees of a run: figures for Prometheus, a line for each event, and a file that tells how far it is."""
