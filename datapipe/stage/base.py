"""The contract of a stage: what the engine calls, and what it does so that no stage has to.

A stage is a frozen record of its options. Those options are its YAML, its help text and part of its fingerprint.

    Reader   one split of an input file    ->  rows of documents, and what could not be read
    Filter   a batch of documents          ->  keep, rule and measured value per document
    Map      a batch of documents          ->  new columns
    Global   a batch of documents          ->  rows that are exchanged by hash, meet, and come back (`stage/global_stage.py`)

The engine counts, times, logs, writes, isolates the document that makes a stage raise, and re-reads what it needs.
A stage is found by name (`catalogue.py`), so adding one is adding a file and its test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from datapipe.stage.documents import DocumentBatch

REACHES = ()  # look-ups by name are of options


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """Run-time facts a stage may use: never part of its options.

    Attributes:
        name: the stage's name in the run, after `as:`; seeds and reasons are named by it.
        seed: the seed of the mixture; derive others with `rng.seed_for(context.seed, context.name, …)`.
        source_place: for a global stage with a `source_order`, the place in it of the source whose documents it emits, from 0.
    """

    name: str
    seed: int
    source_place: int | None = None


class Stage(BaseModel):
    """A frozen record of options. Subclass one of the four kinds below, never this."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False)

    libraries: ClassVar[tuple[str, ...]] = ()
    """Installed distributions whose version changes what the stage does; part of its fingerprint."""

    reaches: ClassVar[tuple[str, ...]] = ()
    """Code that the class uses and that reading it does not tell, because a name is computed (`getattr(self, name)`) or stands
    in a text: "module:definition", or ".name" for a member of that name. It is part of the fingerprint. A class with a computed
    look-up says () where that finds nothing but data."""

    checks: ClassVar[frozenset[str]] = frozenset()
    """Options that are no part of the stage's fingerprint: those that only say whether a run goes on, and those whose effect
    is in the fingerprints of tasks by other ways."""

    def open(self, context: StageContext) -> None:
        """Loads what is heavy, once per worker, into private attributes (`_model: Any = PrivateAttr()`)."""

    def input_files(self) -> tuple[str, ...]:
        """Paths the options name (a model, a word list): their content is part of the fingerprint."""
        return ()

    def segmentations(self) -> tuple[str, ...]:
        """Segmentations of a batch that the options choose, by their names in `DocumentBatch`: ("english_words",) for a stage
        that calls `batch.words_by("english")`. Those that the code names, as in `batch.lines`, need not be told. Using another
        one is an error, since the fingerprint does not cover it."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Lines for people on what the options come to; `datapipe plan` prints those of global stages."""
        return ()


