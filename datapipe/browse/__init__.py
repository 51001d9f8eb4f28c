"""`datapipe browse`: a page on loopback to look at the documents of an output."""
