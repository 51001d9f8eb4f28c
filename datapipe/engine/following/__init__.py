"""Following a corpus that grows: what is new in its sources becomes a part of them in the next snapshot."""
