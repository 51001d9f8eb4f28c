"""Parses blocks of JSON lines: text by Arrow's JSON parser, id and kept fields by a kernel.

    block ─▶ lines ─▶ UTF-8? framed by braces? ─▶ Arrow's JSON parser: valid JSON, the text ─▶ id, kept fields
                                                     └─▶ a block that is refused is parsed in parts, down to the line at fault

The result for a line never depends on its neighbours: a block is accepted only if it is valid UTF-8 without NUL bytes, each
line is framed by braces, and there are as many rows as lines. Ids and kept fields are taken as they are written, so no type is
inferred from other lines: the source has one type for each field (`_json/values.py`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from datapipe.columns import as_large_string, contiguous, texts_from
from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass, replace
from datapipe.kernels.text.jsonlines import BLANK, FRAMED, OTHER, FieldPath, split_lines
from datapipe.stage import FieldNames, ReadBatch, Rejected
from datapipe.stage.decoding import EXCERPT_BYTES, Block, too_long
from datapipe.stage.reader import NOT_SAMPLED
from stages.read._json.values import kept_columns

_CHANGED = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+)")
_TWICE = re.compile(r"Column\(/?(.*)\) was specified twice")
_ROW = re.compile(r" in row (\d+)$")
_PLAINER = {
    "Invalid encoding in string": "a raw control character in a string; expected it escaped",
    "The document is empty": "text after the object; expected one object on the line",
    "The surrogate pair in string is invalid": "half a surrogate pair (\\ud800 to \\udfff); expected both "
    "halves, or `lone_surrogates: replace` of the source",
    "Number too big to be stored in double": "a number beyond the range of a 64-bit float",
}
"""Clearer words for messages of Arrow's parser."""
_SURROGATES = re.compile(
    rb"(?P<backslashes>\\+)u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<low>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
"""Escapes of halves of surrogate pairs, and of whole pairs. Such a half and U+FFFD have as many bytes."""
_MOST_PARSED_BYTES = 64 << 20
_NO_KEY = "\0"  # of no object: a line with the byte is refused
_LONGEST_WORD = len("-Infinity")
_CUT_OFF = "the file is cut off: it ends within the object on its last line"
_NO_OBJECT = "not a JSON object: expected '{' to '}' on one line; `jq -c .` writes objects so"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """Framed lines `content[starts[i] : stops[i]]` with only blank lines between them."""

    content: memoryview
    starts: np.ndarray
    stops: np.ndarray

    def part(self, first: int, last: int) -> _Run:
        return _Run(content=self.content, starts=self.starts[first:last], stops=self.stops[first:last])

    def lines(self, rows: np.ndarray) -> _Run:
        """Some of the lines, copied."""
        return _copied(self.content, self.starts[rows], self.stops[rows])

    @property
    def bytes(self) -> memoryview:
        return self.content[self.starts[0] : self.stops[-1]]


class _TextPath:
    """Where an object has its text: the names of the members, outermost first; none where no text is read."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        kind: Any = pa.large_string()
        for name in reversed(names or [_NO_KEY]):
            kind = pa.struct([(name, kind)])
        self.options = pj.ParseOptions(explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore")


class _Refused(Exception):  # noqa: N818
    """Arrow's parser refused some lines, the first behind `num_before` others, as far as it reports it."""

    def __init__(self, reason: str, num_before: int) -> None:
        super().__init__(reason)
        self.num_before = num_before


class LineParser:
    """Turns blocks of lines into documents and rejected lines; blocks do not affect each other."""

    def __init__(self, fields: FieldNames, max_line_bytes: int) -> None:
        self.fields = fields
        self.max_line_bytes = max_line_bytes
        self.text_path = _TextPath([] if fields.text is None else fields.text.split("."))
        self.text_key = _TextPath([fields.text]) if fields.text is not None and "." in fields.text else None
        self.id = NamedField(fields.id)
        self.kept = {name: NamedField(name) for name in fields.keep}

    def documents(self, block: Block) -> ReadBatch:
        """The documents and rejected lines of a block of whole lines."""
        if self.fields.replaces_surrogates:
            block = replace(block, content=_SURROGATES.sub(_without_lone_half, block.content))
        content, data = block.content, np.frombuffer(block.content, np.uint8)
        starts, stops, kinds = split_lines(data)
        positions, left_out = block.positions(starts), 0
        if self.fields.sample is not None:
            is_line = kinds != BLANK
            chosen = is_line & self.fields.sample.has(positions)
            chosen[-1:] = is_line[-1:]  # where the file may be cut off
            left_out = int((is_line & ~chosen).sum())
            run = _copied(content, starts[chosen], stops[chosen])
            content, starts, stops, kinds, positions = (
                bytes(run.content),
                run.starts,
                run.stops,
                kinds[chosen],
                positions[chosen],
            )
            data = np.frombuffer(content, np.uint8)
        rows, texts, rejects = self._accepted(content, starts, stops, kinds)
        own, known = (data, starts[rows], stops[rows]), np.full((2, len(rows)), -1, np.int64)
        kept = {name: field.values(*own, known) for name, field in self.kept.items()}
        extra, wider = kept_columns(kept, self.fields)
        bad = sorted(rejects)
        return ReadBatch(
            positions=positions[rows],
            content=texts,
            ids=self.id.values(*own, known)[0],
            extra=extra,
            wider=wider,
            rejected=tuple(
                Rejected(
                    position=position,
                    error=rejects[row],
                    excerpt=content[starts[row] : min(stops[row], starts[row] + EXCERPT_BYTES)],
                )
                for row, position in zip(bad, positions[bad].tolist())
            ),
            passed_over={NOT_SAMPLED: left_out} if left_out else {},
            input_bytes=len(block.content),
        )

    def _accepted(
        self, content: bytes, starts: np.ndarray, stops: np.ndarray, kinds: np.ndarray
    ) -> tuple[np.ndarray, pa.Array, dict[int, str]]:
        """The lines that are documents, (num_docs,) int64; their texts; and by line the errors of all others."""
        rejects = undecodable(content, starts, stops, "not valid JSON: a NUL byte; expected it as \\u0000 in a string")
        rejects |= dict.fromkeys(np.flatnonzero(kinds == OTHER).tolist(), _NO_OBJECT)
        rejects |= dict.fromkeys(np.flatnonzero(stops - starts > self.max_line_bytes).tolist(), too_long(self.max_line_bytes))
        good = kinds == FRAMED
        good[list(rejects)] = False
        rows = np.flatnonzero(good)
        texts, refused = self._named_texts(_run_of(content, starts, stops, kinds, good))
        rejects |= {int(rows[number]): error for number, error in refused.items()}
        if texts.null_count:
            valid = texts.is_valid()
            mask = valid.to_numpy(zero_copy_only=False)
            missing = f"field '{self.fields.text}' is missing or null; expected a string"
            rejects = dict.fromkeys(rows[~mask].tolist(), missing) | rejects
            rows, texts = rows[mask], texts.filter(valid)
        return rows, texts, rejects

    def _named_texts(self, run: _Run) -> tuple[pa.Array, dict[int, str]]:
        """The text of each line by the path of the name, or else by a key of the very name; errors as `_texts`."""
        texts, refused = self._texts(run, self.text_path)
        if self.text_key is None or not texts.null_count:
            return texts, refused
        rows = null_rows(texts)
        others, refused_others = self._texts(run.lines(rows), self.text_key)
        texts = pc.replace_with_mask(texts, texts.is_null(), others)
        errors = {row: error for row, error in refused.items() if not texts[row].is_valid}
        wrong_keys = {number: error for number, error in refused_others.items() if error.startswith("field ")}
        return texts, errors | {int(rows[number]): error for number, error in wrong_keys.items()}

    def _texts(self, run: _Run, path: _TextPath) -> tuple[pa.Array, dict[int, str]]:
        """The text of each line, null where there is none; and the errors of refused lines, by line. A refused run is parsed
        up to the line at fault and from there on, so a bad line costs a few calls of the parser."""
        chunks: list[pa.Array] = []
        refused: dict[int, str] = {}
        runs = [(0, len(run.starts))] if len(run.starts) else []
        while runs:
            first, last = runs.pop()
            try:
                chunks.append(self._parse(run.part(first, last), path))
            except _Refused as error:
                if last - first > 1:
                    middle = first + min(max(1, error.num_before), last - first - 1)
                    runs += [(middle, last), (first, middle)]
                else:
                    refused[first] = str(error)
                    chunks.append(pa.nulls(1, pa.large_string()))
        return contiguous(pa.chunked_array(chunks, pa.large_string())), refused

    def _parse(self, run: _Run, path: _TextPath) -> pa.Array:
        """The texts of lines that are one object each, equal to the texts of each line alone. Raises `_Refused` otherwise."""
        num_lines = len(run.starts)
        reading = pj.ReadOptions(use_threads=False, block_size=len(run.bytes) + 1024)
        try:
            with pj.open_json(pa.BufferReader(run.bytes), read_options=reading, parse_options=path.options) as stream:
                table = stream.read_all()
        except pa.ArrowInvalid as error:
            row = _ROW.search(str(error))
            raise _Refused(_in_words(str(error)), int(row[1]) if row else num_lines // 2) from None
        if table.num_rows != num_lines:
            raise _Refused(f"{table.num_rows} JSON objects on one line; expected one", num_lines // 2)
        if not path.names:
            return pa.repeat(pa.scalar("", pa.large_string()), num_lines)
        first, *inner = path.names
        column = table.column(first)
        return as_large_string(pc.struct_field(column, inner) if inner else column)


def _without_lone_half(match: re.Match[bytes]) -> bytes:
    """An escaped pair, and what only looks like an escape, as it is; U+FFFD in the place of half a pair."""
    if len(match["backslashes"]) % 2:
        return match[0] if match["low"] else match["backslashes"] + b"ufffd"
    return match[0].removesuffix(match["low"]) + b"\\ufffd" if match["low"] else match[0]


def with_cut_off(batch: ReadBatch, block: Block, max_line_bytes: int) -> ReadBatch:
    """The batch of a block. If the file ends within the object on its last line, the reject of the
    line stands for the documents that are lost behind it."""
    start = block.content.rfind(b"\n") + 1
    is_last = bool(batch.rejected) and batch.rejected[-1].position == block.position(start)
    if not is_last or not 0 < len(block.content) - start <= max_line_bytes or not _is_open_object(block.content[start:]):
        return batch
    *others, last = batch.rejected
    return replace(batch, rejected=(*others, replace(last, error=_CUT_OFF, is_file_damage=True)))


def _is_open_object(line: bytes) -> bool:
    """Whether a line is the beginning of a JSON object: JSON is right up to its end, or to the last number or word in it."""
    if len(line) > _MOST_PARSED_BYTES or not line.lstrip().startswith(b"{"):
        return False
    text = line.decode(errors="replace").rstrip()
    try:
        json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        rest = text[error.pos :]
        return error.msg.startswith("Unterminated string") or (len(rest) <= _LONGEST_WORD and not set(rest) & set('"{}[],:'))
    except (ValueError, RecursionError):  # a number of too many digits, deep nesting
        return False
    return False


def undecodable(content: bytes, starts: np.ndarray, stops: np.ndarray, nul_error: str) -> dict[int, str]:
    """The errors of lines that are not UTF-8 or have NULs, by line: Arrow accepts both."""
    data = np.frombuffer(content, np.uint8)
    try:
        texts_from(np.array([0, len(data)]), data).validate(full=True)
        if len(data) and data.min() > 0:
            return {}
    except pa.ArrowInvalid:
        pass
    errors: dict[int, str] = {}
    for line, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist())):
        try:
            if "\0" in content[start:stop].decode():
                errors[line] = nul_error
        except UnicodeDecodeError:
            errors[line] = "invalid UTF-8; expected a line of UTF-8 text"
    return errors


def _run_of(content: bytes, starts: np.ndarray, stops: np.ndarray, kinds: np.ndarray, good: np.ndarray) -> _Run:
    """The accepted lines as one run: the block itself, or a copy without the other lines."""
    if (good | (kinds == BLANK)).all():
        return _Run(content=memoryview(content), starts=starts[good], stops=stops[good])
    return _copied(content, starts[good], stops[good])


def _copied(content: bytes | memoryview, starts: np.ndarray, stops: np.ndarray) -> _Run:
    lines = [content[start:stop] for start, stop in zip(starts.tolist(), stops.tolist())]
    ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64)
    begins = np.concatenate([np.zeros(1, np.int64), ends])[: len(lines)]
    return _Run(content=memoryview(b"\n".join(lines)), starts=begins, stops=ends - 1)


