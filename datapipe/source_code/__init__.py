"""Which definitions of the source code a piece of work reaches, and their digest: what a fingerprint covers."""
