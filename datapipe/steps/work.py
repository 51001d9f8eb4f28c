"""The records that travel: what a worker is told to do, and what it reports back.

    map        splits of input, or documents of the step before   ─▶  documents, drops, quarantine, rows to exchange
    reduce     a hash range of the tables of an exchange          ─▶  tables of rows
    merge      a hash range of some files of a table              ─▶  the same rows in one sorted run
    gather     a range of document keys of the final tables       ─▶  drops, cuts and sizes, one file of each
    rank       scores of documents                                ─▶  a summary of those in an interval (`steps/rank_plan.py`)
    narrow     the summaries of a source                          ─▶  a narrower interval, or the cut
    sample     documents                                          ─▶  the words of a keyed sample of them, counted
    train      counted words                                      ─▶  tokenizer.json
    tokenize   documents                                          ─▶  token rows to exchange, of each stratum and split
    pack       a hash range of the token rows                     ─▶  shards
    write      documents                                          ─▶  files of text, in a run without a tokenizer

Every task is picklable, names its inputs by content, and writes only under a folder of its own. Each field declares how it
enters the fingerprint of its task: as it is, as what `entering(…)` makes of it, or not at all (`LEFT_OUT`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeVar

import xxhash

from datapipe.records.outputs import ExchangeFile, OutputFile, TableFile, Tables, TokenizerFile
from datapipe.stage.base import Filter, Map
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import FieldNames, InputFile, Reader, Split
from datapipe.steps.cut import Cut
from datapipe.steps.fingerprint import fingerprint

HASH_SPACE = 1 << 64
_ENTERS = "enters"


def entering(part: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Metadata of a field of which `part(value)`, plain JSON, enters the fingerprint."""
    return {_ENTERS: part}


LEFT_OUT: Mapping[str, Any] = {_ENTERS: None}
"""Metadata of a field that the outputs do not depend on, or that follows from other fields."""


def _checksums(files: Iterable[ExchangeFile]) -> list[str]:
    """What identifies a set of exchange files. Their readers sort, so the order of the files is no part of it."""
    return sorted(file.checksum + (" reference" if file.is_reference else "") for file in files)


def file_checksums(files: Iterable[OutputFile]) -> list[str]:
    """What identifies files whose order counts."""
    return [file.checksum for file in files]


def _encoding(file: TokenizerFile) -> list[str | None]:
    """What decides the ids that a tokenizer gives to documents."""
    return [file.checksum, file.library, file.library_version, file.battery, file.eos_token, file.bos_token]


