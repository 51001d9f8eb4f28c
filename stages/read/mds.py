"""MDS, the shards of MosaicML streaming: one sample, one document.

    number of samples, u32 ─▶ offsets of all samples and of the end, u32 ─▶ columns as JSON ─▶ samples
    sample: the sizes of its columns of variable length, u32 each ─▶ the columns, in the order of their names

`index.json` beside a shard lists sizes and hashes of all: a shard that differs from them is damaged, and one that it does not
list is no part of the data set. The position of a document is its number in the shard. Memory is one batch, or one sample, and
the offsets. The layout is that of `format/mds/writer.py` of github.com/mosaicml/streaming 0.13, format version 2.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from datapipe.columns import byte_slices
from datapipe.dataclass import dataclass, replace
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split
from datapipe.stage.decoding import HEAD_BYTES, BrokenStreamError, ByteStream, decoded, lfs_pointer
from datapipe.stage.documents import TARGET_BATCH_BYTES
from datapipe.stage.field_types import parsed_json
from stages.read._column_files import BATCH_ROWS, damaged
from stages.read._json.values import as_json
from stages.read._parquet_columns import documents

_MOST_SAMPLES = 1 << 26
_MOST_CONFIG_BYTES = 16 << 20
_MOST_INDEX_BYTES = 1 << 30
_INDEX = "index.json"

_NUMBERS = {
    "int": "<i8",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_STRINGS = frozenset({"str", "str_int", "str_float", "str_decimal", "json", "bytes"})


class Mds(Reader):
    """Reads MDS shards of text, plain or compressed, and compares them with the sizes and hashes of their `index.json`.

    The text is a column of strings, of UTF-8 bytes, or of JSON strings; dots reach into JSON columns. Kept numbers keep their
    types; kept JSON is a string. Name the shards by `path: FOLDER/*.mds`, or `FOLDER/*.mds.zstd`.
    """

    extensions: ClassVar[tuple[str, ...]] = (".mds",)
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    max_sample_bytes: int = Field(
        default=64 << 20, ge=1, description="Maximum bytes of a sample. Larger samples are quarantined, and not held in memory."
    )

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        row = 0
        try:
            listed = _listed(split.file, open_input)
            checked = _Checked(decoded(open_input, split.file.url, split.file.compression), listed)
            stream = ByteStream(iter(checked))
            for batch in _Shard.opened(stream).batches(stream, fields, self.max_sample_bytes):
                yield batch
                row += len(batch.positions) + len(batch.rejected)
            checked.check_end(stream)
        except BrokenStreamError as error:
            yield damaged(row, str(error))

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """Of a shard without the text, such as one of tokens: its columns. Of another one, as by default."""
        try:
            shard = _Shard.opened(ByteStream(decoded(open_input, split.file.url, split.file.compression)))
            found = shard.wanted(fields)
        except BrokenStreamError:
            return FieldsSeen()
        if fields.text is None or fields.text in found:
            return super().fields_seen(split, fields, open_input)
        return FieldsSeen(num_records=len(shard.sizes), found=frozenset(found), names=tuple(shard.columns))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed:
    """The entry of an index about a shard once it is decompressed, and about the stored file."""

    num_bytes: int
    stored_bytes: int
    hashes: Mapping[str, str]


def _listed(file: InputFile, open_input: OpenInput) -> _Listed | None:
    """The entry of the shard in the index beside it; None without an index. Raises BrokenStreamError."""
    name = file.path.rpartition("/")[2]
    begin = file.url.rindex(name)
    try:
        with open_input(file.url[:begin] + _INDEX + file.url[begin + len(name) :]) as stream:
            content = stream.read(min(stream.size(), _MOST_INDEX_BYTES)) if stream.size() else b""
    except FileNotFoundError:
        return None
    if pointer := lfs_pointer(content):
        raise BrokenStreamError(f"index.json beside the shard: {pointer}")
    try:
        listed = _shards_of(content).get(name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenStreamError(f"index.json beside the shard is damaged: {type(error).__name__}: {error}") from None
    if listed is None:
        raise BrokenStreamError(
            "index.json does not list this shard, so it is no part of the data set; remove it, or the index"
        )
    if listed.stored_bytes != file.num_bytes:
        with open_input(file.url) as stream:
            if pointer := lfs_pointer(stream.read(min(HEAD_BYTES, file.num_bytes))):
                raise BrokenStreamError(pointer)
        raise BrokenStreamError(f"the shard has {file.num_bytes} bytes, and index.json has {listed.stored_bytes}")
    return listed


@lru_cache(maxsize=2)
def _shards_of(content: bytes) -> dict[str, _Listed]:
    """The shards of an index by the names of their files, plain and compressed."""
    listed: dict[str, _Listed] = {}
    for shard in json.loads(content)["shards"]:
        raw, zipped = shard["raw_data"], shard.get("zip_data")
        for stored in (raw, zipped) if zipped else (raw,):
            listed[stored["basename"]] = _Listed(
                num_bytes=int(raw["bytes"]),
                stored_bytes=int(stored["bytes"]),
                hashes={str(name): str(digest) for name, digest in raw.get("hashes", {}).items()},
            )
    return listed


class _Checked:
    """The content of a shard, whose size and hashes of known algorithms are compared with the index at its end."""

    def __init__(self, chunks: Iterator[bytes], listed: _Listed | None) -> None:
        self._chunks, self._listed = chunks, listed
        hashes = {name: _hash_of(name) for name in listed.hashes} if listed else {}
        self._hashes = {name: hashed for name, hashed in hashes.items() if hashed is not None}

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            for hashed in self._hashes.values():
                hashed.update(chunk)
            yield chunk

    def check_end(self, stream: ByteStream) -> None:
        """Reads to the end. Raises BrokenStreamError where it goes on behind its samples, or is not that of the index."""
        num_bytes = stream.position
        if num_behind := sum(map(len, stream.rest())):
            raise BrokenStreamError(f"{num_behind} bytes follow the last sample of the shard; expected its end")
        if self._listed is not None and num_bytes != self._listed.num_bytes:
            raise BrokenStreamError(f"the shard has {num_bytes} bytes, and index.json has {self._listed.num_bytes}")
        for name, hashed in self._hashes.items():
            expected = self._listed.hashes[name] if self._listed else ""
            if hashed.hexdigest() != expected.lower():
                raise BrokenStreamError(
                    f"the {name} of the shard is {hashed.hexdigest()}, index.json has {expected}: some documents may be damaged"
                )


def _hash_of(name: str) -> Any:
    if name in xxhash.algorithms_available:
        return getattr(xxhash, name)()
    is_known = name in hashlib.algorithms_available and not name.startswith("shake")
    return hashlib.new(name, usedforsecurity=False) if is_known else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    """A column of `size` bytes, None if it varies. `path`: names in its JSON, () for a JSON string; None for the JSON."""

    number: int
    encoding: str
    size: int | None
    path: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shard:
    """A shard whose stream stands at its first sample: columns in their order, and (num_samples,) int64 bytes."""

    columns: dict[str, _Column]
    sizes: np.ndarray

    @classmethod
    def opened(cls, stream: ByteStream) -> _Shard:
        """Raises BrokenStreamError."""
        head = _exactly(stream, 4, "the number of its samples")
        num_samples = int.from_bytes(head, "little")
        if num_samples > _MOST_SAMPLES:
            raise BrokenStreamError(
                f"the shard declares {num_samples} samples; expected an MDS shard of at most {_MOST_SAMPLES}"
            )
        table = _exactly(stream, 4 * (num_samples + 1), f"the offsets of {num_samples} samples")
        offsets = np.frombuffer(table, "<u4").astype(np.int64)
        sizes = np.diff(offsets)
        config_bytes = int(offsets[0]) - stream.position
        if not 2 <= config_bytes <= _MOST_CONFIG_BYTES or (len(sizes) and sizes.min() < 0):
            raise BrokenStreamError("the offsets of the shard do not ascend from behind its columns; expected an MDS shard")
        return cls(columns=_columns(_exactly(stream, config_bytes, "its columns")), sizes=sizes)

    def wanted(self, fields: FieldNames) -> dict[str, _Column]:
        """The needed columns that the shard has. Raises BrokenStreamError for one whose encoding is not read."""
        picked: dict[str, _Column] = {}
        for name in dict.fromkeys((*fields.wanted, fields.id)):
            first, *rest = [name] if name in self.columns else name.split(".")
            column = self.columns.get(first)
            if column is None or (rest and column.encoding != "json"):
                continue
            if column.encoding not in _STRINGS and column.encoding not in _NUMBERS:
                known = ", ".join(sorted({*_STRINGS, *_NUMBERS}))
                raise BrokenStreamError(f"column '{first}' is encoded as {column.encoding}; expected one of {known}")
            path = (*rest,) if rest or name in (fields.text, fields.id) else None
            picked[name] = _Column(number=column.number, encoding=column.encoding, size=column.size, path=path)
        return picked

    def batches(self, stream: ByteStream, fields: FieldNames, max_bytes: int) -> Iterator[ReadBatch]:
        """All documents and rejects. Raises BrokenStreamError where the shard is cut off, behind the last whole sample."""
        columns = self.wanted(fields)
        # a sample costs enough that a batch holds at most `BATCH_ROWS`; one above the limit is a range by itself
        costs = np.maximum(self.sizes, TARGET_BATCH_BYTES // BATCH_ROWS)
        for start, stop in byte_slices(np.where(self.sizes > max_bytes, TARGET_BATCH_BYTES, costs), TARGET_BATCH_BYTES):
            sizes = self.sizes[start:stop]
            if sizes[0] > max_bytes:
                error = f"a sample of {sizes[0]} bytes, more than max_sample_bytes, {max_bytes}"
                num_whole = int(stream.skip(int(sizes[0])) == sizes[0])
                batch = ReadBatch.of_rejected(Rejected(position=start, error=error))
            else:
                content = stream.read(int(sizes.sum()))
                num_whole = int(np.searchsorted(np.cumsum(sizes), len(content), "right"))
                batch = self._documents(content, sizes[:num_whole], columns, start, fields)
            yield batch
            if num_whole < len(sizes):
                raise BrokenStreamError(f"the shard is cut off within sample {start + num_whole} of {len(self.sizes)}")

    def _documents(
        self, content: bytes, sizes: np.ndarray, columns: dict[str, _Column], row: int, fields: FieldNames
    ) -> ReadBatch:
        """The documents of samples, one behind the other in `content`; sizes: (num_samples,)."""
        data, ends = np.frombuffer(content, np.uint8), np.cumsum(sizes)
        starts, stops = self._spans(data, ends - sizes, sizes)  # (num_samples, num_columns) each
        is_right = (sizes > 0) & (stops[:, -1] == ends) if len(sizes) else np.zeros(0, bool)
        rows = np.flatnonzero(is_right)
        arrays = {
            name: _values(content, data, column, starts[rows, column.number], stops[rows, column.number])
            for name, column in columns.items()
        }
        if not arrays:
            error = f"field '{fields.content}' is not in the shard; expected a column of strings"
            return ReadBatch.of_rejected(*(Rejected(position=row + number, error=error) for number in range(len(sizes))))
        batch = documents(pa.RecordBatch.from_pydict(arrays), rows.astype(np.uint64) + np.uint64(row), fields)
        wrong = [
            Rejected(position=row + int(number), error=f"the columns of the sample do not fill its {sizes[number]} bytes")
            for number in np.flatnonzero(~is_right)
        ]
        rejected = sorted([*wrong, *batch.rejected], key=lambda each: each.position)
        return replace(batch, rejected=tuple(rejected), input_bytes=len(content))

    def _spans(self, data: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the columns of samples begin and end in `data`, (num_samples, num_columns) int64
        each. A sample that is too short for the sizes at its beginning has columns of none."""
        columns = self.columns.values()
        num_sizes = sum(column.size is None for column in columns)
        has_sizes = sizes >= 4 * num_sizes
        widths = np.zeros((len(sizes), len(columns)), np.int64)
        varying = np.array([column.size is None for column in columns], bool)
        widths[:, ~varying] = [column.size for column in columns if column.size is not None]
        positions = begins[has_sizes, None] + np.arange(4 * num_sizes)  # (num_samples with sizes, bytes of sizes)
        widths[np.ix_(has_sizes, varying)] = data[positions].view("<u4") if num_sizes else 0
        stops = begins[:, None] + 4 * num_sizes + np.cumsum(widths, axis=1)
        return stops - widths, stops


