"""The look-up file of an output: its layout, and how it is made."""
