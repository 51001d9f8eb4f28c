"""The shards that a manifest lists, as columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, overload

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from datapipe import columns
from datapipe.columns import compute
from datapipe.records.outputs import ShardFile

_LENGTH_FOLDER = r"^length-\d+/"
_NOT_NUMBERED = _LENGTH_FOLDER + r"|-[0-9a-f]{16}((?:\.[a-z]+)+)$"
"""In the path of a shard, what is not in its numbered path: the folder of a further sequence length, and the digest."""
PIECE_KEY = b"datapipe.piece_length"
_ABSENT = -1
_ENTRIES_AT_ONCE = 4096
_HASH = pa.decimal128(20)  # a range of hashes may stop at 2^64, which no integer of Arrow holds

_CELL_RUN = [("cell", pa.int32()), ("again", pa.bool_()), *((name, pa.int64()) for name in ("rows", "tokens", "documents"))]

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("path", "source", "split", "checksum")),
        *((name, pa.int64()) for name in ("sequences", "tokens", "documents", "bytes", "text_bytes")),
        *((name, pa.int64()) for name in ("piece_length", "stratum", "part")),
        ("hashes", pa.list_(_HASH)),
        ("cells", pa.list_(pa.struct(_CELL_RUN))),
    ]
)
"""Lists of snapshots whose sources have no cells lack the last column."""

_OUTSIDE = r"[\x00-\x1f\\]|(^|/)\.{0,2}(/|$)|[^/]{256}"
"""In a path: a control character, a backslash, or a part that is empty, "." or "..", or longer than a name may be. Before a
first "/" is an empty part."""

MOST_CHARACTERS = 1000  # of a name, path or checksum in a manifest, which may be another party's
_SHOWN_CHARACTERS = 100


def inside_path(path: str) -> str:
    """Raises ValueError for a path outside the output, so that an untrusted manifest cannot name other files."""
    if len(path) > MOST_CHARACTERS or re.search(_OUTSIDE, path):
        raise ValueError(f"the path '{path[:_SHOWN_CHARACTERS]}' does not lie inside the output")
    return path


def _source_name(name: str) -> str:
    if "/" in inside_path(name):
        raise ValueError(f"'{name}' is not a source name")
    return name


def absent() -> Any:
    """A field that a record lacks where there is no value."""
    return Field(default=None, exclude_if=lambda value: value is None)


InsidePath = Annotated[str, AfterValidator(inside_path)]
SourceName = Annotated[str, AfterValidator(_source_name)]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
ShortText = Annotated[str, Field(max_length=MOST_CHARACTERS)]


class ShardGroup(NamedTuple):
    """What the rows of a shard have in common, where not all rows of its source and split do."""

    # tokens of every piece, where packing put pieces of one length together; else None
    piece_length: int | None = None
    # number of its stratum, from 0, where the source is cut into strata; else None
    stratum: int | None = None

    def metadata(self) -> dict[bytes, bytes]:
        """As its shards have it; a number that is None is absent."""
        numbers = zip((PIECE_KEY, b"datapipe.stratum"), self)
        return {key: str(number).encode() for key, number in numbers if number is not None}

    def shard_name(self, split: Literal["train", "validation"], bucket: int) -> str:
        """The prefix of a shard's name. Sorted by name, the shards of a stratum are neighbours."""
        part = "part" if split == "train" else "validation"
        within = "" if self.stratum is None else f"-stratum-{self.stratum:02d}"
        pieces = "" if self.piece_length is None else f"-pieces-{self.piece_length:05d}"
        return f"{part}{within}-{bucket:05d}{pieces}"


class CellRun(NamedTuple):
    """Neighbouring rows of a shard that belong to one cell of its source. The runs of a shard add up to its rows."""

    cell: Annotated[int, Field(ge=0, lt=1 << 31)]  # its number among the names of `Cells`
    # whether an epoch has these rows once more than the rest of the cell, which is repeated 2.5 times, say
    again: bool
    rows: Count
    tokens: Count  # without padding
    documents: Count  # that start in the run


class CellRuns(NamedTuple):
    """Runs of rows, of several shards: (num_runs,) int64 each, as in `CellRun`."""

    cells: np.ndarray
    again: np.ndarray
    rows: np.ndarray