def _columns(config: bytes) -> dict[str, _Column]:
    try:
        described = json.loads(config)
        version, names = described["version"], described["column_names"]
        columns = {
            str(name): _Column(number=number, encoding=str(encoding), size=None if size is None else int(size))
            for number, (name, encoding, size) in enumerate(
                zip(names, described["column_encodings"], described["column_sizes"], strict=True)
            )
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BrokenStreamError(f"the columns of the shard are damaged: {type(error).__name__}: {error}") from None
    if version != 2 or len(columns) != len(names):
        raise BrokenStreamError(
            f"the shard has format version {version}, columns {names}; expected version 2, each column once"
        )
    for name, column in columns.items():
        expected = np.dtype(_NUMBERS[column.encoding]).itemsize if column.encoding in _NUMBERS else column.size
        if column.size != expected or (column.size is not None and (column.size < 1 or column.encoding in _STRINGS)):
            raise BrokenStreamError(f"column '{name}' of encoding {column.encoding} has values of {column.size} bytes each")
    return columns


def _exactly(stream: ByteStream, num_bytes: int, what: str) -> bytes:
    content = stream.read(num_bytes)
    if len(content) < num_bytes:
        raise BrokenStreamError(f"the shard is cut off: {len(content)} of {num_bytes} bytes of {what}")
    return content


def _values(content: bytes, data: np.ndarray, column: _Column, starts: np.ndarray, stops: np.ndarray) -> pa.Array:
    if column.encoding in _NUMBERS:
        assert column.size is not None
        raw = np.ascontiguousarray(data[starts[:, None] + np.arange(column.size)])
        return pa.array(np.frombuffer(raw, _NUMBERS[column.encoding]))
    values = [content[start:stop] for start, stop in zip(starts.tolist(), stops.tolist())]
    if column.encoding == "json" and column.path is not None:
        return pa.array([_inside(value, column.path) for value in values], pa.large_string())
    stored = pa.array(values, pa.large_binary())
    return stored if column.encoding == "bytes" else stored.view(pa.large_string())  # `documents` checks whether they are UTF-8


def _inside(content: bytes, path: tuple[str, ...]) -> str | None:
    """The value at a path of JSON as a string; null where there is none."""
    try:
        value = parsed_json(content)
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        text = value if isinstance(value, str) or value is None else as_json(value)
        return None if text is None else text.encode().decode()
    except (ValueError, RecursionError):
        return None
