"""Stages that cut, without the engine: what goes from each document, and what is left between the seams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from datapipe.documents import DocumentBatch
from datapipe.exchanges import FINAL_SCHEMAS, as_old
from datapipe.stage import Global, StageContext
from tests.meetings import exchanged, meet_all

Spans = dict[bytes, list[tuple[int, int]]]


def spans_cut(stage: Global, batches: Sequence[DocumentBatch], **options: Any) -> Spans:
    """Spans that go, by key, united and in order; options as for `meet_all`."""
    return _united(meet_all(stage, batches, **options)["cuts"])


def spans_cut_against(stage: Global, old: Sequence[DocumentBatch], batches: Sequence[DocumentBatch], **options: Any) -> Spans:
    """Spans that go from documents that come after an earlier run; its rows are old, and of its verdicts there are none."""
    tables = {
        name: [as_old(rows) for batch in old for rows in [stage.emit(batch)[name]] if name not in FINAL_SCHEMAS]
        + [stage.emit(batch)[name] for batch in batches]
        for name in stage.emits()
    }
    return _united(exchanged(stage, tables, **options)["cuts"])


def spans_cut_by_source(stage: Global, sources: Sequence[Sequence[DocumentBatch]], **options: Any) -> Spans:
    """Spans that go in one run over sources in the order that decides which copy is the first."""
    tables: dict[str, list[pa.RecordBatch]] = {name: [] for name in stage.emits()}
    for place, batches in enumerate(sources):
        stage.open(StageContext(name="stage", seed=1, source_place=place))
        for batch in batches:
            for name, rows in stage.emit(batch).items():
                tables[name].append(rows)
    return _united(exchanged(stage, tables, **options)["cuts"])


def _united(cuts: pa.RecordBatch) -> Spans:
    found: Spans = {}
    for key, start, stop in sorted((row["key"], row["start"], row["stop"]) for row in cuts.to_pylist()):
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
