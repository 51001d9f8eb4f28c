"""The contract of a stage. A stage is a frozen record of its options: its YAML, its help and its fingerprint.

    Reader   a split of an input file      ->  documents, and rejected records (`stage/reader.py`)
    Filter   a batch of documents          ->  per document: keep or drop, the rule, the measured value
    Map      a batch of documents          ->  new columns
    Global   all documents of a run        ->  documents to drop, spans to cut (`stage/global_stage.py`)

The engine counts, times, logs and writes, and quarantines the document that makes a stage raise.
Batches are in read-only memory: a write through NumPy or Arrow raises, one by native code does not.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema, model_validator

from datapipe.dataclass import dataclass, field, replace
from datapipe.errors import StageError, UserError
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.findings import SearchedList


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """Run-time facts that a stage may use. They are never options."""

    # the stage's name in the run: its `as:` name, or the name in the catalogue. Seeds and reasons derive from it.
    name: str
    # the seed of the mixture. Derive the stage's own with `rng.seed_for(context.seed, context.name, …)`.
    seed: int
    # index in `Global.source_order()` of the source whose documents the stage emits; None without an order
    source_position: int | None = None


def _as_number(value: Any) -> Any:
    """A percentage as a share; any other value unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    number = value.strip().removesuffix("%")
    if number == value.strip() or not number.strip().replace(".", "", 1).isdecimal():
        raise ValueError("expected a share from 0 to 1 such as 0.5, or a percentage such as 50%")
    return float(Decimal(number) / 100)  # in floats 0.07 / 100 != 0.0007


Share = Annotated[
    float,
    Field(ge=0.0, le=1.0),
    BeforeValidator(_as_number),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": "%$"}]}),
]
"""A number from 0 to 1, or a percentage."""