def _table_checksums(tables: Tables) -> dict[str, list[str]]:
    return {name: _checksums(files) for name, files in sorted(tables.items())}


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundStage:
    """A stage under its name in this run, with the digest of its code and options.

    Attributes:
        emit_digest: of a global stage: without the options that `emit` does not read.
        cut: of a filter that keeps a share, once it is known.
    """

    name: str
    stage: Filter | Map | Global
    digest: str
    emit_digest: str = ""
    cut: Cut | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSplit:
    """A split, its reader, and the digest of the reader's code and options."""

    split: Split
    reader: Reader
    reader_digest: str

    def identity(self) -> list[Any]:
        file = self.split.file
        return [self.reader_digest, file.path, file.num_bytes, file.stamp, self.split.start, self.split.stop]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """The decisions of a global stage on the documents of a task.

    Attributes:
        name: of the stage in the run.
        rule: the reason of its drops.
        tables: "drops", "cuts" and "sizes", those that the stage writes; files with rows for the task's input files alone.
        size_column, cluster_column: the columns for sizes and names of clusters; None: not written.
        removed_share: a document of which a greater share is cut is dropped.
    """

    name: str
    rule: str
    tables: Tables
    size_column: str | None = None
    cluster_column: str | None = None
    removed_share: float = 1.0

    def identity(self) -> dict[str, Any]:
        own = {declared.name: getattr(self, declared.name) for declared in fields(self)}
        return own | {"tables": _table_checksums(self.tables)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Care:
    """What the ends of earlier attempts at a map task have shown about its documents.

    Attributes:
        suspects: (stage, key of the first document) of batches in which a worker crashed or stalled. A batch with one of these
            documents goes to the stage one by one.
        crashing: (stage, key, cause) of documents that crash a worker, "SIGSEGV"; they go to quarantine.
        most_docs: that any stage gets in one call, where memory did not suffice for more. What it makes of the parts is joined.
    """

    suspects: tuple[tuple[str, bytes], ...] = ()
    crashing: tuple[tuple[str, bytes, str], ...] = ()
    most_docs: int | None = None


NO_CARE = Care()


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What every task has.

    Attributes:
        step: the id of its step.
        fingerprint: 64 hex digits; `fingerprinted` sets it.
        source: empty where the task serves several.
        seed: of the mixture.
        resources: Ray's: num_cpus, num_gpus, memory in bytes.
    """

    kind: ClassVar[str]

    step: str = field(metadata=LEFT_OUT)
    fingerprint: str = field(default="", metadata=LEFT_OUT)
    source: str = ""
    seed: int
    resources: tuple[tuple[str, float], ...] = field(default=(), metadata=LEFT_OUT)

    @property
    def label(self) -> str:
        return f"{self.step} ({self.fingerprint[:12]})"

    @property
    def input_files(self) -> Mapping[str, InputFile]:
        """The input files that the task reads, by URL."""
        return {}


T = TypeVar("T", bound=Task)


def fingerprinted(task: T) -> T:
    """A task that was just made, given the fingerprint of its fields and of the code that it runs."""
    parts = {name: part(getattr(task, name)) for name, part in _parts(type(task))}
    object.__setattr__(task, "fingerprint", fingerprint(task.kind, **parts))  # a copy would cost as much as the rest
    return task


@lru_cache(maxsize=32)
def _parts(kind: type[Task]) -> list[tuple[str, Callable[[Any], Any]]]:
    """The fields of tasks of a kind that enter the fingerprint, each with what enters."""
    return [(each.name, part) for each in fields(kind) if (part := each.metadata.get(_ENTERS, lambda value: value)) is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class MapTask(Task):
    """Streams documents through fused stages: of `inputs`, or `documents` of the step before.

    Attributes:
        before: fingerprint of the task that wrote `documents`.
        limit: read at most so many documents.
        decisions: of the global stage before; applied to `documents`.
        cut: the filter that scored `documents` in the step before, with the cut that is applied to them.
        emit: the global stage that follows.
        source_position: position of the source in the order of sources that `emit` goes by; see `StageContext`.
        care: what the ends of earlier attempts have shown. A document that crashes a stage is found by running, as one that
            makes it raise is, so neither enters the fingerprint.
    """

    kind: ClassVar[str] = "map"

    inputs: tuple[InputSplit, ...] = field(default=(), metadata=entering(lambda inputs: [split.identity() for split in inputs]))
    fields: FieldNames = field(default_factory=FieldNames, metadata=entering(lambda names: names.identity()))
    limit: int | None = None
    before: str = ""
    documents: tuple[TableFile, ...] = field(default=(), metadata=LEFT_OUT)  # they follow from `before`
    decisions: Decisions | None = field(default=None, metadata=entering(lambda decisions: decisions and decisions.identity()))
    cut: BoundStage | None = field(default=None, metadata=entering(lambda by: by and [by.name, by.digest, str(by.cut)]))
    stages: tuple[BoundStage, ...] = field(
        default=(), metadata=entering(lambda stages: [[bound.name, bound.digest] for bound in stages])
    )
    emit: BoundStage | None = field(default=None, metadata=entering(lambda bound: bound and [bound.name, bound.emit_digest]))
    source_position: int | None = None
    care: Care = field(default=NO_CARE, metadata=LEFT_OUT)

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(entry.split for entry in self.inputs)

    @property
    def input_files(self) -> Mapping[str, InputFile]:
        return {split.file.url: split.file for split in self.splits}


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTask(Task):
    """What tasks on one hash range of tables have.

    Attributes:
        stage: the global stage whose tables they are. It gives schemas, which the files have too, and the name of the work.
        start, stop: hashes.
        limit_bytes: about the most row bytes that are in memory at once.
    """

    stage: BoundStage = field(metadata=LEFT_OUT)
    tables: Tables = field(metadata=entering(_table_checksums))
    start: int
    stop: int
    limit_bytes: int = field(metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceTask(RangeTask):
    """Reduces the rows of one hash range in one round of an exchange. A range that has more than `limit_bytes` comes in chunks.

    Attributes:
        exchange: its name.
        at_once: whether all rows go to `Global.reduce_at_once`.
    """

    kind: ClassVar[str] = "reduce"

    stage: BoundStage = field(metadata=entering(lambda bound: bound.digest))
    exchange: str
    at_once: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeTask(RangeTask):
    """Writes the rows that some files of each table have in one hash range as one sorted run."""

    kind: ClassVar[str] = "merge"


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherTask(RangeTask):
    """Sorts the final tables of a global stage by document key, in one range of the first halves of keys."""

    kind: ClassVar[str] = "gather"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTask(Task):
    """Counts the words, by `pattern`, of the documents whose keyed hash is below `fraction`, except those held out.

    Attributes:
        before: fingerprint of the task that wrote `documents`.
    """

    kind: ClassVar[str] = "sample"

    before: str
    documents: tuple[TableFile, ...] = field(metadata=LEFT_OUT)  # they follow from `before`
    fraction: float
    validation: float
    pattern: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainTask(Task):
    """Trains the tokenizer on the words of all samples, or takes the user's own (`content`) into the run."""

    kind: ClassVar[str] = "train"

    samples: tuple[TableFile, ...] = field(default=(), metadata=entering(file_checksums))
    vocab_size: int = 0
    pattern: str = ""
    eos: str | None
    bos: str | None = None
    content: bytes = field(default=b"", metadata=entering(xxhash.xxh3_128_hexdigest))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeTask(Task):
    """Encodes documents and writes their token rows sorted by keyed hash.

    Attributes:
        before: fingerprint of the task that wrote `documents`.
        strata: column and bounds by which training documents go to files of their own.
        license_column: with the licence of each document, to count by it; None: not counted.
    """

    kind: ClassVar[str] = "tokenize"

    before: str
    documents: tuple[TableFile, ...] = field(metadata=LEFT_OUT)  # they follow from `before`
    tokenizer: TokenizerFile = field(metadata=entering(_encoding))
    validation: float
    strata: tuple[str, tuple[float, ...]] | None = None
    license_column: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackTask(Task):
    """Packs one hash range of a source's token rows, of one split and stratum, into shards.

    Attributes:
        bucket: number of the range among those of its split and stratum; part of the names of its shards.
        max_padding: share of padding above which best_fit splits documents.
    """

    kind: ClassVar[str] = "pack"

    files: tuple[ExchangeFile, ...] = field(metadata=entering(_checksums))
    start: int
    stop: int
    bucket: int
    split: Literal["train", "validation"]
    stratum: int | None
    tokenizer_fingerprint: str
    vocab_size: int
    eos_id: int
    sequence_length: int
    method: Literal["best_fit", "concat", "buckets"]
    pool_documents: int
    max_padding: float
    min_piece: int
    format: Literal["arrow", "parquet"]
    target_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteTask(Task):
    """Writes the documents of one part of a source to files; see `steps/splits.py`.

    Attributes:
        documents: files of the step before that overlap the part, in the order of the input.
        begin: weight of the documents before those in `documents`.
        start, stop: the part; multiples of `target_bytes`.
        like: a file of the source whose columns all files of the source get.
        license_column: as that of `TokenizeTask`.
    """

    kind: ClassVar[str] = "write"

    documents: tuple[TableFile, ...] = field(metadata=entering(file_checksums))
    begin: int
    start: int
    stop: int
    like: TableFile = field(metadata=entering(lambda file: file.checksum))
    format: Literal["parquet", "jsonl.zst"]
    target_bytes: int
    license_column: str | None = None
