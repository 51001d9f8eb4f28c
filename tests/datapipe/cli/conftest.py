"""Finished outputs for the commands that look at one."""

from tests.support.finished import deduplicated, lengths, plain  # noqa: F401
