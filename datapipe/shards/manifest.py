"""snapshot.json: the immutable manifest, written last. It is enough to find, check and order every shard.

    OUTPUT/snapshot.json                            the newest snapshot
    OUTPUT/snapshots/<fingerprint>/snapshot.json    every snapshot, beside its tokenizer.json and files.parquet
    OUTPUT/shards/web/part-00003-00000-<digest>.arrow    shards of all of them; the name ends in a digest of the content
    OUTPUT/length-8192/shards/web/part-…                 those of a further sequence length
    OUTPUT/documents/web/part-00003-<digest>.parquet     shards of text instead, where a run has no tokenizer

    snapshot.json ── lists[]      lists/<digest>.parquet: path, source, split, counts, bytes and checksum of every shard
                  ── sources{}    weight, max_epochs, and where the text comes from (`source_entry.py`)
                  ── mixture      phases of integer weights over token positions
                  ── tokenizer    file, fingerprint, vocabulary size, end-of-text id; absent for shards of text
                  ── files        files.parquet: first half of a document key -> source and path
                  ── removed      removed.parquet: documents that were taken down, where there are any
                  ── chat_template    chat_template.jinja, of conversations
                  ── trusted[]    tasks that other versions of libraries ran, where there are any
                  ── further[]    of each further sequence length: its lists, phases and weights

The fingerprint covers every other field. The manifest holds no path outside the output and no time:
equal runs write equal snapshots. Manifests of version 2, which hold the shards themselves, are read too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar
from weakref import WeakValueDictionary

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import from_json

from datapipe.errors import SnapshotError
from datapipe.machine.memory import without_collection
from datapipe.quantities import counted
from datapipe.records.checksum import bytes_checksum, intact
from datapipe.records.names import SNAPSHOT
from datapipe.records.versions import TrustedRecords
from datapipe.shards.leaves import problem_of
from datapipe.shards.shard_lists import list_files, read_lists
from datapipe.shards.shard_table import (
    Count,
    InsidePath,
    RowForm,
    ShardEntry,
    ShardTable,
    ShortText,
    SourceName,
    absent,
)
from datapipe.shards.snapshot_folder import find_snapshot, output_of, snapshot_folder
from datapipe.shards.source_entry import SourceEntry
from datapipe.storage.root import Root

_SHOWN_CHARACTERS = 300
_REMEDY = "Copy it back from snapshots/FINGERPRINT/, or run the mixture again to rewrite it."


def _as_table(value: Any, entries: ValidatorFunctionWrapHandler) -> ShardTable:
    """The shards as columns: an object for each would stay in the memory of every process that reads the manifest."""
    return value if isinstance(value, ShardTable) else ShardTable.of(entries(value))


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Phase(_Record):
    """Weights that hold until token position `until_tokens` of the run (None: to its end)."""

    until_tokens: Count | None
    weights: dict[InsidePath, int]  # of sources, cells, and patterns of cells: see `leaves.py`


ShardList = Annotated[Sequence[ShardEntry], WrapValidator(_as_table), Field(exclude=True, validate_default=True)]


class TokenizerEntry(_Record):
    """The tokenizer, and the ids that end and begin every document. A manifest without a `bos_id` lacks the key."""

    path: InsidePath
    fingerprint: ShortText
    vocab_size: Annotated[int, Field(ge=1, le=1 << 32)]
    eos_id: Count
    bos_id: Count | None = absent()

    @model_validator(mode="after")
    def _ends_are_tokens(self) -> TokenizerEntry:
        for what, number in (("end", self.eos_id), ("beginning", self.bos_id)):
            if number is not None and number >= self.vocab_size:
                raise ValueError(f"the {what} of text is id {number}, and the vocabulary has {self.vocab_size}")
        return self


class FileEntry(_Record):
    path: InsidePath
    bytes: Count
    checksum: ShortText


class FurtherLength(_Record):
    """The shards of a further sequence length, and what else differs from the snapshot."""

    sequence_length: Annotated[int, Field(ge=1, lt=1 << 31)]
    weights: dict[SourceName, Count]  # of all sources; 0 where a source has no rows of this length
    # `Cells.weights` of the sources with cells. A manifest without any lacks the key.
    cells: dict[SourceName, tuple[Count, ...]] = Field(default={}, exclude_if=lambda cells: not cells)
    # phases, lists, shards: as those of `Snapshot`
    phases: tuple[Phase, ...]
    lists: tuple[FileEntry, ...] = ()
    shards: ShardList = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> FurtherLength:
        """The rows of a snapshot of one length."""
        return cls(
            sequence_length=snapshot.sequence_length,
            weights={name: source.weight for name, source in snapshot.sources.items()},
            cells={name: source.cells.weights for name, source in snapshot.sources.items() if source.cells is not None},
            phases=snapshot.phases,
            lists=snapshot.lists,
            shards=snapshot.shards,
        )


class RemovedEntry(FileEntry):
    """The list of documents that were taken down (`removed.py`)."""

    documents: Count  # in the list
    takedowns: tuple[ShortText, ...]  # a digest of the list after each takedown

    @property
    def digest(self) -> str:
        return self.takedowns[-1]


class Snapshot(_Record):
    """The manifest. Construct with `fingerprint=""` and call `sealed()`."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    format: Literal["datapipe-snapshot"] = "datapipe-snapshot"
    version: Literal[3] = 3
    name: ShortText
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
    sequence_length: Annotated[int, Field(ge=0, lt=1 << 31)] = 0  # of the rows; 0 for shards of text
    shard_format: Literal["arrow", "parquet", "jsonl.zst"]
    # absent for shards of text; see `tokenizer`
    tokenizer_entry: TokenizerEntry | None = Field(default=None, alias="tokenizer", exclude_if=lambda entry: entry is None)
    sources: dict[SourceName, SourceEntry]
    phases: tuple[Phase, ...] = ()
    total_tokens: Count | None = None
    # what happens when a source reaches its `max_epochs`: training stops there, is refused from the start, or
    # continues with the other sources
    exhausted: Literal["stop", "refuse", "redistribute"] = "stop"
    window_shards: Count = 0  # shards of a source that the loader's order mixes at a time; 0 for all
    # whether rows have only beginnings of documents, of which the rest was dropped. Other manifests lack the key.
    bos_aligned: bool = Field(default=False, exclude_if=lambda is_aligned: not is_aligned)
    files: FileEntry | None = None
    # documents that were taken down: loaders pad their tokens. A manifest without any lacks the key.
    removed: RemovedEntry | None = absent()
    # the chat template of its conversations, for what serves the model. A manifest without any lacks the key.
    chat_template: FileEntry | None = absent()
    # tasks that another version of a library ran (`run --trust-records`). A manifest without any lacks the key.
    trusted: tuple[TrustedRecords, ...] = Field(default=(), exclude_if=lambda entries: not entries)
    lists: tuple[FileEntry, ...] = ()  # the files that list its shards; empty until it is sealed
    shards: ShardList = ()
    # the other sequence lengths; see `of_length`. A manifest without any lacks the key.
    further: tuple[FurtherLength, ...] = Field(default=(), exclude_if=lambda lengths: not lengths)
    fingerprint: str = ""

    @model_validator(mode="after")
    def _is_sound(self) -> Snapshot:
        other_form = "jsonl.zst" if self.has_tokens else "arrow"
        if self.has_tokens != (self.sequence_length > 0) or self.shard_format == other_form:
            raise ValueError("a tokenizer, a sequence length and a format of shards that do not go together")
        self.check_shards()
        return self

    def check_shards(self) -> None:
        """Raises ValueError for a shard outside the output or listed twice, for sources that are not listed, and for shards
        whose rows are not those of the cells of their source."""
        for rows in (self, *self.further):
            shards = ShardTable.of(rows.shards)
            shards.check_paths()
            listed = set(shards.column("source").unique().to_pylist()) if shards else set()
            if strangers := listed - set(self.sources):
                raise ValueError(f"shards of '{min(strangers)}', which is not a source")
            for name in sorted({name for phase in rows.phases for name in phase.weights}):
                if problem := problem_of(name, self.sources):
                    raise ValueError(f"a weight of '{name}', {problem}")
            shards.check_cells({name: len(source.cells.names) for name, source in self.sources.items() if source.cells})
        for rows in self.further:
            for name, weights in rows.cells.items():
                source = self.sources.get(name)
                if source is None or source.cells is None or len(source.cells.names) != len(weights):
                    raise ValueError(
                        f"weights of the cells of '{name}' in rows of {rows.sequence_length} tokens, which has others"
                    )

    def sealed(self) -> Self:
        """This manifest with its lists and its fingerprint filled in."""
        further = tuple(rows.model_copy(update={"lists": _lists_of(rows)}) for rows in self.further)
        listed = self.model_copy(update={"lists": _lists_of(self), "further": further})
        return listed.model_copy(update={"fingerprint": _digest(listed.model_dump(mode="json"))})

    def of_length(self, sequence_length: int | None) -> Snapshot:
        """The rows of one sequence length, by default the first, as a snapshot with the same
        fingerprint. Raises SnapshotError for a length that it does not have."""
        if sequence_length in (None, self.sequence_length):
            return self.model_copy(update={"further": ()}) if self.further else self
        for rows in self.further:
            if rows.sequence_length == sequence_length:
                weighted = {
                    name: source.weighted(rows.weights.get(name, 0), rows.cells.get(name))
                    for name, source in self.sources.items()
                }
                own = {name: getattr(rows, name) for name in ("sequence_length", "phases", "lists", "shards")}
                return self.model_copy(update={**own, "sources": weighted, "further": ()})
        raise SnapshotError(
            f"snapshot {self.fingerprint[:12]} has rows of {' and '.join(map(str, self.sequence_lengths))} tokens, and not of "
            f"{sequence_length}. Add the length to pack.sequence_length, and run the mixture again."
        )

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """Of its rows, the first first."""
        return self.sequence_length, *(rows.sequence_length for rows in self.further)

    def to_json(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()

    def to_files(self) -> dict[str, bytes]:
        """By path in the output, the content of its lists, and last of the manifest."""
        tables = [ShardTable.of(rows.shards) for rows in (self, *self.further)]
        return {path: text for table in tables for path, text in list_files(table).items()} | {SNAPSHOT: self.to_json()}

    @property
    def has_tokens(self) -> bool:
        """Whether its shards are rows of tokens. The shards of a run without a tokenizer are documents."""
        return self.tokenizer_entry is not None

    @property
    def amount(self) -> str:
        """How much it holds: "1,234 tokens"."""
        if self.has_tokens:
            return counted(sum(entry.tokens for entry in self.shards), "token")
        return counted(sum(entry.documents for entry in self.shards), "document")

    @property
    def tokenizer(self) -> TokenizerEntry:
        """Of shards of tokens. Raises SnapshotError for others."""
        if self.tokenizer_entry is None:
            raise SnapshotError(f"snapshot {self.fingerprint} holds documents, not tokens")
        return self.tokenizer_entry

    @property
    def form(self) -> RowForm:
        """What its rows have in common."""
        return RowForm(self.sequence_length, self.tokenizer.fingerprint, self.tokenizer.vocab_size)

    def shards_of(self, source: str, split: str) -> tuple[ShardEntry, ...]:
        """The shards of a source, in the order of their rows."""
        return tuple(ShardTable.of(self.shards).of_source(source, split))

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """The other files that the manifest names, but for the tokenizer."""
        return tuple(entry for entry in (self.files, self.removed, self.chat_template) if entry is not None)

    @property
    def own_files(self) -> dict[str, tuple[str, int | None]]:
        """By path, checksum and bytes of the other files that the manifest names."""
        tokenizer = self.tokenizer_entry
        files: dict[str, tuple[str, int | None]] = {} if tokenizer is None else {tokenizer.path: (tokenizer.fingerprint, None)}
        return files | {entry.path: (entry.checksum, entry.bytes) for entry in self.entries}

    @property
    def last_part(self) -> int:
        """The number of the part that was added last; 0 where none was."""
        return int(ShardTable.of(self.shards).parts.max(initial=0))

    @property
    def num_removed(self) -> int:
        """Documents that were taken down. Loaders pad those that rows have."""
        return 0 if self.removed is None else self.removed.documents


_Rows = TypeVar("_Rows", Snapshot, FurtherLength)


def _lists_of(rows: Snapshot | FurtherLength) -> tuple[FileEntry, ...]:
    files = list_files(ShardTable.of(rows.shards))
    return tuple(FileEntry(path=path, bytes=len(text), checksum=bytes_checksum(text)) for path, text in files.items())


def _digest(content: dict[str, Any]) -> str:
    named = {name: value for name, value in content.items() if name != "fingerprint"}
    orders = [list(phase["weights"]) for phase in content.get("phases", ()) if any("/" in name for name in phase["weights"])]
    named |= {"orders": orders} if orders else {}  # that of patterns counts, and keys are sorted
    return xxhash.xxh3_128_hexdigest(json.dumps(named, sort_keys=True, ensure_ascii=False).encode())


def snapshot_file(root: Root, snapshot: Snapshot, path: str) -> str:
    """Where a file that a manifest names is, except shards: in the snapshot's folder, or, as of an export, in the output."""
    own = f"{snapshot_folder(snapshot.fingerprint)}/{path}"
    return own if root.exists(own) else path


def read_tokens(root: Root, name: str | None = None, sequence_length: int | None = None) -> Snapshot:
    """The rows of tokens that a snapshot has of one sequence length, by default the first; `name` as for `read_snapshot`.
    Raises SnapshotError as `read_snapshot`, for shards of text, and for another length."""
    snapshot = read_snapshot(root, name)
    if not snapshot.has_tokens:
        raise SnapshotError(
            f"{root.url}: this output holds documents, not tokens: {snapshot.shard_format} files, in "
            f"{root.child_url('documents')}. For tokens, add a tokenizer to the mixture and run it again: nothing is cleaned "
            f"again. `datapipe snapshots` lists earlier snapshots, which may hold tokens."
        )
    return snapshot.of_length(sequence_length)


def read_snapshot(root: Root, name: str | None = None) -> Snapshot:
    """A snapshot of an output. Raises SnapshotError for none, and for one edited or truncated.
    `name`: its fingerprint, or the first digits of it; by default the newest snapshot."""
    path = SNAPSHOT if name is None else f"{snapshot_folder(find_snapshot(root, name))}/{SNAPSHOT}"
    try:
        content = root.read_bytes(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        output, length = output_of(root)
        expected = (
            f"Expected {output.url}, with --sequence-length {length} (sequence_length={length} in Python)."
            if length
            else "Expected the output of a finished run. Run `datapipe run MIXTURE.yaml` (a stopped run resumes) and give its "
            "output."
        )
        raise SnapshotError(f"{root.url}: no {SNAPSHOT} here. {expected}") from error
    try:
        return _parsed(root, path, content)
    except SnapshotError:
        return intact(lambda: _parsed(root, path, root.read_bytes(path)))


_read: WeakValueDictionary[bytes, Snapshot] = WeakValueDictionary()
"""The manifests in use, by digest of their text: a process that was forked reads none again."""


def _parsed(root: Root, path: str, content: bytes) -> Snapshot:
    """The manifest in a text, with the shards of its lists. Raises SnapshotError with the first entry that is wrong."""
    url = f"{root.url}/{path}"
    known = _read.get(key := xxhash.xxh3_128_digest(content))
    if known is not None:
        return known
    try:
        with without_collection():
            data = from_json(content, allow_inf_nan=False, cache_strings="keys")
            snapshot, digest = Snapshot.model_validate(_with_shards(data)), _digest(data)
            del data  # before Python searches garbage in it
    except ValueError as error:
        message, place, remedy = str(error), "", _REMEDY
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            message, place = first["msg"], ".".join(map(str, first["loc"]))
        if place == "version":
            message = f"a manifest of another version, expected {Snapshot.model_fields['version'].default},"
            remedy = "Run the mixture again to rewrite it."
        raise SnapshotError(
            f"{url}: not a snapshot that this version of datapipe reads: {message[:_SHOWN_CHARACTERS]} "
            f"at {place[:_SHOWN_CHARACTERS] or 'the top'}. {remedy}"
        ) from error
    if snapshot.fingerprint != digest:
        raise SnapshotError(f"{url}: the content does not match its fingerprint, so the file was edited or damaged. {_REMEDY}")
    return _read.setdefault(key, _with_lists(root, snapshot))


def _with_lists(root: Root, snapshot: Snapshot) -> Snapshot:
    listed = _listed(root, snapshot)
    listed = listed.model_copy(update={"further": tuple(_listed(root, rows) for rows in snapshot.further)})
    try:
        listed.check_shards()
    except ValueError as error:
        raise SnapshotError(f"{root.url}/{SNAPSHOT}: {error}. Run the mixture again to rewrite it.") from error
    return listed


def _listed(root: Root, rows: _Rows) -> _Rows:
    if not rows.lists:
        return rows
    return rows.model_copy(update={"shards": read_lists(root, {entry.path: entry.checksum for entry in rows.lists})})


def _with_shards(data: Any) -> Any:
    """A manifest of version 2, which holds the shards itself, as one of this version; others as they are."""
    match data:
        case {"format": "datapipe-snapshot", "version": 2, "shards": list()}:
            return data | {"version": 3}
        case {"format": "datapipe-snapshot", "version": 3, "shards": _}:
            raise ValueError("shards in the manifest, expected lists of them")
        case _:
            return data
