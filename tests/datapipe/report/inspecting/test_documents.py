"""A document as `datapipe inspect` prints it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from datapipe.inspect.documents import InspectedDocument
from datapipe.report.inspecting.documents import print_document


@pytest.mark.parametrize(
    ("value", "decision"),
    [(0.75, "duplicate  (as it was read)  measured 0.75"), (float("nan"), "(as it was read)  not measured")],
)
def test_dropped_document_is_printed_with_its_measured_value_or_not_measured(value: float, decision: str) -> None:
    stream = io.StringIO()
    document = InspectedDocument(
        source="web", outcome="dropped", key="", path="a", position=1, reason="dedup.minhash:duplicate", value=value
    )
    print_document(document, Console(file=stream, width=120))
    assert decision in stream.getvalue()
    assert "nan" not in stream.getvalue()
