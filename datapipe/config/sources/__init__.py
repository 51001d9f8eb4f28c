"""The sources of a mixture: their files, where these come from, and what their licences allow."""