# ---------------------------------------------------------------------------------------------------- filters


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One test of a filter. The limit itself passes.

    Attributes:
        name: the reason of a drop, after the stage's name: "too_few_words".
        limit: what the measured value is held against.
        side: "min" where less fails, "max" where more fails, "other" where the stage decides in a way of its own.
        option: the option that holds the limit, "" where none does. `inspect --sweep STAGE.OPTION` goes by it.
    """

    name: str
    limit: float
    side: Literal["min", "max", "other"] = "other"
    option: str = ""

    def failed(self, measured: np.ndarray) -> np.ndarray:
        """Where `measured` (num_docs,) fails, bool; not for side "other"."""
        assert self.side != "other", self.name
        return measured < self.limit if self.side == "min" else measured > self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterResult:
    """What a filter decided, one entry per document.

    Attributes:
        keep: (num_docs,) bool.
        rule: (num_docs,) int16, the index in `Filter.rules()` of the first rule a dropped document failed; -1 where kept.
        value: (num_docs,) float64, what that rule measured; where kept, the filter's score or NaN.
        limit: (num_docs,) float64, what it was held against, where that differs by document; None: the rule's own limit.
        measured: per rule of `Filter.rules()` what it measured, (num_docs,) float64 each, for `mode: tag`.
        columns: new columns for the documents that are kept, (num_docs,) each: `text` where the filter also edits, tallies.
    """

    keep: np.ndarray
    rule: np.ndarray
    value: np.ndarray
    limit: np.ndarray | None = None
    measured: tuple[np.ndarray, ...] = ()
    columns: Mapping[str, pa.Array] = field(default_factory=dict)

    @classmethod
    def judged(
        cls, rules: Sequence[Rule], measured: Sequence[np.ndarray], columns: Mapping[str, pa.Array] | None = None
    ) -> FilterResult:
        """The result of rules tried in turn: a document is dropped by the first that it fails.

        Args:
            rules: as `Filter.rules()` has them, each with a side.
            measured: per rule (num_docs,) numbers.
            columns: as in the result.
        """
        as_floats = tuple(np.asarray(one, np.float64) for one in measured)
        failed = [rule.failed(one) for rule, one in zip(rules, as_floats, strict=True)]
        num_docs = len(as_floats[0]) if as_floats else 0
        return cls.first_failing(num_docs, list(zip(as_floats, failed)), columns)

    @classmethod
    def first_failing(
        cls,
        num_docs: int,
        tried: Sequence[tuple[np.ndarray, np.ndarray]],
        columns: Mapping[str, pa.Array] | None = None,
    ) -> FilterResult:
        """As `judged`, by rules that decide in a way of their own.

        Args:
            num_docs: of the batch.
            tried: per rule, in the order of `Filter.rules()`, what it measured (num_docs,) and where that fails, bool.
            columns: as in the result.
        """
        rule, value = np.full(num_docs, -1, np.int16), np.full(num_docs, np.nan)
        for index, (measured, failed) in reversed(list(enumerate(tried))):
            rule[failed] = index
            value[failed] = measured[failed]
        measured = tuple(np.asarray(one, np.float64) for one, _ in tried)
        return cls(keep=rule < 0, rule=rule, value=value, measured=measured, columns=columns or {})


class Filter(Stage):
    """Judges each document by itself; it may also edit the text of those it keeps."""

    mode: Literal["drop", "tag"] = Field(
        default="drop",
        description="drop: remove the documents that fail. tag: keep them all, edit nothing, and write the columns NAME.rule "
        "(the first rule failed), NAME.value and, for every rule, NAME.RULE: what it measured. See `datapipe inspect --sweep`.",
    )

    counts: ClassVar[tuple[str, ...]] = ()
    """Names of returned integer columns that are summed into the report and not stored with the documents."""

    def rules(self) -> Sequence[Rule]:
        """The rules in the order they are tried."""
        raise NotImplementedError

    def at_least(self, name: str, option: str) -> Rule:
        """The rule `name`: less than the option says fails."""
        return Rule(name=name, limit=getattr(self, option), side="min", option=option)

    def at_most(self, name: str, option: str) -> Rule:
        """The rule `name`: more than the option says fails."""
        return Rule(name=name, limit=getattr(self, option), side="max", option=option)

    def process(self, batch: DocumentBatch) -> FilterResult:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------- maps


class Map(Stage):
    """Computes columns. Returning `text` replaces the text."""

    counts: ClassVar[tuple[str, ...]] = ()
    """Names of returned integer columns that are summed into the report and not stored with the documents."""

    def process(self, batch: DocumentBatch) -> dict[str, pa.Array]:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------- readers


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One input file as planning sees it: facts only, gathered before anything is planned.

    Attributes:
        url: where to open it, as `storage.open_input` takes it.
        path: relative to the glob's fixed prefix, with forward slashes: the name that document keys are made of.
        num_bytes: size as stored.
        stamp: what tells that the content changed: mtime in ns, ETag, or a digest of the content.
        compression: "gzip", "zstd" or None, by the file's ending.
        pieces: what `Reader.probe` found that the file can be cut at: (num_rows, num_bytes) per Parquet row group.
    """

    url: str
    path: str
    num_bytes: int
    stamp: str
    compression: str | None = None
    pieces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A part of an input file that one task reads: bytes [start, stop) of plain JSONL, row groups [start, stop) of
    Parquet, or all of it (stop None)."""

    file: InputFile
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldNames:
    """Which fields of the input become which columns.

    Attributes:
        text: the field that holds the text (dots reach into objects: `content.text`).
        id: the field that holds the id; where it is missing or null the id is path:place.
        keep: other fields to carry along under their own names.
    """

    text: str = "text"
    id: str = "id"
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """One thing in the input that is not a document: a bad line, or the unread rest of a broken file.

    Attributes:
        place: byte offset in the decompressed file, or row number.
        error: what was found and what was expected, in one sentence.
        excerpt: the first bytes of it, at most 4 KiB.
    """

    place: int
    error: str
    excerpt: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBatch:
    """What a reader yields: documents as columns, and what it had to reject, in file order.

    Attributes:
        places: (num_docs,) uint64, ascending: byte offset of the line in the decompressed file, or row number.
        texts: (num_docs,) large_string without nulls.
        ids: (num_docs,) large_string; null where the input has none.
        extra: kept columns by name, (num_docs,) each.
        rejected: what is quarantined.
        input_bytes: bytes of the (decompressed) input that this batch accounts for.
    """

    places: np.ndarray
    texts: pa.Array
    ids: pa.Array
    extra: Mapping[str, pa.Array] = field(default_factory=dict)
    rejected: tuple[Rejected, ...] = ()
    input_bytes: int = 0


class OpenInput(Protocol):
    """Opens a URL for reading: `storage.open_input`, handed in so that a reader knows no file system."""

    def __call__(self, url: str) -> pa.NativeFile: ...


class Reader(Stage):
    """Turns input files into documents. Never raises for bad content: it yields `Rejected`."""

    extensions: ClassVar[tuple[str, ...]] = ()
    """File endings that `format: auto` gives to this reader, compression aside: (".jsonl", ".ndjson")."""

    def probe(self, file: InputFile, open_input: OpenInput) -> tuple[tuple[int, int], ...]:
        """`InputFile.pieces` for a format that must be opened to know where it can be cut. Raises UserError or OSError."""
        return ()

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """The splits of a file: a function of the file alone. By default a file is read whole."""
        return [Split(file=file)]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        raise NotImplementedError

    def read_one(self, file: InputFile, place: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        """The text at `place` again, for `inspect` and `trace`; None where no document is there."""
        raise NotImplementedError