class Stage(BaseModel):
    """A frozen record of options. Subclass Filter, Map, Reader or Global, never this class."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, serialize_by_alias=True)

    libraries: ClassVar[tuple[str, ...]] = ()
    """Installed distributions whose version changes the stage's output. The fingerprints of its tasks hold their versions, and
    those of a stage outside datapipe also of numba, NumPy and pyarrow."""

    checks: ClassVar[frozenset[str]] = frozenset()
    """Options outside the stage's fingerprint: they only decide whether a run continues, or have another one."""

    writes: ClassVar[tuple[str, ...] | None] = None
    """Columns beside `text` and `counts` that the stage may add to documents; None: not known before it runs. Stages after it
    may read them. A stage that declares them may return no other."""

    counts: ClassVar[tuple[str, ...]] = ()
    """Names of returned integer columns that are summed into the report and not stored with the documents."""

    before_text: ClassVar[bool] = False
    """Whether the stage may stand before extraction, where documents are pages and have no text. It must not read the text."""

    takes_json: ClassVar[bool] = False
    """Whether the stage makes the text of a document of the JSON text of fields (`FieldNames.json`). It is the first stage that
    reads it; a source names the fields and the stage (`Source.json_fields`)."""

    _context: StageContext = PrivateAttr(default=StageContext(name="", seed=0))

    def __getstate__(self) -> dict[Any, Any]:
        """The state without cached properties: each worker loads models and tables by itself."""
        state, fields = super().__getstate__(), type(self).model_fields
        return {**state, "__dict__": {name: value for name, value in state["__dict__"].items() if name in fields}}

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        try:
            self.check_options()
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    def check_options(self) -> None:
        """Raises ValueError or UserError for options that contradict each other, or files that cannot be used."""

    def open(self, context: StageContext) -> None:
        """Called once per worker. Computes every `cached_property` of the stage: its models and tables."""
        self._context = context
        for name, _ in inspect.getmembers_static(type(self), lambda member: isinstance(member, cached_property)):
            getattr(self, name)

    def input_files(self) -> tuple[str, ...]:
        """Paths of further files that the stage reads, such as a table beside its module. Their content is part of the
        fingerprint, as that of files in options of type `Path` is; only those may be URLs, and go to other machines."""
        return ()

    def chat_template(self) -> str | None:
        """The chat template by which the stage writes documents, which goes with their snapshot; None without one."""
        return None

    def missing_tokens(self) -> tuple[str, ...]:
        """Control tokens that its chat template spells and the tokenizer lacks, so that they become text."""
        return ()

    def libraries_used(self) -> tuple[str, ...]:
        """The distributions that count with these options: `libraries`, and those that only some options need."""
        return self.libraries

    def unused_kernels(self) -> tuple[str, ...]:
        """How names of kernels begin, "datapipe.kernels.redact.identifiers:", that the stage never calls with these options.
        They are not compiled before the run needs them."""
        return ()

    def user_classes(self) -> Mapping[str, str]:
        """Classes of the user that the options name, "package.module:Class", each with the method that it must
        have. Their code, and the versions of their `libraries`, are part of the fingerprint."""
        return {}

    def columns_read(self) -> Mapping[str, str]:
        """The columns beside `key`, `id` and `text` that the stage decides by, each with the option that names
        it: {"url": "field"}. Planning refuses a mixture whose documents lack one of them."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """Lines that explain the effect of the options, or the cost of the stage. `datapipe plan` prints them."""
        return ()


OTHER_KIND, OF_KIND = "other_kind", "of_kind"
"""Counts of a filter that reads a field as numbers or dates: values that are none, and those that are. The run warns where most
are none."""
PHONE_REGIONS = ("phone_regions_by_url", "phone_regions_by_language", "phone_regions_by_default")
"""Counts of documents with a candidate for a phone number, by what their regions were chosen by."""
LANGUAGE_SETTINGS = ("language_settings", "script_settings", "default_settings")
"""Counts of documents that a filter decides by their language, by whose settings it takes. The run warns where most have the
default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One test of a filter. A value equal to the limit passes."""

    name: str  # the second half of a drop's reason, STAGE:NAME, such as "too_few_words"
    limit: float  # the threshold that the measured value is compared with
    # "min": a smaller value fails. "max": a greater value fails. "other": the stage decides by itself.
    side: Literal["min", "max", "other"] = "other"
    option: str = ""  # the option that holds the limit, for `inspect --sweep STAGE.OPTION`; "" without one

    def failed(self, measured: np.ndarray, limits: np.ndarray | None = None) -> np.ndarray:
        """Where `measured` (num_docs,) fails, bool, at the rule's limit or at those of each document. Raises StageError for
        side "other"."""
        if self.side == "other":
            raise StageError(
                f"the rule '{self.name}' has no side, so no value passes or fails it. Make the rule with `self.at_least` or "
                '`self.at_most`, or give it side="min" or side="max"; a stage that decides by itself uses '
                "`FilterResult.first_failing`"
            )
        limit = self.limit if limits is None else limits
        return measured < limit if self.side == "min" else measured > limit


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterResult:
    """The decisions of a filter, one entry per document."""

    keep: np.ndarray  # (num_docs,) bool
    # (num_docs,) int16, the index in `Filter.rules()` of the first rule that the document fails; -1 if kept
    rule: np.ndarray
    # (num_docs,) float64, the value that this rule measured; if kept, the filter's score or NaN
    value: np.ndarray
    # (num_docs,) float64, the threshold of this rule where it differs by document; None: `Rule.limit` holds for all
    limit: np.ndarray | None = None
    # per rule of `Filter.rules()` its measured values, (num_docs,) float64 each, for `mode: tag`
    measured: tuple[np.ndarray, ...] = ()
    # per rule its thresholds, (num_docs,) float64 each, where they differ by document and all are known
    limits: tuple[np.ndarray, ...] = ()
    # documents that the stage cannot process, by row: what was found, and on a last line the reason by which
    # they are counted. They go to quarantine, whatever the other fields have for them; not beside `findings`.
    failed: Mapping[int, str] = field(default_factory=dict)
    # new columns of the kept documents, (num_docs,) each: `text` if the filter edits, and the columns of `counts`
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    # of a filter with `searched_lists`: what it found in which document, in the schema `findings.FOUND`
    findings: pa.RecordBatch | None = None

    def without_failed(self) -> tuple[FilterResult, np.ndarray]:
        """The result of the documents that did not fail, and which these are, (num_docs,) bool."""
        rows = np.ones(len(self.keep), np.bool_)
        rows[list(self.failed)] = False
        mask = pa.array(rows)
        limit = None if self.limit is None else self.limit[rows]
        measured, limits = (tuple(values[rows] for values in each) for each in (self.measured, self.limits))
        return FilterResult(
            keep=self.keep[rows],
            rule=self.rule[rows],
            value=self.value[rows],
            limit=limit,
            measured=measured,
            limits=limits,
            columns={name: column.filter(mask) for name, column in self.columns.items()},
            findings=None if self.findings is None else _findings_of(self.findings, rows),
        ), rows

    @classmethod
    def from_rules(
        cls,
        rules: Sequence[Rule],
        measured: Sequence[np.ndarray],
        columns: Mapping[str, pa.Array] | None = None,
        limits: Sequence[np.ndarray] = (),
    ) -> FilterResult:
        """The result of `Filter.rules()`, each with a side, by its values, (num_docs,) numbers.
        They are tried in order: the first rule that a document fails drops it. `limits`: of each rule its thresholds by
        document, (num_docs,) numbers, where they differ."""
        if len(rules) != len(measured):
            raise StageError(f"from_rules: expected the values of each of {len(rules)} rules, found those of {len(measured)}")
        as_floats = tuple(np.asarray(values, np.float64) for values in measured)
        of_rules = tuple(np.asarray(values, np.float64) for values in limits)
        failed = [rule.failed(*each) for rule, *each in zip(rules, as_floats, *([of_rules] if of_rules else []))]
        num_docs = len(as_floats[0]) if as_floats else 0
        result = cls.first_failing(num_docs, list(zip(as_floats, failed)), columns)
        if not of_rules:
            return result
        limit = np.stack(of_rules)[np.maximum(result.rule, 0), np.arange(num_docs)]
        return replace(result, limit=limit, limits=of_rules)

    @classmethod
    def first_failing(
        cls,
        num_docs: int,
        tried: Sequence[tuple[np.ndarray, np.ndarray]],
        columns: Mapping[str, pa.Array] | None = None,
    ) -> FilterResult:
        """As `from_rules`, for stages that decide themselves where a rule fails. `tried`: per rule
        of `Filter.rules()`, its values and its failures, (num_docs,) numbers and bool."""
        for index, (measured, failed) in enumerate(tried):
            if np.shape(measured) != (num_docs,) or np.shape(failed) != (num_docs,) or np.asarray(failed).dtype != np.bool_:
                raise StageError(
                    f"rule {index}: expected numbers and bool of shape ({num_docs},), found shapes {np.shape(measured)} and "
                    f"{np.shape(failed)} of {np.asarray(failed).dtype}"
                )
        rule, value = np.full(num_docs, -1, np.int16), np.full(num_docs, np.nan)
        for index, (measured, failed) in reversed(list(enumerate(tried))):
            rule[failed] = index
            value[failed] = measured[failed]
        measured = tuple(np.asarray(values, np.float64) for values, _ in tried)
        return cls(keep=rule < 0, rule=rule, value=value, measured=measured, columns=columns or {})


def _findings_of(findings: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """The findings in the documents `rows` (num_docs,) bool, by their row among these."""
    found = findings.column("row").to_numpy()
    moved = pa.array((np.cumsum(rows) - 1)[found], pa.int64())
    at = findings.schema.get_field_index("row")
    return findings.set_column(at, findings.schema.field(at), moved).filter(pa.array(rows[found]))


BELOW_SHARE = "below_share"
"""The rule of documents below the cut: the last rule of a filter that keeps a share. What it measures is the score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptShare:
    """How much a filter keeps of the documents or bytes of a source: a share from 0 to 1, exact. `threshold_from`: an output
    of an earlier run whose cut is used again; "" to find the cut in this run."""

    share: Fraction
    of: Literal["documents", "bytes"] = "documents"
    threshold_from: str = ""


