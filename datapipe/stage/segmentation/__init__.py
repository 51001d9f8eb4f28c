"""Words and lines of a batch, computed once for all stages: one module for each kind, which imports the kernel of that kind."""
