"""Finished outputs for the commands that read one."""

from tests.support.finished import deduplicated, lengths, plain  # noqa: F401
