"""Evaluation files of our own, for tests of decontamination."""

import bz2
import gzip
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from datapipe import columns
from datapipe.stage import FilterResult
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.decontaminate.ngram import Ngram

WINDMILL = {
    "id": "windmill",
    "question": "The windmill on the hill above Brandt, a village in the north, was rebuilt in 1874 after a storm had taken "
    "its sails. In which year was the windmill above Brandt rebuilt?",
    "answer": "1874",
}
"""A question of 31 words, and an answer of one."""

SHORT = {"id": "short", "question": "Which metal did the smiths of Orla melt first?", "answer": "Copper ore"}
"""A question of 9 words, and an answer of 2."""

TINY = {"id": "tiny", "question": "Which gas do plants breathe?", "answer": "None"}
"""Six words in all."""

LONG_ANSWER = {
    "id": "long answer",
    "question": "Solve for y: 3y + 4 = 19",
    "answer": "Take 4 from both sides of 3y + 4 = 19 to get 3y = 15, then divide both sides by 3 to get y = 5",
}

FILLER = (
    "Along the river the road runs level for a while, and the carts that come down from the quarries keep to the left "
    "of it. Nobody remembers who planted the poplars, but the oldest of them lean toward the water as if they had "
    "been told to listen. On market days the ferry crosses twice before noon, and the boys who sell apples on the "
    "pier shout their prices over the bell. In the afternoon it is quiet again; the dogs sleep in the shade of the "
    "boats, and the light moves slowly along the wall of the granary until the shutters close one after another. "
)
"""Prose of 540 characters that shares no five words with an item."""


def write(path: Path, records: Sequence[Mapping[str, Any]]) -> str:
    """Writes records in the format and compression of the ending; returns the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(record) for record in records]), path)
        return str(path)
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    packed = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(zstandard.compress(content) if path.suffix == ".zst" else packed.get(path.suffix, bytes)(content))
    return str(path)


def batch(texts: Sequence[str]) -> DocumentBatch:
    arrays = [
        columns.make_keys(7, np.arange(len(texts), dtype=np.uint64)),
        pa.array([f"id-{number}" for number in range(len(texts))], pa.large_string()),
        pa.array(texts, pa.large_string()),
    ]
    made = DocumentBatch(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(BASE_FIELDS)))
    made.make_read_only()
    return made


def found(result: FilterResult) -> list[list[str]]:
    """The items that are found in each document, by name."""
    assert result.findings is not None
    names: list[list[str]] = [[] for _ in result.keep]
    for row, entry in zip(*(result.findings.column(name).to_pylist() for name in ("row", "entry"))):
        names[row].append(entry)
    return names


def found_in(stage: Ngram, *texts: str) -> list[list[str]]:
    return found(stage.process(batch(texts)))