class Filter(Stage):
    """Decides about each document by itself: keep it, drop it, or keep it with an edited text."""

    mode: Literal["drop", "tag"] = Field(
        default="drop",
        description="drop: remove documents that fail a rule. tag: keep all documents unchanged and add columns: STAGE.rule "
        "(the first rule that fails), STAGE.value (its measured value), and STAGE.RULE (the measured value of each rule). "
        "`datapipe inspect --sweep` reads them.",
    )

    extracts: ClassVar[bool] = False
    """Whether the filter makes texts of pages: it takes `DocumentBatch.html` and returns the column `text`. Its rules drop the
    pages that have none. The pages end with it."""

    @model_validator(mode="after")
    def _check_extraction(self) -> Self:
        if (self.extracts or self.takes_json) and self.mode == "tag":
            raise ValueError("mode: tag keeps documents unchanged, and this stage makes their text. Leave `mode` out")
        return self

    def rules(self) -> Sequence[Rule]:
        """The rules, in the order in which they are tried."""
        raise NotImplementedError

    def searched_lists(self) -> Sequence[SearchedList]:
        """The lists whose entries the filter searches for, such as benchmarks; see `FilterResult.findings`."""
        return ()

    def at_least(self, name: str, option: str) -> Rule:
        """The rule `name`: a value below the option's fails."""
        return Rule(name=name, limit=getattr(self, option), side="min", option=option)

    def at_most(self, name: str, option: str) -> Rule:
        """The rule `name`: a value above the option's fails."""
        return Rule(name=name, limit=getattr(self, option), side="max", option=option)

    def kept_share(self) -> KeptShare | None:
        """How much of a source the filter keeps, by the order of its scores; None: its rules decide
        alone. The last of its `rules()` is then `self.below_share(option)`, which `process`
        measures and never fails: the engine finds the cut over all documents."""
        return None

    def sampled_share(self) -> float:
        """The share of documents that the filter keeps whatever they are; 1 where it decides by what it reads."""
        return 1.0

    def below_share(self, option: str) -> Rule:
        """The rule of documents below the cut of a kept share; `option` is a least score."""
        return Rule(name=BELOW_SHARE, limit=-math.inf, side="min", option=option)

    def process(self, batch: DocumentBatch) -> FilterResult:
        raise NotImplementedError


class Map(Stage):
    """Computes columns for each document. A returned column `text` replaces the text."""

    def process(self, batch: DocumentBatch) -> dict[str, pa.Array]:
        raise NotImplementedError
