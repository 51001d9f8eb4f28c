"""The records that travel: what a worker is told to do, and what it says it has done.

    map        splits of input, or documents of the step before  ->  documents, drops, quarantine, rows to exchange
    meet       a range of hashes of the tables of an exchange    ->  rows of its outputs
    merge      a range of hashes of some files of a table          ->  the same rows in one sorted run
    gather     a range of document keys of the final tables      ->  drops, cuts and sizes, one file of each
    sample     documents                                         ->  a deterministic part of their text
    train      samples                                           ->  tokenizer.json
    tokenize   documents                                         ->  token rows to exchange: of each stratum, and held out
    pack       a range of hashes of the token rows               ->  shards

Every task is picklable, names its inputs by content, and writes only under a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from datapipe.metrics import TaskMetrics
from datapipe.stage.base import FieldNames, Filter, Map, Reader, Split
from datapipe.stage.global_stage import Global

HASH_SPACE = 1 << 64


def train_rows(stratum: int | None) -> str:
    """The kind of output that token rows to train on are, of one stratum or of a source without any."""
    return "train" if stratum is None else f"train-stratum-{stratum:02d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputRef:
    """A committed file: where it is (relative to OUTPUT), and what is in it.

    Attributes:
        rows: documents, rows to exchange or sequences, as the file's kind has it.
        bytes: as stored.
        weight: bytes before compression, or tokens × width: what bucket counts are reckoned from.
        facts: the few more things the next step must know, such as the end-of-text id of a tokenizer. Of rows to exchange the
            `first` and the `last` hash, and how many sorted `runs` they lie in.
        url: where it is instead, of an earlier run's rows that documents are held against; never of an output.
    """

    path: str
    rows: int
    bytes: int
    weight: int
    checksum: str
    facts: Mapping[str, int | str] | None = None
    url: str = ""

    @property
    def is_reference(self) -> bool:
        """Whether its rows are about documents that an earlier run has judged."""
        return bool(self.url)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundStage:
    """A stage under the name it has in this run, with the digest of its code and options.

    Attributes:
        emit_digest: of a global stage, the same without the options that `emit` does not look at.
        segmentations: members of `DocumentBatch` that the digest covers; None where they are not known.
    """

    name: str
    stage: Filter | Map | Global
    digest: str
    emit_digest: str = ""
    segmentations: frozenset[str] | None = None


Tables = Mapping[str, tuple[OutputRef, ...]]
"""Exchange files by the table that their rows are of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """The verdicts of a global stage on the documents of a task, and the reason they give.

    Attributes:
        tables: "drops", "cuts" and "sizes", those that the stage makes, as far as there are rows for files of the task.
        size_column, cluster_column: where the sizes of clusters and their names go, if anywhere.
        removed_share: a document of which a greater share is cut is dropped.
    """

    name: str
    rule: str
    tables: Tables
    size_column: str | None = None
    cluster_column: str | None = None
    removed_share: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What every task has. `resources` are Ray's: num_cpus, num_gpus, memory in bytes."""

    step: str
    fingerprint: str
    source: str = ""
    seed: int
    resources: tuple[tuple[str, float], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.step} ({self.fingerprint[:12]})"


@dataclass(frozen=True, kw_only=True, slots=True)
class MapTask(Task):
    """Streams documents through fused stages. Either `splits`, each with its reader, or `documents` of the step before.

    Attributes:
        source_place: of the source among those that `emit` puts in order, where it does; see `StageContext`.
    """

    splits: tuple[Split, ...] = ()
    readers: tuple[Reader, ...] = ()
    fields: FieldNames = field(default_factory=FieldNames)
    limit: int | None = None
    documents: tuple[OutputRef, ...] = ()
    decisions: Decisions | None = None
    stages: tuple[BoundStage, ...] = ()
    emit: BoundStage | None = None
    source_place: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceTask(Task):
    """Meets the rows of one hash range in one round of an exchange.

    Attributes:
        exchange: its name.
        tables: by input.
        limit_bytes: rows given to the stage at once, about; where a range has more, they come in parts.
        at_once: whether all rows go to `Global.meet_at_once`.
    """

    stage: BoundStage
    exchange: str
    tables: Tables
    start: int
    stop: int
    limit_bytes: int
    at_once: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeTask(Task):
    """Makes one sorted run of the rows that some files of a table have of one hash range."""

    stage: BoundStage
    table: str
    files: tuple[OutputRef, ...]
    start: int
    stop: int
    limit_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherTask(Task):
    """Puts the final tables of a global stage in the order of document keys; a range of the first halves of keys."""

    stage: BoundStage
    tables: Tables
    start: int
    stop: int
    limit_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTask(Task):
    """Takes the documents whose keyed hash is below `fraction`, validation apart."""

    documents: tuple[OutputRef, ...]
    fraction: float
    validation: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainTask(Task):
    """Trains the tokenizer on all samples, or takes the user's own (`content`) into the run."""

    samples: tuple[OutputRef, ...] = ()
    vocab_size: int = 0
    pattern: str = ""
    eos: str | None
    content: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeTask(Task):
    """Encodes documents and spreads them by keyed hash.

    Attributes:
        strata: the column and the bounds by which training documents go to files of their own.
    """

    documents: tuple[OutputRef, ...]
    tokenizer: OutputRef
    eos: str | None
    validation: float
    strata: tuple[str, tuple[float, ...]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackTask(Task):
    """Packs one hash range of a source's token rows into shards; of one stratum, where it has any."""

    files: tuple[OutputRef, ...]
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
    min_piece: int
    format: Literal["arrow", "parquet"]
    target_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What the ledger keeps of a committed task: its outputs by kind, and its numbers."""

    step: str
    fingerprint: str
    outputs: Mapping[str, tuple[OutputRef, ...]]
    metrics: TaskMetrics

    def of(self, kind: str) -> tuple[OutputRef, ...]:
        return self.outputs.get(kind, ())


def output_to_json(output: OutputRef) -> dict[str, Any]:
    facts = None if output.facts is None else dict(output.facts)
    return {name: getattr(output, name) for name in ("path", "rows", "bytes", "weight", "checksum")} | {"facts": facts}


def output_from_json(data: Mapping[str, Any]) -> OutputRef:
    return OutputRef(**data)
