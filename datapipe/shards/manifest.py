"""snapshot.json: the immutable manifest, written last. It is enough to find, check and order every shard.

    snapshot.json ── shards[]     path, source, split, sequences, tokens, documents, bytes, checksum, piece_length
                  ── sources{}    weight, max_epochs, license, synthetic
                  ── mixture      phases of integer weights over token positions
                  ── tokenizer    file, fingerprint, vocabulary size, end-of-text id
                  ── files        files.parquet: first half of a document key -> source and path

The fingerprint covers every other field. The manifest holds no path outside the output and no time, so two runs that write the
same bytes write the same snapshot.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import xxhash
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from datapipe.errors import SnapshotError
from datapipe.storage import Root

SNAPSHOT = "snapshot.json"
_LENGTH_FOLDER = re.compile(r"length-\d+")
FORMAT = "datapipe-snapshot"
VERSION = 2


def _inside(path: str) -> str:
    """Raises ValueError for a path outside the output, so that an untrusted manifest cannot name other files."""
    if path.startswith("/") or "\\" in path or "\0" in path or not all(part not in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"the path '{path}' does not lie inside the output")
    return path


def _source_name(name: str) -> str:
    if "/" in _inside(name):
        raise ValueError(f"'{name}' is not a source name")
    return name


InsidePath = Annotated[str, AfterValidator(_inside)]
SourceName = Annotated[str, AfterValidator(_source_name)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShardEntry(_Record):
    """One shard file.

    Attributes:
        tokens: tokens of documents, without padding.
        documents: documents that start in the shard.
        piece_length: tokens of every piece, where packing put pieces of one length together; absent otherwise.
        stratum: number of its stratum, from 0, where the source is cut into strata; absent otherwise.
        hashes: start and stop of the range of its documents' shuffle hashes (`rng.shuffle_hash`), so that a document is looked
            up in few shards; absent if unknown.
    """

    path: InsidePath
    source: SourceName
    split: Literal["train", "validation"]
    sequences: int
    tokens: int
    documents: int
    bytes: int
    checksum: str
    piece_length: int | None = None
    stratum: int | None = None
    hashes: tuple[int, int] | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


class Strata(_Record):
    """How a source is cut into strata by a numeric column of its documents, and how the strata are drawn.

    Attributes:
        column: name of the column: a score, a cluster size.
        bounds: ascending; stratum i holds bounds[i - 1] <= number < bounds[i].
        repeats: repetitions of each stratum in one epoch of the source.
        order: of the strata in an epoch: all mixed, lowest first, or highest first.
    """

    column: str
    bounds: tuple[float, ...]
    repeats: tuple[int, ...]
    order: Literal["shuffled", "ascending", "descending"] = "shuffled"


class SourceEntry(_Record):
    """The options of a source that the loader needs. `weight` is an exact integer share; see `Phase`."""

    weight: int
    max_epochs: float | None = None
    license: str | None = None
    synthetic: bool = False
    strata: Strata | None = None


class Phase(_Record):
    """Weights that hold until token position `until_tokens` of the run (None: to its end)."""

    until_tokens: int | None
    weights: dict[str, int]


class TokenizerEntry(_Record):
    path: InsidePath
    fingerprint: str
    vocab_size: int
    eos_id: int


class FileEntry(_Record):
    path: InsidePath
    bytes: int
    checksum: str


class Snapshot(_Record):
    """The manifest. Construct with `fingerprint=""` and call `sealed()`.

    Attributes:
        exhausted: what happens when a source reaches its `max_epochs`: training stops there, is refused from the start, or
            continues with the other sources.
        window_shards: shards of a source that the loader's order mixes at a time; 0 for all.
    """

    format: Literal["datapipe-snapshot"] = FORMAT
    version: Literal[2] = VERSION
    name: str
    seed: int
    sequence_length: int
    shard_format: Literal["arrow", "parquet"]
    tokenizer: TokenizerEntry
    sources: dict[SourceName, SourceEntry]
    phases: tuple[Phase, ...]
    total_tokens: int | None = None
    exhausted: Literal["stop", "refuse", "redistribute"] = "stop"
    window_shards: int = 0
    files: FileEntry | None = None
    shards: tuple[ShardEntry, ...]
    fingerprint: str = ""

    @model_validator(mode="after")
    def _shards_once(self) -> Snapshot:
        paths = {shard.path for shard in self.shards}
        if len(paths) < len(self.shards):
            raise ValueError("a shard is listed twice")
        strangers = {shard.source for shard in self.shards} - set(self.sources)
        if strangers:
            raise ValueError(f"shards of '{min(strangers)}', which is not a source")
        return self

    def sealed(self) -> Snapshot:
        """This snapshot with its fingerprint filled in."""
        return self.model_copy(update={"fingerprint": self.digest()})

    def digest(self) -> str:
        """Full-width digest of every field but the fingerprint."""
        return _digest(self.model_dump(mode="json"))

    def shards_of(self, source: str, split: str) -> tuple[ShardEntry, ...]:
        """The shards of a source, in the order of their rows: by path."""
        shards = (shard for shard in self.shards if shard.source == source and shard.split == split)
        return tuple(sorted(shards, key=lambda shard: shard.path))

    def to_json(self) -> bytes:
        return (json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the garbage collector: while many live objects are made, its scans take as long as making them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _digest(content: dict[str, Any]) -> str:
    named = {name: value for name, value in content.items() if name != "fingerprint"}
    return xxhash.xxh3_128_hexdigest(json.dumps(named, sort_keys=True, ensure_ascii=False).encode())


def read_snapshot(root: Root) -> Snapshot:
    """The snapshot of an output. Raises SnapshotError if there is none, or if it was edited or truncated."""
    try:
        content = root.read_bytes(SNAPSHOT)
    except FileNotFoundError as error:
        raise SnapshotError(
            f"{root.url}: no {SNAPSHOT} here. Expected the output of a finished run. Run `datapipe run MIXTURE.yaml` "
            f"(a stopped run resumes) and give its output."
        ) from error
    try:
        with _collector_paused():
            snapshot = Snapshot.model_validate_json(content)
            digest = _digest(json.loads(content))
    except ValidationError as error:
        raise SnapshotError(
            f"{root.url}/{SNAPSHOT}: not a snapshot that this version of datapipe reads: {error.errors()[0]['msg']} "
            f"at {'.'.join(str(part) for part in error.errors()[0]['loc']) or 'the top'}. Run the mixture again to rewrite it."
        ) from error
    # the digest is of the text, which holds every field: serialising the record again takes longer for many shards
    if snapshot.fingerprint != digest:
        raise SnapshotError(
            f"{root.url}/{SNAPSHOT}: the content does not match its fingerprint, so the file was edited or damaged. "
            f"Run the mixture again to rewrite it."
        )
    return snapshot


def length_folders(root: Root) -> list[str]:
    """Folders of an output that hold snapshots of further sequence lengths: "length-8192" and so on."""
    return [folder for folder in root.folders() if _LENGTH_FOLDER.fullmatch(folder)]
