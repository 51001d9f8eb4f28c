"""JSON lines: one object a line, plain, .gz or .zst.

    file ─▶ blocks of whole lines ─▶ Arrow's JSON parser: is it JSON, and the text ─▶ a kernel: id and kept fields ─▶ columns
                                          └─▶ a block that is refused is parsed again in parts, down to the line at fault

What happens to a line never depends on its neighbours. A block is believed only if it is valid UTF-8 without NUL bytes, each
line is framed by braces, and there are as many rows as lines: then every line alone would be believed and give the same row.
And id and kept fields are taken as they are written in the line, so no type is ever inferred from others. Memory is a few
blocks, or a few times the longest line (a line of 100 MB: 600 MB).

Measured on one core of a 2-core AMD EPYC that others were using too, prose in lines of 2.8 kB: 250 MB/s plain, with string or
number ids, before or behind the text; 220 MB/s with an object kept; 180 MB/s from zstd, 120 MB/s from gzip; 60 MB/s
where every twentieth line is refused, and about 10,000 lines a second where each is.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from pydantic import Field

from datapipe.columns import as_large_string, texts_from
from datapipe.columns import compute as pc
from datapipe.kernels.text.jsonlines import BLANK, FRAMED, OTHER, FieldPath, split_lines
from datapipe.stage import FieldNames, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split
from datapipe.stage.decoding import EXCERPT_BYTES, Block, line_blocks, too_long

_BATCH_DOCS = 8192
_CHANGED = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+)")
_TWICE = re.compile(r"Column\(/?(.*)\) was specified twice")
_ROW = re.compile(r" in row (\d+)$")
_PLAINER = {
    "Invalid encoding in string": "a raw control character within a string; expected it escaped",
    "The document is empty": "something behind the object; expected one object on the line",
    "The surrogate pair in string is invalid": "half a surrogate pair (\\ud800 to \\udfff); expected both halves",
    "Number too big to be stored in double": "a number beyond the range of a 64-bit float",
}
"""What the parser says in words that would puzzle a reader."""
_NO_OBJECT = "not a JSON object: expected '{' to '}' on one line"
_NO_TEXTS = pa.array([], pa.large_string())


class Jsonl(Reader):
    """One JSON object a line. The text must be a JSON string, and no key of its path may come twice. Ids and fields under
    `keep:` become strings: JSON strings as they are, other values as their JSON text, null and missing ones null."""

    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    max_line_bytes: int = Field(
        default=512 << 20, ge=1024, lt=1 << 31, description="Longer lines are quarantined without being held."
    )

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Byte ranges of a plain file; a line belongs to the range its first byte is in. Archives are read whole."""
        if file.compression is not None or file.num_bytes <= target_bytes:
            return [Split(file=file)]
        count = -(-file.num_bytes // target_bytes)
        borders = [file.num_bytes * number // count for number in range(count)]
        return [Split(file=file, start=start, stop=stop) for start, stop in zip(borders, [*borders[1:], file.num_bytes])]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        """Batches of the documents of whole lines. Dots in a field's name reach into objects."""
        parser = _Parser(fields, self.max_line_bytes)
        for block in line_blocks(split, open_input, self.max_line_bytes):
            if isinstance(block, Rejected):
                yield ReadBatch(places=np.zeros(0, np.uint64), texts=_NO_TEXTS, ids=_NO_TEXTS, rejected=(block,))
            else:
                yield from _sliced(parser.documents(block))

    def read_one(self, file: InputFile, place: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        """Reads one line of a plain file, but all of an archive that comes before it."""
        plain = file.compression is None
        split = Split(file=file, start=place, stop=place + 1) if plain and place > len("\ufeff".encode()) else Split(file=file)
        for block in line_blocks(split, open_input, self.max_line_bytes):
            if isinstance(block, Block) and block.place <= place < block.place + len(block.content):
                return self._at(block, place, fields)
        return None

    def _at(self, block: Block, place: int, fields: FieldNames) -> str | None:
        start = place - block.place
        if start and block.content[start - 1 : start] != b"\n":
            return None
        end = block.content.find(b"\n", start)
        line = Block(place=place, content=block.content[start : end if end >= 0 else None])
        texts = _Parser(replace(fields, keep=()), self.max_line_bytes).documents(line).texts
        return texts[0].as_py() if len(texts) else None


def _sliced(batch: ReadBatch) -> Iterator[ReadBatch]:
    """The batch in slices of at most `_BATCH_DOCS`; what was rejected comes with the first slice that reaches its place."""
    num_docs, rejected = len(batch.places), 0
    for start in range(0, max(1, num_docs), _BATCH_DOCS):
        stop = start + _BATCH_DOCS
        seen, rejected = rejected, len(batch.rejected)
        if stop < num_docs:
            rejected = bisect_left(batch.rejected, int(batch.places[stop]), key=attrgetter("place"))
        yield ReadBatch(
            places=batch.places[start:stop],
            texts=batch.texts.slice(start, _BATCH_DOCS),
            ids=batch.ids.slice(start, _BATCH_DOCS),
            extra={name: column.slice(start, _BATCH_DOCS) for name, column in batch.extra.items()},
            rejected=batch.rejected[seen:rejected],
            input_bytes=batch.input_bytes if start == 0 else 0,
        )


# ------------------------------------------------------------------------------------------------ parsing


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """Framed lines content[starts[i]:stops[i]] with nothing but blank lines between them."""

    content: memoryview
    starts: np.ndarray
    stops: np.ndarray

    def part(self, first: int, last: int) -> _Run:
        return _Run(content=self.content, starts=self.starts[first:last], stops=self.stops[first:last])

    @property
    def bytes(self) -> memoryview:
        return self.content[self.starts[0] : self.stops[-1]]


class _Refused(Exception):  # noqa: N818
    """Why lines are not each one document, and how many are before the culprit, as far as the parser tells."""

    def __init__(self, why: str, num_before: int) -> None:
        super().__init__(why)
        self.num_before = num_before


class _Parser:
    """Blocks of lines in, documents out. It remembers nothing from block to block."""

    def __init__(self, fields: FieldNames, max_line_bytes: int) -> None:
        self.fields = fields
        self.max_line_bytes = max_line_bytes
        self.text_path = fields.text.split(".")
        kind: Any = pa.large_string()
        for name in reversed(self.text_path):
            kind = pa.struct([(name, kind)])
        self.options = pj.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore")
        self.id_path = FieldPath(fields.id.split("."))
        self.keep_paths = {name: FieldPath(name.split(".")) for name in fields.keep}

    def documents(self, block: Block) -> ReadBatch:
        """The documents and rejects of a block of whole lines."""
        data = np.frombuffer(block.content, np.uint8)
        starts, stops, kinds = split_lines(data)
        rows, texts, rejects = self._judged(block.content, starts, stops, kinds)
        return ReadBatch(
            places=(starts[rows] + block.place).astype(np.uint64),
            texts=texts,
            ids=_values(self.id_path, data, starts[rows], stops[rows]),
            extra={name: _values(path, data, starts[rows], stops[rows]) for name, path in self.keep_paths.items()},
            rejected=tuple(
                Rejected(
                    place=block.place + int(starts[row]),
                    error=rejects[row],
                    excerpt=block.content[starts[row] : min(stops[row], starts[row] + EXCERPT_BYTES)],
                )
                for row in sorted(rejects)
            ),
            input_bytes=len(block.content),
        )

    def _judged(
        self, content: bytes, starts: np.ndarray, stops: np.ndarray, kinds: np.ndarray
    ) -> tuple[np.ndarray, pa.Array, dict[int, str]]:
        """Which lines are documents (num_docs,), their texts, and why others are not, by line."""
        rejects = _undecodable(content, starts, stops)
        rejects |= dict.fromkeys(np.flatnonzero(kinds == OTHER).tolist(), _NO_OBJECT)
        rejects |= dict.fromkeys(np.flatnonzero(stops - starts > self.max_line_bytes).tolist(), too_long(self.max_line_bytes))
        good = kinds == FRAMED
        good[list(rejects)] = False
        rows = np.flatnonzero(good)
        texts, refused = self._texts(_run_of(content, starts, stops, kinds, good))
        rejects |= {int(rows[number]): error for number, error in refused.items()}
        if texts.null_count:
            there = texts.is_valid()
            mask = there.to_numpy(zero_copy_only=False)
            missing = f"field '{self.fields.text}' is missing or null; expected a string"
            rejects = dict.fromkeys(rows[~mask].tolist(), missing) | rejects
            rows, texts = rows[mask], texts.filter(there)
        return rows, texts, rejects

    def _texts(self, run: _Run) -> tuple[pa.Array, dict[int, str]]:
        """The text of each line, null where there is none; and why lines were refused, by number.

        After a refusal: the lines before the suspect, the suspect, then twice as many as were fine before. So a bad line costs
        three calls of the parser however long the block is, and where all are bad, one.
        """
        chunks: list[pa.Array] = []
        refused: dict[int, str] = {}
        first, num_lines = 0, len(run.starts)
        window, num_fine, suspect = num_lines, 0, -1
        while first < num_lines:
            last = min(first + window, num_lines)
            try:
                chunks.append(self._parse(run.part(first, last)))
                first, window = last, 1 if last == suspect else 2 * window
            except _Refused as error:
                if last - first > 1:
                    num_before = min(error.num_before, last - first - 1)
                    suspect, window = first + num_before, max(1, num_before)
                    num_fine = num_before or num_fine
                else:
                    refused[first] = str(error)
                    chunks.append(pa.nulls(1, pa.large_string()))
                    first, window, num_fine = last, max(1, 2 * num_fine), num_fine // 2
        return (pa.concat_arrays(chunks) if len(chunks) > 1 else chunks[0] if chunks else _NO_TEXTS), refused

    def _parse(self, run: _Run) -> pa.Array:
        """The texts of lines that are one object each, all of them as they would be alone; else raises `_Refused`."""
        num_lines = len(run.starts)
        reading = pj.ReadOptions(use_threads=False, block_size=len(run.bytes) + 1024)
        try:
            with pj.open_json(pa.BufferReader(run.bytes), read_options=reading, parse_options=self.options) as stream:
                table = stream.read_all()
        except pa.ArrowInvalid as error:
            row = _ROW.search(str(error))
            raise _Refused(_in_words(str(error)), int(row[1]) if row else num_lines // 2) from None
        if table.num_rows != num_lines:
            raise _Refused(f"{table.num_rows} JSON objects on one line; expected one", num_lines // 2)
        column = table.column(self.text_path[0])
        return as_large_string(pc.struct_field(column, self.text_path[1:]) if self.text_path[1:] else column)


def _undecodable(content: bytes, starts: np.ndarray, stops: np.ndarray) -> dict[int, str]:
    """Why lines are no text, by number. Arrow's parser would take them: it passes over bytes in strings, and a NUL ends it."""
    data = np.frombuffer(content, np.uint8)
    try:
        texts_from(np.array([0, len(data)]), data).validate(full=True)
        if len(data) and data.min() > 0:
            return {}
    except pa.ArrowInvalid:
        pass
    found: dict[int, str] = {}
    for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist())):
        try:
            if "\0" in content[start:stop].decode():
                found[number] = "not valid JSON: a NUL byte; expected it as \\u0000 within a string"
        except UnicodeDecodeError:
            found[number] = "invalid UTF-8; expected a line of UTF-8 text"
    return found


def _run_of(content: bytes, starts: np.ndarray, stops: np.ndarray, kinds: np.ndarray, good: np.ndarray) -> _Run:
    """The good lines as one run: the block itself, or a copy without the bad ones."""
    if (good | (kinds == BLANK)).all():
        return _Run(content=memoryview(content), starts=starts[good], stops=stops[good])
    lines = [content[start:stop] for start, stop in zip(starts[good].tolist(), stops[good].tolist())]
    ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64)
    begins = np.concatenate([np.zeros(1, np.int64), ends])[: len(lines)]
    return _Run(content=memoryview(b"\n".join(lines)), starts=begins, stops=ends - 1)


def _values(path: FieldPath, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> pa.Array:
    valid, offsets, content = path.values(data, starts, stops)
    values = texts_from(offsets, content)
    return values if valid.all() else pc.if_else(pa.array(valid), values, pa.scalar(None, pa.large_string()))


def _in_words(error: str) -> str:
    """What Arrow's parser found in a line, in our words."""
    if changed := _CHANGED.search(error):
        path, expected, found = changed.groups()
        return f"field '{_dotted(path)}' is of type {found}; expected {expected}"
    if twice := _TWICE.search(error):
        return f"field '{_dotted(twice[1])}' comes twice in one object"
    found = _ROW.sub("", error).removeprefix("JSON parse error: ").rstrip(".")
    return f"not valid JSON: {_PLAINER.get(found, found)}"


def _dotted(path: str) -> str:
    return path.replace("/", ".")
