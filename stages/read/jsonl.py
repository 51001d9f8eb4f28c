"""JSON lines: one object a line, plain, .gz or .zst.

    file ─▶ decompressed ─▶ blocks that end at a newline ─▶ Arrow's JSON parser ─▶ columns
                                    └─▶ a block it refuses, or whose rows are not its lines ─▶ line by line, same parser

What happens to a line never depends on its neighbours: a value's column form is a function of that value alone, the parser
is the same for a block and for a line, and a block is believed only if it is valid UTF-8 and has one row per line. Memory is
a few blocks, or the longest line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pydantic import Field

from datapipe.columns import as_large_string
from datapipe.decoding import BrokenStreamError, decoded
from datapipe.kernels.jsonlines import BLANK, OTHER, split_lines
from datapipe.stage import FieldNames, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split

BLOCK_BYTES = 4 << 20
_BATCH_DOCS = 8192
_EXCERPT_BYTES = 4096
_BOM = b"\xef\xbb\xbf"


class Jsonl(Reader):
    """One JSON object a line. Text must be a JSON string; an id may be a string or a number; fields under `keep:` become
    strings, other values than strings as their JSON text."""

    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")

    max_line_bytes: int = Field(default=512 << 20, ge=1024, description="Longer lines are quarantined without being held.")

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Byte ranges of a plain file; a line belongs to the range its first byte is in. Archives are read whole."""
        if file.compression is not None or file.num_bytes <= target_bytes:
            return [Split(file=file)]
        count = -(-file.num_bytes // target_bytes)
        borders = [file.num_bytes * number // count for number in range(count)]
        return [Split(file=file, start=start, stop=stop) for start, stop in zip(borders, [*borders[1:], file.num_bytes])]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        parser = _Parser(fields)
        for place, block in _blocks(split, open_input, self.max_line_bytes):
            if isinstance(block, Rejected):
                yield _rejecting(block)
                continue
            yield from _sliced(parser.block(place, block))

    def read_one(self, file: InputFile, place: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        for at, block in _blocks(Split(file=file), open_input, self.max_line_bytes):
            if isinstance(block, Rejected) or not at <= place < at + len(block):
                continue
            end = block.find(b"\n", place - at)
            line = block[place - at : end if end >= 0 else len(block)]
            batch = _Parser(fields).block(place, line)
            return batch.texts[0].as_py() if len(batch.texts) else None
        return None


# ------------------------------------------------------------------------------------------------ blocks of whole lines


def _blocks(split: Split, open_input: OpenInput, max_line_bytes: int) -> Iterator[tuple[int, bytes | Rejected]]:
    """(place, block) in file order; a block is whole lines, about `BLOCK_BYTES`. What is no line comes as `Rejected`."""
    source = _range(split, open_input) if split.file.compression is None else _archive(split, open_input)
    whole: list[bytes] = []  # pieces of complete lines that begin at `place`
    tail: list[bytes] = []  # pieces of the line after them, which begins at `place + whole_bytes`
    place = whole_bytes = tail_bytes = 0
    skipping = False  # within a line that was rejected for its length
    for at, piece in source:
        if isinstance(piece, Rejected):
            if whole:
                yield place, b"".join(whole)
            begin = piece.place if skipping else place + whole_bytes if whole or tail else piece.place
            yield begin, Rejected(place=begin, error=piece.error, excerpt=b"".join(tail)[:_EXCERPT_BYTES])
            return
        end = piece.rfind(b"\n") + 1
        if skipping and not end:
            continue
        begin = piece.find(b"\n") + 1 if skipping else 0
        if not whole and not tail:
            place = at + begin
        skipping = False
        if end > begin:
            whole += [*tail, piece[begin:end]]
            whole_bytes += tail_bytes + end - begin
            tail, tail_bytes, begin = [], 0, end
        if begin < len(piece):
            tail.append(piece[begin:])
            tail_bytes += len(piece) - begin
        if tail_bytes > max_line_bytes:
            error = f"a line of more than {max_line_bytes} bytes, the most this reader takes (max_line_bytes)"
            if whole:
                yield place, b"".join(whole)
            start = place + whole_bytes
            yield start, Rejected(place=start, error=error, excerpt=tail[0][:_EXCERPT_BYTES])
            whole, tail, whole_bytes, tail_bytes, skipping = [], [], 0, 0, True
        elif whole_bytes >= BLOCK_BYTES:
            block, start = b"".join(whole), place
            place += whole_bytes
            whole, whole_bytes = [], 0
            yield start, block
    if whole or tail:
        yield place, b"".join(whole + tail)


def _archive(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes | Rejected]]:
    """Decompressed pieces with their offsets; `Rejected` where the archive breaks."""
    at = 0
    try:
        for piece in decoded(open_input, split.file.url, split.file.compression):
            skip = len(_BOM) if at == 0 and piece.startswith(_BOM) else 0
            yield at + skip, piece[skip:]
            at += len(piece)
    except BrokenStreamError as error:
        yield at, Rejected(place=at, error=str(error))


def _range(split: Split, open_input: OpenInput) -> Iterator[tuple[int, bytes | Rejected]]:
    """Pieces of the lines whose first byte is in [start, stop) of a plain file."""
    with open_input(split.file.url) as stream:
        size = stream.size()
        stop = size if split.stop is None else min(split.stop, size)
        at = _first_line(stream, split.start, size)
        if at == 0 and split.start == 0 and stream.read_at(len(_BOM), 0) == _BOM:
            at = len(_BOM)
        if at >= stop:
            return  # the range lies within one line
        while at < size:
            piece = stream.read_at(min(BLOCK_BYTES, size - at), at)
            newline = piece.find(b"\n", max(0, stop - 1 - at)) if at + len(piece) >= stop else -1
            if newline >= 0:
                yield at, piece[: newline + 1]
                return
            yield at, piece
            at += len(piece)


def _first_line(stream: pa.NativeFile, start: int, size: int) -> int:
    """Where the first line that begins at or after `start` begins."""
    if start == 0:
        return 0
    at = start - 1
    while at < size:
        piece = stream.read_at(min(BLOCK_BYTES, size - at), at)
        end = piece.find(b"\n")
        if end >= 0:
            return at + end + 1
        at += len(piece)
    return size


def _rejecting(rejected: Rejected) -> ReadBatch:
    nothing = pa.array([], pa.large_string())
    return ReadBatch(places=np.zeros(0, np.uint64), texts=nothing, ids=nothing, rejected=(rejected,))


def _sliced(batch: ReadBatch) -> Iterator[ReadBatch]:
    """The batch in slices of at most `_BATCH_DOCS`; what was rejected goes with the first."""
    for start in range(0, max(1, len(batch.places)), _BATCH_DOCS):
        stop = start + _BATCH_DOCS
        yield ReadBatch(
            places=batch.places[start:stop],
            texts=batch.texts.slice(start, _BATCH_DOCS),
            ids=batch.ids.slice(start, _BATCH_DOCS),
            extra={name: column.slice(start, _BATCH_DOCS) for name, column in batch.extra.items()},
            rejected=batch.rejected if start == 0 else (),
            input_bytes=batch.input_bytes if start == 0 else 0,
        )


# ------------------------------------------------------------------------------------------------ parsing


class _Parser:
    """Parses blocks, remembering which type of id the last one had, to try that first. The result does not depend on it."""

    def __init__(self, fields: FieldNames) -> None:
        self.fields = fields
        self.id_types = [pa.string(), pa.int64()]

    def block(self, place: int, block: bytes) -> ReadBatch:
        """The documents and rejects of a block of whole lines at `place`."""
        starts, stops, kinds = split_lines(np.frombuffer(block, np.uint8))
        lines = np.flatnonzero(kinds != BLANK)
        table = None
        if len(lines) and not (kinds == OTHER).any() and b"\0" not in block and _is_utf8(block):
            table = self._parse(block)
        if table is not None and table.num_rows == len(lines):
            return self._columns(place, block, table, starts[lines], stops[lines])
        return self._line_by_line(place, block, starts[lines], stops[lines])

    def _parse(self, block: bytes) -> pa.Table | None:
        """The block as columns of strings (ids perhaps int64), or None where the parser refuses it."""
        for id_type in list(self.id_types):
            try:
                table = _parse_json(block, self._schema(id_type))
            except pa.ArrowInvalid:
                continue
            self.id_types.sort(key=lambda one, last=id_type: one != last)
            return table
        return None

    def _schema(self, id_type: pa.DataType) -> pa.Schema:
        """What the parser is told to expect. Dots reach into objects."""
        wanted: dict[str, Any] = {}
        for name, kind in [(self.fields.id, id_type), *((one, pa.string()) for one in self.fields.keep)]:
            _put(wanted, name.split("."), kind)
        _put(wanted, self.fields.text.split("."), pa.string())
        return pa.schema(list(_struct(wanted)))

    def _columns(self, place: int, block: bytes, table: pa.Table, starts: np.ndarray, stops: np.ndarray) -> ReadBatch:
        texts = as_large_string(_reach(table, self.fields.text))
        ids = as_large_string(_reach(table, self.fields.id).cast(pa.string()))
        extra = {name: as_large_string(_reach(table, name)) for name in self.fields.keep}
        places = (starts + place).astype(np.uint64)
        rejected: tuple[Rejected, ...] = ()
        if texts.null_count:
            missing = np.flatnonzero(texts.is_null().to_numpy(zero_copy_only=False))
            error = f"field '{self.fields.text}' is missing or null; expected a string"
            rejected = tuple(
                Rejected(place=int(places[row]), error=error, excerpt=_excerpt(block, starts[row], stops[row]))
                for row in missing.tolist()
            )
            there = texts.is_valid()
            places = places[there.to_numpy(zero_copy_only=False)]
            texts, ids = texts.filter(there), ids.filter(there)
            extra = {name: column.filter(there) for name, column in extra.items()}
        return ReadBatch(places=places, texts=texts, ids=ids, extra=extra, rejected=rejected, input_bytes=len(block))

    # -------------------------------------------------------------------------------------------- line by line

    def _line_by_line(self, place: int, block: bytes, starts: np.ndarray, stops: np.ndarray) -> ReadBatch:
        """Each line by itself, with the same parser; what it refuses is rejected with the reason."""
        places: list[int] = []
        rejected: list[Rejected] = []
        columns: dict[str, list[Any]] = {name: [] for name in ("", self.fields.id, *self.fields.keep)}
        for start, stop in zip(starts.tolist(), stops.tolist()):
            found = self._line(block[start:stop])
            if isinstance(found, str):
                rejected.append(Rejected(place=place + start, error=found, excerpt=_excerpt(block, start, stop)))
                continue
            places.append(place + start)
            for name, values in columns.items():
                values.append(found[name])
        texts = pa.array(columns.pop(""), pa.large_string())
        arrays = {name: pa.array(values, pa.large_string()) for name, values in columns.items()}
        return ReadBatch(
            places=np.array(places, np.uint64),
            texts=texts,
            ids=arrays[self.fields.id],
            extra={name: arrays[name] for name in self.fields.keep},
            rejected=tuple(rejected),
            input_bytes=len(block),
        )

    def _line(self, line: bytes) -> dict[str, str | None] | str:
        """The values of a line, "" being the text; or why it is no document."""
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return f"invalid UTF-8 at byte {error.start} of the line: {error.reason}"
        wanted: dict[str, Any] = {}
        _put(wanted, self.fields.text.split("."), pa.string())
        try:
            table = _parse_json(line, pa.schema(list(_struct(wanted))))
        except pa.ArrowInvalid as error:
            return f"not a line of JSON with a string '{self.fields.text}': {_plain(error)}"
        if table.num_rows != 1:
            return f"{table.num_rows} JSON objects on one line; expected one"
        text = _reach(table, self.fields.text)[0].as_py()
        if text is None:
            return f"field '{self.fields.text}' is missing or null; expected a string"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            return f"not a line of JSON: {error}"
        values = {name: _as_text(_dig(row, name)) for name in self.fields.keep}
        return {self.fields.id: _as_text(_dig(row, self.fields.id)), **values, "": text}


def _parse_json(content: bytes, schema: pa.Schema) -> pa.Table:
    """Arrow's parser over one block, in one chunk; raises ArrowInvalid."""
    return pj.read_json(
        pa.BufferReader(content),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(content) + 1024),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _is_utf8(block: bytes) -> bool:
    """Whether a block is valid UTF-8, which Arrow's JSON parser does not check."""
    offsets = pa.py_buffer(np.array([0, len(block)], np.int64))
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(block)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _put(tree: dict[str, Any], path: list[str], kind: pa.DataType) -> None:
    for part in path[:-1]:
        below = tree.get(part)
        tree = tree.setdefault(part, {}) if isinstance(below, dict) or below is None else tree
    tree.setdefault(path[-1], kind)


def _struct(tree: dict[str, Any]) -> pa.StructType:
    return pa.struct([(name, _struct(kind) if isinstance(kind, dict) else kind) for name, kind in tree.items()])


def _reach(table: pa.Table, name: str) -> pa.ChunkedArray:
    first, *rest = name.split(".")
    column = table.column(first)
    return pc.struct_field(column, rest) if rest else column


def _dig(row: Any, name: str) -> Any:
    for part in name.split("."):
        if not isinstance(row, dict):
            return None
        row = row.get(part)
    return row


def _as_text(value: Any) -> str | None:
    """A value as a column holds it: strings as they are, others as their JSON text."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _plain(error: pa.ArrowInvalid) -> str:
    return str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")


def _excerpt(block: bytes, start: int, stop: int) -> bytes:
    return block[start : min(stop, start + _EXCERPT_BYTES)]
