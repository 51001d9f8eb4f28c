"""Lists that filters read: of addresses, and of words."""
