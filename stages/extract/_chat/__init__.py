"""Conversations as segments: chat templates in a sandbox, the control tokens that they write, the turns that a loss counts."""
