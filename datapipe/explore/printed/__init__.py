"""What `datapipe inspect` and `datapipe report A B` print."""