def _in_words(error: str) -> str:
    if changed := _CHANGED.search(error):
        path, expected, actual = changed.groups()
        return f"field '{path.replace('/', '.')}' is of type {actual}; expected {expected}"
    if twice := _TWICE.search(error):
        return f"field '{twice[1].replace('/', '.')}' occurs twice in one object"
    message = _ROW.sub("", error).removeprefix("JSON parse error: ").rstrip(".")
    return f"not valid JSON: {_PLAINER.get(message, message)}"


class NamedField:
    def __init__(self, name: str) -> None:
        self._path = FieldPath(name.split("."))
        self._key = FieldPath([name]) if "." in name else None

    def values(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, known: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        """The values in parsed lines as strings, (num_lines,) large_string, null for none; and the
        first byte of each, uint8. `known`: as in `FieldPath.values`."""
        values, firsts = _column(*self._path.values(data, starts, stops, known))
        if self._key is None or not values.null_count:
            return values, firsts
        rows = null_rows(values)
        others, firsts[rows] = _column(*self._key.values(data, starts[rows], stops[rows]))
        return pc.replace_with_mask(values, values.is_null(), others), firsts


def _column(valid: np.ndarray, offsets: np.ndarray, content: np.ndarray, firsts: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    values = texts_from(offsets, content)
    return values if valid.all() else pc.if_else(pa.array(valid), values, pa.scalar(None, pa.large_string())), firsts


def null_rows(values: pa.Array) -> np.ndarray:
    """The rows of a column that are null, ascending."""
    return np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
