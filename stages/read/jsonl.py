"""JSON lines: one object a line, plain or in an archive.

    file ─▶ blocks of whole lines ─▶ `LineParser` (`_json/lines.py`) ─▶ documents and rejected lines ─▶ batches

Memory is a few blocks, or a few times the longest line (a line of 100 MB: 600 MB).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

import numpy as np
from pydantic import Field

from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split
from datapipe.stage.decoding import Block, byte_ranges, line_blocks
from stages.read._json.fields import fields_of_lines
from stages.read._json.lines import NO_TEXTS, LineParser, told_cut_off

_BATCH_DOCS = 8192


class Jsonl(Reader):
    """Reads files of one JSON object a line.

    The text must be a JSON string, and no key of its path may occur twice in an object. Ids and fields under `keep:` become
    strings: a JSON string as it is, other values as their JSON text, null or a missing field as null.
    """

    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    max_line_bytes: int = Field(
        default=512 << 20,
        ge=1024,
        lt=1 << 31,
        description="Most bytes of a line; longer lines are quarantined without being held in memory.",
    )

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Byte ranges of a plain file; a line belongs to the range that holds its first byte. An archive is one split."""
        if file.compression is not None:
            return [Split(file=file)]
        return byte_ranges(file, target_bytes)

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        """Batches of documents. A dot in the name of a field selects a member of an object."""
        parser = LineParser(fields, self.max_line_bytes)
        for block in line_blocks(split, open_input, self.max_line_bytes):
            if isinstance(block, Rejected):
                yield ReadBatch(positions=np.zeros(0, np.uint64), texts=NO_TEXTS, ids=NO_TEXTS, rejected=(block,))
            else:
                yield from _sliced(told_cut_off(parser.documents(block), block, self.max_line_bytes))

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The fields of the objects in the first block of lines, as far as `_json/fields.py` looks."""
        for block in line_blocks(split, open_input, self.max_line_bytes):
            if isinstance(block, Block) and (seen := fields_of_lines(block.content, fields)).num_records:
                return seen
        return FieldsSeen()

    def read_document(self, file: InputFile, position: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        """The text of one line. Only the line is read from a plain file; of an archive everything before it too."""
        plain = file.compression is None
        split = (
            Split(file=file, start=position, stop=position + 1)
            if plain and position > len("\ufeff".encode())
            else Split(file=file)
        )
        for block in line_blocks(split, open_input, self.max_line_bytes):
            if isinstance(block, Block) and block.byte_offset <= position < block.byte_offset + len(block.content):
                return self._text_at(block, position, fields)
        return None

    def _text_at(self, block: Block, position: int, fields: FieldNames) -> str | None:
        start = position - block.byte_offset
        if start and block.content[start - 1 : start] != b"\n":
            return None
        end = block.content.find(b"\n", start)
        line = Block(byte_offset=position, content=block.content[start : end if end >= 0 else None])
        texts = LineParser(replace(fields, keep=()), self.max_line_bytes).documents(line).content
        return texts[0].as_py() if len(texts) else None


def _sliced(batch: ReadBatch) -> Iterator[ReadBatch]:
    """The batch in slices of at most `_BATCH_DOCS`; a rejected line is in the first slice that reaches its position."""
    num_docs, rejected = len(batch.positions), 0
    for start in range(0, max(1, num_docs), _BATCH_DOCS):
        stop = start + _BATCH_DOCS
        seen, rejected = rejected, len(batch.rejected)
        if stop < num_docs:
            rejected = bisect_left(batch.rejected, int(batch.positions[stop]), key=attrgetter("position"))
        yield ReadBatch(
            positions=batch.positions[start:stop],
            texts=batch.content.slice(start, _BATCH_DOCS),
            ids=batch.ids.slice(start, _BATCH_DOCS),
            extra={name: column.slice(start, _BATCH_DOCS) for name, column in batch.extra.items()},
            rejected=batch.rejected[seen:rejected],
            input_bytes=batch.input_bytes if start == 0 else 0,
        )
