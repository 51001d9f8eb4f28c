"""What is published about an output beside its files: its provenance, its card for the hub, and its Croissant description."""
