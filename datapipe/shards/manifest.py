"""snapshot.json: the immutable manifest, written last. It is enough to find, check and order every shard.

    OUTPUT/snapshot.json                            the newest snapshot
    OUTPUT/snapshots/<fingerprint>/snapshot.json    every snapshot, beside its tokenizer.json and files.parquet
    OUTPUT/shards/web/part-00003-00000-<digest>.arrow    shards of all of them; the name ends in a digest of the content

    OUTPUT/documents/web/part-00003-<digest>.parquet     shards of text instead, where a run has no tokenizer

    snapshot.json ── lists[]      lists/<digest>.parquet: path, source, split, counts, bytes and checksum of every shard
                  ── sources{}    weight, max_epochs, and where the text comes from (`provenance.py`)
                  ── mixture      phases of integer weights over token positions
                  ── tokenizer    file, fingerprint, vocabulary size, end-of-text id; absent for shards of text
                  ── files        files.parquet: first half of a document key -> source and path
                  ── removed      removed.parquet: documents that were taken down, where there are any

The fingerprint covers every other field. The manifest holds no path outside the output and no time, so two runs that write the
same bytes write the same snapshot. Manifests of the version before are read: `_upgraded` gives them the fields of this version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self
from weakref import WeakValueDictionary

import xxhash
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import from_json

from datapipe.errors import SnapshotError
from datapipe.machine.memory import without_collection
from datapipe.records.checksum import bytes_checksum, intact
from datapipe.records.names import SNAPSHOT, SNAPSHOTS
from datapipe.shards.provenance import Provenance
from datapipe.shards.shard_lists import list_files, read_lists
from datapipe.shards.shard_table import Count, InsidePath, RowForm, ShardEntry, ShardTable, ShortText, SourceName, absent
from datapipe.storage.root import Root

_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_MOST_EPOCHS = 1 << 40
_SHOWN_CHARACTERS = 300
_NO_ROWS = {"split": "train", "sequences": 0, "tokens": 0}
"""Fields that a shard of text lacks in manifests before version 3."""


def _as_table(value: Any, entries: ValidatorFunctionWrapHandler) -> ShardTable:
    """The shards as columns: an object for each would stay in the memory of every process that reads the manifest."""
    return value if isinstance(value, ShardTable) else ShardTable.of(entries(value))


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Strata(_Record):
    """How a source is cut into strata by a numeric column of its documents, and how the strata are drawn.

    Attributes:
        column: name of the column: a score, a cluster size.
        bounds: ascending; stratum i holds bounds[i - 1] <= number < bounds[i].
        repeats: repetitions of each stratum in one epoch of the source.
        order: of the strata in an epoch: all mixed, lowest first, or highest first.
    """

    column: ShortText
    bounds: tuple[FiniteFloat, ...]
    repeats: tuple[Annotated[int, Field(ge=0, lt=_MOST_EPOCHS)], ...]
    order: Literal["shuffled", "ascending", "descending"] = "shuffled"

    @model_validator(mode="after")
    def _one_repeat_each(self) -> Strata:
        if len(self.repeats) != len(self.bounds) + 1 or any(low > high for low, high in pairwise(self.bounds)):
            raise ValueError("expected ascending bounds, and one repeat more than bounds")
        return self


class SourceEntry(Provenance):
    """What the loader needs of a source, and where it comes from. `weight` is an exact integer share; see `Phase`."""

    weight: Count
    max_epochs: Annotated[float, Field(gt=0, lt=_MOST_EPOCHS)] | None = None
    strata: Strata | None = None


class Phase(_Record):
    """Weights that hold until token position `until_tokens` of the run (None: to its end)."""

    until_tokens: Count | None
    weights: dict[SourceName, int]


ShardList = Annotated[Sequence[ShardEntry], WrapValidator(_as_table), Field(exclude=True, validate_default=True)]
"""A `ShardTable`. Lists beside the manifest have it (`shard_lists.py`)."""


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


class RemovedEntry(FileEntry):
    """The list of documents that were taken down (`removed.py`).

    Attributes:
        documents: in the list.
        takedowns: a digest of the list after each takedown.
    """

    documents: Count
    takedowns: tuple[ShortText, ...]


class Snapshot(_Record):
    """The manifest. Construct with `fingerprint=""` and call `sealed()`.

    Attributes:
        sequence_length: of the rows; 0 for shards of text.
        tokenizer_entry: absent for shards of text; see `tokenizer`.
        exhausted: what happens when a source reaches its `max_epochs`: training stops there, is refused from the start, or
            continues with the other sources.
        window_shards: shards of a source that the loader's order mixes at a time; 0 for all.
        lists: the files that list its shards; empty until it is sealed.
        removed: documents that were taken down: loaders pad their tokens. A manifest without any lacks the key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    format: Literal["datapipe-snapshot"] = "datapipe-snapshot"
    version: Literal[3] = 3
    name: ShortText
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
    sequence_length: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    shard_format: Literal["arrow", "parquet", "jsonl.zst"]
    tokenizer_entry: TokenizerEntry | None = Field(default=None, alias="tokenizer", exclude_if=lambda entry: entry is None)
    sources: dict[SourceName, SourceEntry]
    phases: tuple[Phase, ...] = ()
    total_tokens: Count | None = None
    exhausted: Literal["stop", "refuse", "redistribute"] = "stop"
    window_shards: Count = 0
    files: FileEntry | None = None
    removed: RemovedEntry | None = absent()
    lists: tuple[FileEntry, ...] = ()
    shards: ShardList = ()
    fingerprint: str = ""

    @model_validator(mode="after")
    def _is_sound(self) -> Snapshot:
        other_form = "jsonl.zst" if self.has_tokens else "arrow"
        if self.has_tokens != (self.sequence_length > 0) or self.shard_format == other_form:
            raise ValueError("a tokenizer, a sequence length and a format of shards that do not go together")
        self.check_shards()
        return self

    def check_shards(self) -> None:
        """Raises ValueError for a shard outside the output or listed twice, and for sources that are not listed."""
        shards = ShardTable.of(self.shards)
        shards.check_paths()
        listed = set(shards.column("source").unique().to_pylist()) if shards else set()
        weighted = {name for phase in self.phases for name in phase.weights}
        for what, names in (("shards", listed), ("a weight", weighted)):
            if strangers := names - set(self.sources):
                raise ValueError(f"{what} of '{min(strangers)}', which is not a source")

    def sealed(self) -> Self:
        """This manifest with its lists and its fingerprint filled in."""
        files = list_files(ShardTable.of(self.shards))
        lists = tuple(FileEntry(path=path, bytes=len(text), checksum=bytes_checksum(text)) for path, text in files.items())
        listed = self.model_copy(update={"lists": lists})
        return listed.model_copy(update={"fingerprint": _digest(listed.model_dump(mode="json"))})

    def to_json(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()

    def to_files(self) -> dict[str, bytes]:
        """By path in the output, the content of its lists, and last of the manifest."""
        return {**list_files(ShardTable.of(self.shards)), SNAPSHOT: self.to_json()}

    @property
    def has_tokens(self) -> bool:
        """Whether its shards are rows of tokens. The shards of a run without a tokenizer are documents."""
        return self.tokenizer_entry is not None

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
    def own_files(self) -> dict[str, tuple[str, int | None]]:
        """By path, checksum and bytes of the other files that the manifest names."""
        tokenizer = self.tokenizer_entry
        files: dict[str, tuple[str, int | None]] = {} if tokenizer is None else {tokenizer.path: (tokenizer.fingerprint, None)}
        entries = (entry for entry in (self.files, self.removed) if entry is not None)
        return files | {entry.path: (entry.checksum, entry.bytes) for entry in entries}

    @property
    def num_taken_down(self) -> int:
        """Documents in its list of takedowns. Loaders pad those that rows have."""
        return 0 if self.removed is None else self.removed.documents


def _digest(content: dict[str, Any]) -> str:
    """Of every field but the fingerprint."""
    named = {name: value for name, value in content.items() if name != "fingerprint"}
    return xxhash.xxh3_128_hexdigest(json.dumps(named, sort_keys=True, ensure_ascii=False).encode())


def snapshot_folder(fingerprint: str) -> str:
    """The folder of a snapshot below its output."""
    return f"{SNAPSHOTS}/{fingerprint}"


def snapshot_file(root: Root, snapshot: Snapshot, path: str) -> str:
    """Where a file that a manifest names is, except shards: in the snapshot's folder, or in the output itself.

    An export has no folders of snapshots.
    """
    own = f"{snapshot_folder(snapshot.fingerprint)}/{path}"
    return own if root.exists(own) else path


def folder_names(root: Root) -> list[str]:
    """The fingerprints of the snapshots that have a folder in an output, sorted. Some may be unfinished."""
    return [name for name in root.within(SNAPSHOTS).folders() if _FINGERPRINT.fullmatch(name)]


def fingerprints(root: Root) -> list[str]:
    """The fingerprints of the snapshots whose folder has a manifest, sorted."""
    return [name for name in folder_names(root) if has_snapshot(root, name)]


def has_snapshot(root: Root, fingerprint: str) -> bool:
    """Whether the snapshot has a folder with a manifest."""
    return root.exists(f"{snapshot_folder(fingerprint)}/{SNAPSHOT}")


def find_snapshot(root: Root, name: str) -> str:
    """The fingerprint that `name` begins. Raises SnapshotError, with those that there are, for none and for several."""
    known = fingerprints(root)
    fitting = [fingerprint for fingerprint in known if name and fingerprint.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(fingerprint[:12] for fingerprint in fitting or known) or "none"
    count = "several snapshots begin" if fitting else "no snapshot begins"
    raise SnapshotError(f"{root.url}: {count} with '{name}'. There are: {there}. `datapipe snapshots` lists them.")


def read_tokens(root: Root, name: str | None = None) -> Snapshot:
    """A snapshot with shards of tokens. Raises SnapshotError as `read_snapshot`, and for shards of text.

    Args:
        name: its fingerprint, or the first digits of it; by default the newest snapshot.
    """
    snapshot = read_snapshot(root, name)
    if not snapshot.has_tokens:
        raise SnapshotError(
            f"{root.url}: this output holds documents, not tokens: {snapshot.shard_format} files, in "
            f"{root.child_url('documents')}. For tokens, add a tokenizer to the mixture and run it again: nothing is cleaned "
            f"again. `datapipe snapshots` lists earlier snapshots, which may hold tokens."
        )
    return snapshot


def read_snapshot(root: Root, name: str | None = None) -> Snapshot:
    """A snapshot of an output. Raises SnapshotError if there is none, or if it was edited or truncated.

    Args:
        name: its fingerprint, or the first digits of it; by default the newest snapshot.
    """
    path = SNAPSHOT if name is None else f"{snapshot_folder(find_snapshot(root, name))}/{SNAPSHOT}"
    try:
        content = root.read_bytes(path)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise SnapshotError(
            f"{root.url}: no {SNAPSHOT} here. Expected the output of a finished run. Run `datapipe run MIXTURE.yaml` "
            f"(a stopped run resumes) and give its output."
        ) from error
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
            snapshot, digest = Snapshot.model_validate(_upgraded(data)), _digest(data)
            del data  # before Python looks for garbage in it
    except ValueError as error:
        message, place = str(error), ""
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            message, place = first["msg"], ".".join(map(str, first["loc"]))
        if place == "version":
            message = f"a manifest of another version, expected {Snapshot.model_fields['version'].default},"
        raise SnapshotError(
            f"{url}: not a snapshot that this version of datapipe reads: {message[:_SHOWN_CHARACTERS]} "
            f"at {place[:_SHOWN_CHARACTERS] or 'the top'}. Run the mixture again to rewrite it."
        ) from error
    if snapshot.fingerprint != digest:
        raise SnapshotError(
            f"{url}: the content does not match its fingerprint, so the file was edited or damaged. "
            f"Run the mixture again to rewrite it."
        )
    return _read.setdefault(key, _with_lists(root, snapshot))


def _with_lists(root: Root, snapshot: Snapshot) -> Snapshot:
    """The manifest with the shards of its lists. Raises SnapshotError."""
    if not snapshot.lists:
        return snapshot
    shards = read_lists(root, {entry.path: entry.checksum for entry in snapshot.lists})
    listed = snapshot.model_copy(update={"shards": shards})
    try:
        listed.check_shards()
    except ValueError as error:
        raise SnapshotError(f"{root.url}/{SNAPSHOT}: {error}. Run the mixture again to rewrite it.") from error
    return listed


def _upgraded(data: Any) -> Any:
    """The content of a manifest of the version before with the fields of this version: tokens and documents had manifests of
    two formats. Anything else as it is."""
    match data:
        case {"format": "datapipe-snapshot", "version": 2, "shards": list()}:
            return data | {"version": 3}
        case {"format": "datapipe-snapshot", "version": 3, "shards": _}:
            raise ValueError("shards in the manifest, expected lists of them")
        case {
            "format": "datapipe-documents",
            "version": 1,
            "document_format": shard_format,
            "documents": [*entries],
            "sources": dict(sources),
            **others,
        }:
            shards = [_NO_ROWS | entry if isinstance(entry, dict) else entry for entry in entries]
            weighted = {name: {"weight": 0} | entry if isinstance(entry, dict) else entry for name, entry in sources.items()}
            newer = {"version": 3, "seed": 0, "shard_format": shard_format, "sources": weighted, "shards": shards}
            return others | {"format": "datapipe-snapshot"} | newer
        case _:
            return data