class ShardEntry(BaseModel):
    """One shard file: rows of tokens, or documents with their text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # path, source: `Snapshot` checks them
    path: ShortText
    source: ShortText
    split: Literal["train", "validation"]
    # sequences, tokens: rows, and tokens of documents without padding; 0 for text
    sequences: Count
    tokens: Count
    documents: Count  # documents that start in the shard
    bytes: Count
    checksum: ShortText
    # UTF-8 bytes of the texts; 0, and absent in the file, for tokens
    text_bytes: Count = Field(default=0, exclude_if=lambda count: not count)
    # piece_length, stratum: as in `ShardGroup`; absent where they are None
    piece_length: Count | None = absent()
    stratum: Count | None = absent()
    # number of the part of its source that it belongs to: which files were added with it; absent for the first
    part: Count | None = absent()
    # start and stop of the range of its documents' shuffle hashes (`rng.shuffle_hash`), so that a document is
    # looked up in few shards; absent if unknown
    hashes: tuple[Annotated[int, Field(ge=0, le=1 << 64)], Annotated[int, Field(ge=0, le=1 << 64)]] | None = absent()
    # whose rows these are, in their order, where the source is cut into cells; absent elsewhere, and of validation rows
    cells: tuple[CellRun, ...] | None = absent()

    @classmethod
    def of(cls, file: ShardFile, **others: Any) -> ShardEntry:
        """The entry of a written file. `others` are the fields that a file does not have, and may be another path."""
        names = ("path", "tokens", "documents", "bytes", "checksum", "piece_length")
        known = {"sequences": file.rows, "cells": file.cells or None, **{name: getattr(file, name) for name in names}}
        return cls(**{**known, **others})

    @property
    def group(self) -> ShardGroup:
        return ShardGroup(self.piece_length, self.stratum)

    @property
    def numbered_path(self) -> str:
        """The path without length-N/ and the digest of the content: "shards/web/part-00003-00000.arrow". It decides
        the order of shards, and states name shards by it."""
        return numbered_path(self.path)

    def runs_between(self, start: int, stop: int) -> Iterator[tuple[CellRun, int, int]]:
        """The runs that rows of the shard from `start` to before `stop` are in, each with its rows among these."""
        begin = 0
        for run in self.cells or ():
            end = begin + run.rows
            if begin < stop and end > start:
                yield run, max(begin, start), min(end, stop)
            begin = end

    def may_have(self, hashes: np.ndarray) -> bool:
        """Whether it may have a document with one of these shuffle hashes, (n,) uint64. Without a range it may have any."""
        if self.hashes is None:
            return True
        first, stop = self.hashes  # a stop of 2^64 is no uint64
        return bool(((hashes >= first) & (hashes <= stop - 1)).any())


def numbered_path(path: str) -> str:
    """`ShardEntry.numbered_path` of a path."""
    return re.sub(_NOT_NUMBERED, r"\1", path)


def shard_path(folder: str, source: str, part: int | None, path: str) -> str:
    """The path of a shard of a source, below `folder`: "shards/web/…", and "shards/web+1/…" for part 1. `path`: of its file."""
    own = f"{source}+{part}" if part else source
    return f"{folder}shards/{own}/{path.rpartition('/')[2]}"


def with_digest(path: str, checksum: str) -> str:
    """The path of a shard with the digest of its content: "…/part-00003-1f2e3d4c5b6a7988.arrow"."""
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.partition(".")
    return f"{folder}{slash}{stem}-{checksum.rpartition(':')[2][:16]}{dot}{ending}"


class RowForm(NamedTuple):
    """What the shards of a snapshot have in common."""

    sequence_length: int
    tokenizer: str  # its fingerprint
    vocab_size: int | None = None  # that ids stay below; None where any id may stand


class ShardTable(Sequence[ShardEntry]):
    """Shards as columns of `SCHEMA`, and as a sequence of `ShardEntry`, made when asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self._entries: dict[int, ShardEntry] = {}

    @classmethod
    def of(cls, entries: Sequence[ShardEntry]) -> ShardTable:
        if isinstance(entries, ShardTable):
            return entries
        if not entries:  # as on a client of a service; `pa.table` would import pandas, where it is installed
            return cls(pa.Table.from_batches([], SCHEMA))
        values = zip(*map(attrgetter(*SCHEMA.names), entries))
        return cls(pa.table(dict(zip(SCHEMA.names, values)), SCHEMA))

    def __len__(self) -> int:
        return self._table.num_rows

    @overload
    def __getitem__(self, index: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ShardEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> ShardEntry | tuple[ShardEntry, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(len(self))[index])
        number = range(len(self))[index]
        if number not in self._entries:
            self._entries[number] = next(self._made(number, number + 1))
        return self._entries[number]

    def __iter__(self) -> Iterator[ShardEntry]:
        for start in range(0, len(self), _ENTRIES_AT_ONCE):
            yield from self._made(start, start + _ENTRIES_AT_ONCE)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (ShardTable, tuple)):
            return NotImplemented
        return self._table.equals(ShardTable.of(other)._table)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _made(self, start: int, stop: int) -> Iterator[ShardEntry]:
        rows = self._table.slice(start, stop - start)
        for row in zip(*(rows.column(name).to_pylist() for name in SCHEMA.names)):
            yield ShardEntry(**dict(zip(SCHEMA.names, row)))

    def check_paths(self) -> None:
        """Raises ValueError as `inside_path`, and where two shards have one path."""
        paths = self._table.column("path")
        for path in paths.filter(compute.match_substring_regex(paths, _OUTSIDE)).to_pylist():
            inside_path(path)
        if compute.count_distinct(paths).as_py() < len(self):
            raise ValueError("a shard is listed twice")

    def column(self, name: str) -> pa.Array:
        return columns.contiguous(self._table.column(name))

    def cell_runs(self) -> tuple[np.ndarray, CellRuns]:
        """(num_shards,) int64, the runs of each shard; -1 for a shard without cells. And the runs of all shards, end to end."""
        lists = self.column("cells")
        counts = columns.numbers(compute.fill_null(compute.list_value_length(lists), _ABSENT)).astype(np.int64)
        flat = lists.flatten()
        numbers = (columns.numbers(columns.contiguous(flat.field(name))).astype(np.int64) for name in ("cell", "again", "rows"))
        return counts, CellRuns(*numbers)

    def check_cells(self, num_cells: Mapping[str, int]) -> None:
        """Raises ValueError for a shard whose runs are not its rows, or are of no cell. `num_cells`: by source with cells."""
        owners, counts, rows = self.sources_among([*num_cells]), *self.cell_runs()
        is_cut = (owners >= 0) & columns.numbers(compute.equal(self.column("split"), "train"))
        run_shards = np.repeat(np.arange(len(self)), np.maximum(counts, 0))
        sums = np.zeros(len(self), np.int64)
        np.add.at(sums, run_shards, rows.rows)
        limits = np.array([*num_cells.values(), 0], np.int64)[owners]
        strange = np.zeros(len(self), np.bool_)
        strange[run_shards[(rows.cells < 0) | (rows.cells >= limits[run_shards]) | (rows.rows < 0)]] = True
        for found, problem in (
            ((counts >= 0) & ~is_cut, "has rows of cells, and its source or its split has no cells"),
            (is_cut & (sums != self.sequences), "has rows of cells that do not add up to its rows"),
            (strange, "has rows of a cell that its source does not have"),
        ):
            if found.any():
                raise ValueError(f"{self[int(np.flatnonzero(found)[0])].path} {problem}")

    @property
    def sequences(self) -> np.ndarray:
        """(num_shards,) int64."""
        return columns.numbers(self.column("sequences"))

    @property
    def strata(self) -> np.ndarray:
        """(num_shards,) int64: -1 where the source is not cut into strata."""
        return columns.numbers(compute.fill_null(self.column("stratum"), _ABSENT))

    @property
    def parts(self) -> np.ndarray:
        """(num_shards,) int64."""
        return columns.numbers(compute.fill_null(self.column("part"), 0))

    @cached_property
    def numbered_paths(self) -> pa.Array:
        return compute.replace_substring_regex(self.column("path"), _NOT_NUMBERED, r"\1")

    def in_order(self, split: str) -> ShardTable:
        """The shards of a split, sorted by source, part and path without digest: the order of their rows."""
        shards = pa.table({"source": self.column("source"), "part": self.parts, "path": self.numbered_paths})
        order = compute.sort_indices(shards, sort_keys=[(name, "ascending") for name in shards.column_names])
        chosen = compute.equal(self.column("split"), split).take(order)
        return ShardTable(self._table.take(order.filter(chosen)))

    def of_source(self, source: str, split: str) -> ShardTable:
        """The shards of a source and split, in the order of their rows."""
        chosen = compute.and_(compute.equal(self.column("source"), source), compute.equal(self.column("split"), split))
        return ShardTable(self._table.filter(chosen)).in_order(split)

    def sources_among(self, names: Sequence[str]) -> np.ndarray:
        """(num_shards,) int64: the number of each shard's source in `names`; -1 for a source that is not there."""
        known = pa.array(list(names), pa.string())
        return columns.numbers(compute.fill_null(compute.index_in(self.column("source"), known), _ABSENT)).astype(np.int64)

    def of_part(self, part: int) -> pa.Table:
        """The shards of a part, in their order, as columns of `SCHEMA`."""
        return self._table.filter(pa.array(self.parts == part))

    def named(self, paths: Collection[str]) -> list[tuple[int, str]]:
        """(number, path) of the shards that `paths` name, each with or without length-N/, and the digest of its content."""
        wanted = pa.array(list(paths), pa.string())
        own = self.column("path")
        names = (own, compute.replace_substring_regex(own, _LENGTH_FOLDER, ""), self.numbered_paths) if paths else ()
        positions = (
            (number, column[number].as_py())
            for column in names
            for number in np.flatnonzero(columns.numbers(compute.is_in(column, wanted))).tolist()
        )
        return list(dict.fromkeys(positions))
