"""The files that tasks write, by what the next step must know of each, and their form in the ledger.

OutputFile       any file: path, rows, bytes, checksum
├─ TableFile       documents, drops, quarantine, sample: a stream of record batches
├─ ExchangeFile    rows sorted by hash: emitted tables, outputs of exchanges, token rows
├─ TokenizerFile   tokenizer.json
├─ ShardFile       token sequences
└─ DocumentsFile   documents as text
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from datapipe.dataclass import dataclass, fields
from datapipe.metrics import TaskMetrics


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputFile:
    path: str  # relative to OUTPUT
    rows: int  # documents, rows to exchange, sequences or token ids, as the kind of file has it
    bytes: int  # as stored
    checksum: str  # of all stored bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile(OutputFile):
    """Record batches of one schema; `row_bytes` of them in memory."""

    row_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeFile(OutputFile):
    """Rows sorted by hash, in one or more runs."""

    # bytes of the rows in memory; of token rows the bytes of their ids, at least
    # `tokenize.LEAST_DOCUMENT_BYTES` a document. Hash ranges are sized by it.
    row_bytes: int
    # first, last: the least and the greatest hash; 0 and -1 in a file without rows
    first: int = 0
    last: int = -1
    runs: int = 0  # sorted runs in the file
    # where the file is, if it belongs to an earlier run or an index. Empty for files of this run.
    url: str = ""

    @property
    def is_reference(self) -> bool:
        """Whether the rows are about documents of an earlier run."""
        return bool(self.url)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerFile(OutputFile):
    """The tokenizer of a run; `rows` is the size of its vocabulary."""

    vocab_size: int
    # eos_id, eos_token: end a document
    eos_id: int
    eos_token: str
    fingerprint: str  # of the canonical tokenizer.json; shards and loader states carry it
    # library, library_version, battery, fallback_reason: of the encoder; see `tokens.proof.Choice`
    library: str
    library_version: str
    battery: str
    fallback_reason: str
    # bos_id, bos_token: begin a document; None where nothing does
    bos_id: int | None = None
    bos_token: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile(OutputFile):
    """A shard; `rows` counts its sequences."""

    documents: int  # of which at least one token is in the shard
    tokens: int  # without padding
    # tokens of every packed document, where `pack.method` is `buckets`; None elsewhere
    piece_length: int | None = None
    # its runs of rows of one cell, as `shard_table.CellRun` has them, where the source is split; else empty
    cells: tuple[tuple[int, bool, int, int, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(map(tuple, self.cells)))  # lists in a ledger


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentsFile(OutputFile):
    """Documents as text; `rows` counts them."""

    # among the files of its source, ascending in the order of the input. Numbers may be left out.
    number: int
    text_bytes: int  # UTF-8 bytes of the texts


F = TypeVar("F", bound=OutputFile)

Outputs = Mapping[str, tuple[OutputFile, ...]]  # by kind: "documents", "emitted.bands", "files", …
Tables = Mapping[str, tuple[ExchangeFile, ...]]  # by the table that their rows belong to

TRAINING_TEXTS, HELD_OUT_TEXTS = "training_texts", "held_out_texts"
"""Outputs of tokenize tasks with the hashes of texts, where documents are held out."""

CELLS, CELL_SIZES = "cells", "cell_sizes"
"""Outputs with the names of the cells of a source, and with the bytes of token rows by cell."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a committed task left: its outputs by kind, and its numbers."""

    outputs: Outputs
    metrics: TaskMetrics


class Stored(Protocol):
    """A content in a short form, which is decoded each time."""

    @property
    def outputs(self) -> Outputs: ...

    @property
    def metrics(self) -> TaskMetrics: ...

    @property
    def content(self) -> Content: ...


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """The ledger's record of a committed task. The ledger keeps its content in a short form, which is decoded each time that
    outputs or metrics are asked for: who asks for both takes `content` once."""

    step: str
    fingerprint: str
    stored: Content | Stored
    versions: str = ""  # of the libraries that decided the outputs: "pyarrow=26.0.1 unicode=14.0.0"; empty where unknown

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.step, self.fingerprint, self.content, self.versions

    @property
    def content(self) -> Content:
        return self.stored if isinstance(self.stored, Content) else self.stored.content

    @property
    def outputs(self) -> Outputs:
        return self.stored.outputs

    @property
    def metrics(self) -> TaskMetrics:
        return self.stored.metrics

    def of(self, kind: str, file_type: type[F] = OutputFile) -> tuple[F, ...]:
        """The outputs of a kind, which are files of one type."""
        return typed(self.outputs.get(kind, ()), file_type)


def typed(files: tuple[OutputFile, ...], file_type: type[F]) -> tuple[F, ...]:
    """Files that are of one type."""
    of_type = tuple(file for file in files if isinstance(file, file_type))
    assert len(of_type) == len(files), f"expected {file_type.__name__} only, found {files}"
    return of_type


_TYPES: Mapping[str, type[OutputFile]] = {
    "file": OutputFile,
    "table": TableFile,
    "exchange": ExchangeFile,
    "tokenizer": TokenizerFile,
    "shard": ShardFile,
    "documents": DocumentsFile,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_FIELDS = {kind: [field.name for field in fields(kind) if field.name != "url"] for kind in _NAMES}


def output_to_json(output: OutputFile) -> dict[str, Any]:
    """The fields of a file of this run, with its type. A `url` is never committed, and cells where there are any."""
    known = {name: getattr(output, name) for name in _FIELDS[type(output)]}
    if not known.get("cells", True):
        del known["cells"]
    return {"type": _NAMES[type(output)], **known}


def output_from_json(data: Mapping[str, Any]) -> OutputFile:
    known = dict(data)
    return _TYPES[known.pop("type")](**known)
