"""JSON lines: one object a line, plain or in an archive. Arrays of objects, and objects over several lines, are read as well.

    file ─▶ blocks of whole lines ─▶ `LineParser` (`_json/lines.py`) ─▶ documents and rejected lines ─▶ batches

A position is the byte at which a line begins. In a gzip, zstd or lz4 file it is the offset of the member in which the line
begins, shifted by 24 bits, plus the byte in the content of this member. It does not depend on where a file is cut. Memory is a
few blocks, or a few times the longest line (a line of 100 MB: 600 MB).
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field

from datapipe.dataclass import replace
from datapipe.errors import UnsplittableInputError
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Rejected, Split
from datapipe.stage.decoding import BOM, HAVE_MEMBERS, OFFSET_BITS, Block, byte_ranges, has_members, is_one_text, line_blocks
from datapipe.stage.field_types import json_joined, json_type, json_value, parsed_json
from datapipe.stage.reader import TEXT_PER_ARCHIVE_BYTE
from stages.read._content_reader import ContentReader
from stages.read._json.lines import LineParser, with_cut_off

_BATCH_DOCS, _BEHIND_ALL = 8192, (1 << 64) - 1
_BEFORE_MEMBER = (64 << 10, 1 << 20, 16 << 20)
"""Stored bytes before a member in which another one may begin, so that the first line of the member is read."""


class Jsonl(ContentReader):
    """Reads JSON: one object per line, one array of objects, or objects that span several lines.

    The text must be a JSON string, and no key of its path may occur twice in an object. Ids become strings. Fields under
    `keep:` keep their types, one for all files: numbers, true and false, strings, lists, objects. A field with values of
    several types becomes text: a JSON string as it is, other values as their JSON text.
    """

    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)
    has_json: ClassVar[bool] = True

    max_line_bytes: int = Field(
        default=512 << 20,
        ge=1024,
        lt=1 << 31,
        description="Maximum bytes of a line. Longer lines are quarantined, and not held in memory.",
    )

    def probe_large(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """Whether the file has lines, and a compressed one a second member: in at most a 64th of it, and 256 MiB."""
        if is_one_text(file, open_input):
            return replace(file, is_one_text=True)
        if file.compression not in HAVE_MEMBERS:
            return file
        return replace(file, has_members=has_members(file, open_input))

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Byte ranges of a plain file; ranges of stored bytes of a file of many members, and of the content of a file of few
        that is on this machine, since it is read several times; else the file."""
        if file.has_members:
            return byte_ranges(file, max(1, target_bytes // TEXT_PER_ARCHIVE_BYTE))
        is_archive, is_local = file.compression in HAVE_MEMBERS, file.ctime_ns is not None
        if file.is_one_text or not (file.compression is None or (is_archive and is_local)):
            return [Split(file=file)]
        return byte_ranges(file, target_bytes, of_content=is_archive)

    def splits_at(self, file: InputFile, position: int) -> Iterator[Split]:
        """Of a plain file the line. Of many members ranges that begin ever farther before the member of the line, since its
        first line belongs to the range before. Then the whole file."""
        if file.compression is None and position > len(BOM):
            yield Split(file=file, start=position, stop=position + 1)
        member = position >> OFFSET_BITS
        for num_bytes in _BEFORE_MEMBER if file.compression in HAVE_MEMBERS else ():
            if num_bytes < member < file.num_bytes:
                yield Split(file=file, start=member - num_bytes, stop=member + 1)
        yield Split(file=file)

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        """Batches of documents. A dot in the name of a field selects a member of an object."""
        parser = LineParser(fields, self.max_line_bytes)
        for block in line_blocks(split, open_input, self.max_line_bytes, self.max_window_bytes):
            if isinstance(block, Rejected):
                yield ReadBatch.of_rejected(block)
            else:
                yield from _sliced(with_cut_off(parser.documents(block), block, self.max_line_bytes))

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The fields of the objects in the first block of lines."""
        try:
            for block in line_blocks(split, open_input, self.max_line_bytes, self.max_window_bytes):
                if isinstance(block, Block) and (seen := fields_of_lines(block.content, fields)).num_records:
                    return seen
        except UnsplittableInputError:  # which the run reports
            pass
        return FieldsSeen()


def _sliced(batch: ReadBatch) -> Iterator[ReadBatch]:
    """The batch in slices of at most `_BATCH_DOCS`; a rejected line is in the first slice that reaches its position."""
    for start, stop in pairwise([0, *batch.positions[_BATCH_DOCS::_BATCH_DOCS].tolist(), _BEHIND_ALL]):
        part = batch.between(start, stop)
        yield part if start == 0 else replace(part, input_bytes=0, passed_over={})


_MOST_RECORDS = 1000
_MOST_BYTES = 1 << 20
_MOST_NAMES = 1000


def fields_of_lines(content: bytes, fields: FieldNames) -> FieldsSeen:
    """The fields of the first lines that are JSON objects."""
    wanted = {*fields.wanted}
    present: set[str] = set()
    names: dict[str, None] = {}
    types: dict[str, pa.DataType] = {}
    num_records = 0
    for record in _records(content):
        num_records += 1
        own = dict.fromkeys(_names(record))
        present |= wanted & own.keys()
        names |= own if len(names) < _MOST_NAMES else {}
        for name in (name for name in fields.keep if name not in fields.json):
            types[name] = json_joined(types.get(name, pa.null()), json_type(json_value(record, name)))
    return FieldsSeen(num_records=num_records, found=frozenset(present), names=tuple(names), types=types)


def _records(content: bytes) -> Iterator[Mapping[str, Any]]:
    start = 0
    for line in content.split(b"\n", _MOST_RECORDS)[:_MOST_RECORDS]:
        if start >= _MOST_BYTES:
            return
        start += len(line) + 1
        try:
            record = parsed_json(line)
        except (ValueError, RecursionError):  # the reader quarantines it
            continue
        if isinstance(record, dict):
            yield record


def _names(record: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The names of all fields that a mixture can name: keys inside an object, and below a key, have no dots."""
    for name, value in record.items():
        if above and "." in name:
            continue
        yield f"{above}{name}"
        if isinstance(value, dict) and "." not in name:
            yield from _names(value, f"{above}{name}.")
