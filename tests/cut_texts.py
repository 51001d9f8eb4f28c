"""Stages that cut, without the engine: what goes from each document, and what is left between the seams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipe.documents import DocumentBatch
from datapipe.stage import Global
from tests.meetings import meet_all

Spans = dict[bytes, list[tuple[int, int]]]


def spans_cut(stage: Global, batches: Sequence[DocumentBatch], **options: Any) -> Spans:
    """Spans that go, by key, united and in order; options as for `meet_all`."""
    found: Spans = {}
    rows = [(row["key"], row["start"], row["stop"]) for row in meet_all(stage, batches, **options)["cuts"].to_pylist()]
    for key, start, stop in sorted(rows):
        spans = found.setdefault(key, [])
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
        else:
            spans.append((start, stop))
    return found


def bytes_cut(spans: Spans, keys: Sequence[bytes]) -> list[set[int]]:
    """The bytes that go from each document."""
    return [{at for start, stop in spans.get(key, []) for at in range(start, stop)} for key in keys]


def parts_kept(spans: Spans, batch: DocumentBatch) -> list[list[str]]:
    """What is left of each text, between the seams."""
    left = []
    for key, text in zip(batch.keys.to_pylist(), batch.texts.to_pylist()):
        data, at, parts = text.encode(), 0, []
        for start, stop in spans.get(key, []):
            parts.append(data[at:start].decode())
            at = stop
        left.append([part for part in [*parts, data[at:].decode()] if part])
    return left
