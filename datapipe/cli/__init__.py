"""The command line: one function a command, each a few lines over the package that does the work."""
