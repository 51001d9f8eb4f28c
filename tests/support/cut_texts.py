"""Runs stages that cut without the engine: the bytes cut from each document, and the parts between cut points."""

import os
import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa

from datapipe.stage import StageContext
from datapipe.stage.cut_points import CUT_POINTS, CUT_POINTS_TYPE
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, as_reference
from tests.support.global_stages import batch_of, exchanged, reduce_all

Spans = dict[bytes, list[tuple[int, int]]]


def seeds(quick: int, total: int) -> range:
    """Seeds of random corpora: the first `quick`, or, where `DATAPIPE_SEED` is set, `total` of them from it on."""
    first = os.environ.get("DATAPIPE_SEED")
    return range(quick) if first is None else range(int(first), int(first) + total)


def spans_cut(stage: Global, batches: Sequence[DocumentBatch], **options: Any) -> Spans:
    """Cut spans by key, merged and in order; options as for `reduce_all`."""
    return _united(reduce_all(stage, batches, **options)["cuts"])


def spans_cut_against(stage: Global, old: Sequence[DocumentBatch], batches: Sequence[DocumentBatch], **options: Any) -> Spans:
    """Spans cut from the documents of a run after an earlier run, whose rows are reference rows without decisions."""
    tables = {
        name: [as_reference(rows) for batch in old for rows in [stage.emit(batch)[name]] if name not in FINAL_SCHEMAS]
        + [stage.emit(batch)[name] for batch in batches]
        for name in stage.emits()
    }
    return _united(exchanged(stage, tables, **options)["cuts"])


def spans_cut_by_source(stage: Global, sources: Sequence[Sequence[DocumentBatch]], **options: Any) -> Spans:
    """Spans cut in one run over sources, in the order that decides which copy is the first."""
    tables: dict[str, list[pa.RecordBatch]] = {name: [] for name in stage.emits()}
    for position, batches in enumerate(sources):
        stage.open(StageContext(name="stage", seed=1, source_position=position))
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
    """The bytes cut from each document."""
    return [{byte for start, stop in spans.get(key, []) for byte in range(start, stop)} for key in keys]


def with_cut_points(texts: Sequence[str], rng: random.Random) -> tuple[DocumentBatch, list[tuple[int, int, str]]]:
    """Texts with random cut points, and their parts: document, first byte, text."""
    cut_points, parts = [], []
    for document, text in enumerate(texts):
        positions = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randint(0, 3)))) if text else []
        begins = [len(text[:position].encode()) for position in [0, *positions]]
        parts += [(document, *part) for part in zip(begins, (text[i:j] for i, j in pairwise([0, *positions, len(text)])))]
        cut_points.append(begins[1:])
    return batch_of(texts, cut_points=pa.array(cut_points, CUT_POINTS_TYPE)), parts


def of_documents(gone: Sequence[set[int]], parts: Sequence[tuple[int, int, str]]) -> list[set[int]]:
    """The bytes cut from each document, from the bytes cut from each part."""
    found: dict[int, set[int]] = {}
    for spans, (document, begin, _) in zip(gone, parts):
        found.setdefault(document, set()).update(begin + byte for byte in spans)
    return [found[document] for document in sorted(found)]


def cut_from(spans: Spans, batch: DocumentBatch) -> DocumentBatch:
    """The documents without the spans, with cut points in their stead. The input has no cut points."""
    texts = ["".join(parts) for parts in parts_kept(spans, batch)]
    ends = [list(accumulate(len(part.encode()) for part in parts))[:-1] for parts in parts_kept(spans, batch)]
    return batch.with_columns({"text": pa.array(texts, pa.large_string()), CUT_POINTS: pa.array(ends, CUT_POINTS_TYPE)})


def parts_kept(spans: Spans, batch: DocumentBatch) -> list[list[str]]:
    """The parts of each text that are left between cut points."""
    left = []
    for key, text in zip(batch.keys.to_pylist(), batch.texts.to_pylist()):
        data, end, parts = text.encode(), 0, []
        for start, stop in spans.get(key, []):
            parts.append(data[end:start].decode())
            end = stop
        left.append([part for part in [*parts, data[end:].decode()] if part])
    return left
