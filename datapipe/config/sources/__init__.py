"""The sources of a mixture: their files, where these come from, and what a mixture allows of them."""
