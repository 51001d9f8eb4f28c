"""Finished outputs for the screens and pages about one."""

from tests.support.finished import plain  # noqa: F401
