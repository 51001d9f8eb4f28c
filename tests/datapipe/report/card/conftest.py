"""Finished outputs, of which the run wrote cards."""

from tests.support.finished import documents, grown, plain  # noqa: F401
