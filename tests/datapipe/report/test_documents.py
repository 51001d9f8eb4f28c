"""A document as `datapipe inspect` shows it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from datapipe.inspect.documents import Seen
from datapipe.report.documents import print_document


@pytest.mark.parametrize(
    ("value", "told"), [(0.75, "duplicate  (as it was read)  measured 0.75"), (float("nan"), "(as it was read)  not measured")]
)
def test_document_that_was_dropped_says_what_was_measured_or_that_nothing_was(value: float, told: str) -> None:
    stream = io.StringIO()
    seen = Seen(source="web", outcome="dropped", key="", path="a", place=1, reason="dedup.minhash:duplicate", value=value)
    print_document(seen, Console(file=stream, width=120))
    assert told in stream.getvalue()
    assert "nan" not in stream.getvalue()
