"""The files of an annotation, from the sample and the cache alone, so the same bytes in whatever order the answers came.

    OUTPUT/labelled.jsonl     id, text, score, reason, model      documents with a score, in the order of the sample
    OUTPUT/unparsed.jsonl     id, reason, answer, model           the others
    OUTPUT/annotation.json    counts, tokens, model and rubric; written last

Each file appears when it is whole. Memory is one batch of documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from datapipe.classifier.annotation.answers import Questions, Settled
from datapipe.classifier.annotation.asking import LeftOut
from datapipe.classifier.annotation.cache import AnswerCache
from datapipe.classifier.annotation.counts import Counts
from datapipe.classifier.annotation.rubric import Score
from datapipe.errors import DatapipeError
from datapipe.shards.documents.json_lines import json_lines
from datapipe.storage import sync_file, sync_folder

CARD, LABELLED, UNPARSED = "annotation.json", "labelled.jsonl", "unparsed.jsonl"

_BATCH_BYTES = 8 << 20
_UNPARSED_SCHEMA = pa.schema([pa.field(name, pa.large_string()) for name in ("id", "reason", "answer", "model")])


def write_files(
    folder: Path,
    documents: Iterable[tuple[str, str]],
    questions: Questions,
    cache: AnswerCache,
    left_out: Mapping[str, LeftOut],
) -> Counts:
    """Writes the labelled documents and those without a score. Returns the counts of all of them."""
    counts, model = Counts(), questions.model
    with (
        _appearing(folder / LABELLED) as labelled_file,
        _appearing(folder / UNPARSED) as unparsed_file,
        _Rows(labelled_file, _labelled_schema(questions.rubric.decimals)) as labelled,
        _Rows(unparsed_file, _UNPARSED_SCHEMA) as unparsed,
    ):
        for document, text in documents:
            state = questions.state_of(text, cache)
            if isinstance(state, Settled):
                counts.settled(state)
                if isinstance(state.outcome, Score):
                    value = state.outcome.value
                    labelled.add(
                        (document, text, value if questions.rubric.decimals else int(value), state.outcome.reason, model)
                    )
                else:
                    unparsed.add((document, state.outcome, state.answer.content, model))
            elif document in left_out:
                counts.add(left_out[document].reason, left_out[document].message)
                unparsed.add((document, left_out[document].reason, left_out[document].message, model))
            else:
                raise DatapipeError(f"{cache.path}: the answer to {document} is gone. Run the same command again to ask for it")
    return counts


def _labelled_schema(has_decimals: bool) -> pa.Schema:
    """The columns of labelled documents. Scores are whole numbers unless the rubric has decimals."""
    texts = [pa.field(name, pa.large_string(), nullable=False) for name in ("id", "text", "reason", "model")]
    score = pa.field("score", pa.float64() if has_decimals else pa.int64(), nullable=False)
    return pa.schema([*texts[:2], score, *texts[2:]])


class _Rows:
    """Rows of a file that is being written, as a context manager; they are written some MiB at a time."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self._rows: list[tuple[Any, ...]] = []
        self._num_bytes = 0

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._flush()

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        self._num_bytes += sum(len(value) for value in row if isinstance(value, str))
        if self._num_bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in self._schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._rows, self._num_bytes = [], 0
        if batch.num_rows:
            self._file.write(json_lines(batch).tobytes())


@contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file under a temporary name, which gets its own when the block ends well."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        yield file
    sync_file(temporary)
    os.replace(temporary, path)
    sync_folder(path.parent)
