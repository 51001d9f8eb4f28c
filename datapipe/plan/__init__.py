"""Mixture → steps → tasks, each with its fingerprint; a pure function of the mixture, the inputs and what is committed."""
