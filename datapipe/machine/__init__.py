"""This process and its machine: what it does, its memory, its files that all runs share, its libraries, its terminal."""
