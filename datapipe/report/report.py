"""Every number of a run, as report.json has it: typed records, read and written here alone. `README.md` explains the keys.

    committed tasks ─▶ `summary.py` ─▶ Report ─▶ report.json
                                         ├─▶ `sections.py` ─▶ terminal, page, card
                                         └─▶ comparison and page of `explore`

Shares and rates are computed from the sums beside them. Reading ignores keys that are not known here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WrapSerializer

from datapipe.metrics import Packing, Work
from datapipe.records.names import REPORT
from datapipe.report.origins import ReportProvenance, TakenSource
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import absent
from datapipe.steps.warnings import RunWarning
from datapipe.storage.root import Root
from datapipe.token_counts import TokenizerFigures

RuleBin = tuple[float, float, int, int]  # low, high, passed, failed; half open
LengthBin = tuple[float, float, int, int]  # low, high, documents, bytes; half open
SizeBin = tuple[int, int, int, int]  # low, high, clusters, documents; both bounds included
_IN_ONE_LINE = ("measured", "lengths", "clusters")
"""Long entries that programs read; people find them on a line each."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Documents(Record):
    """read = kept + Σ dropped + quarantined, when every step is committed."""

    read: int
    kept: int
    dropped: dict[str, int]
    quarantined: int
    quarantine_reasons: dict[str, int]

    @property
    def between_steps(self) -> int:
        """Documents that some step has not decided about yet."""
        return self.read - self.kept - self.quarantined - sum(self.dropped.values())


def _with(name: str) -> WrapSerializer:
    """Writes a property of a record behind its fields."""
    return WrapSerializer(lambda record, fields: {**fields(record), name: getattr(record, name)})


PackedRows = Annotated[Packing, _with("padding_share")]
StepWork = Annotated[Work, AfterValidator(lambda work: replace(work, seconds=round(work.seconds, 6))), _with("mb_per_s")]


class Entry(Record):
    documents: Documents
    bytes: int
    kept_bytes: int
    tokens: int
    sequences: int
    packing: dict[int, PackedRows]
    counts: dict[str, int]
    steps: dict[str, StepWork]


class Total(Entry):
    task_seconds: float


class TaskCounts(Record):
    """The tasks of one step; `rows` and `bytes` are those that an exchange wrote."""

    planned: int | None
    committed: int
    kind: str
    source: str | None
    label: str
    seconds: float
    peak_bytes: int
    rows: int | None = absent()
    bytes: int | None = absent()


class SecondAttempts(Record):
    tasks: int
    won: int


class Threshold(Record):
    """The cut of a filter that keeps a share."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    threshold: float | None
    tie: str | None
    documents: int | None
    kept_documents: int | None
    weight: int | None
    kept_weight: int | None
    share: float
    of: str
    earlier: str | None = Field(alias="from")


class SearchedSet(Record):
    """A list of entries that filters searched for; contaminated + undetectable + clean = entries."""

    stage: str
    name: str
    entries: int
    contaminated: int
    undetectable: int
    clean: int


class NearDocument(Record):
    document: str
    key: str
    value: float
    threshold: float


class Borderline(Record):
    kept: tuple[NearDocument, ...] = ()
    dropped: tuple[NearDocument, ...] = ()


class Rule(Record):
    """What one rule of a filter measured, summed over the tasks of one source."""

    option: str
    side: Literal["min", "max", "other"]
    threshold: float | None
    mode: str
    documents: int
    not_a_number: int
    passed: int
    failed: int
    passed_bytes: int
    failed_bytes: int
    dropped: int
    bins: tuple[RuleBin, ...]
    borderline: Borderline

    @property
    def failed_share(self) -> float | None:
        measured = self.passed + self.failed
        return self.failed / measured if measured else None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRule:
    """A rule with the source and the stage that have it."""

    source: str
    stage: str
    name: str
    rule: Rule

    @property
    def label(self) -> str:
        return f"{self.source}: {self.stage}:{self.name}"


class Clusters(Record):
    """Clusters of a stage by size; the numbers are estimates where `sampled` is below 1."""

    clusters: int
    dropped: int
    sampled: float
    sizes: tuple[SizeBin, ...]


class Stratum(Record):
    documents: int
    tokens: int
    sequences: int
    repeat: int


class SourceShare(Record):
    """What training draws of a source. Tokens and epochs of an endless run are None."""

    share: float
    tokens: int | None
    epoch_tokens: int
    epochs: float | None
    max_epochs: float | None
    strata: tuple[Stratum, ...] | None

    @property
    def most_repeats(self) -> int:
        """Repetitions in an epoch of the text that it repeats most."""
        return max((stratum.repeat for stratum in self.strata or () if stratum.documents), default=1)


class Interval(Record):
    start_tokens: int
    stop_tokens: int
    tokens: dict[str, int]


class MixtureShares(Record):
    """The realised mixture; `tokens` is None for an endless run."""

    tokens: int | None
    asked_tokens: int | None
    phases: int
    exhausted: str
    window: int
    sources: dict[str, SourceShare]
    schedule: tuple[Interval, ...]


class Published(Record):
    files: int
    bytes: int
    fingerprint: str
    before: str | None
    taken_down: int
    held_out: int

    @classmethod
    def of(cls, snapshot: Snapshot, before: str | None) -> Self:
        """Of a snapshot, with the fingerprint of the snapshot before it."""
        shards = snapshot.shards
        return cls(
            files=len(shards),
            bytes=sum(shard.bytes for shard in shards),
            fingerprint=snapshot.fingerprint,
            before=before,
            taken_down=snapshot.num_removed,
            held_out=sum(shard.sequences for shard in shards if shard.split == "validation"),
        )


class Command(Record):
    datapipe: str
    engine: str
    workers: int | None
    wall_s: float
    finished: str


def _warning(entry: RunWarning | Mapping[str, Any]) -> RunWarning:
    if isinstance(entry, RunWarning):
        return entry
    details = {name: value for name, value in entry.items() if name not in ("kind", "source", "text")}
    return RunWarning(kind=entry["kind"], source=entry["source"] or "", text=entry["text"], details=details)


Warned = Annotated[RunWarning, BeforeValidator(_warning), PlainSerializer(RunWarning.to_json)]
Status = Literal["done", "failed", "stopped"]


class Report(Record):
    """report.json. What comes from files of a run, and not from its plan, has a default."""

    name: str
    status: Status
    problem: str | None
    total: Total
    sources: dict[str, Entry]
    taken: dict[str, TakenSource]
    mixture: MixtureShares | None
    tokenizer: TokenizerFigures | None = None
    warnings: tuple[Warned, ...]
    thresholds: dict[str, dict[str, Threshold]]
    contamination: tuple[SearchedSet, ...] = ()
    measured: dict[str, dict[str, dict[str, Rule]]] = {}
    lengths: dict[str, dict[str, tuple[LengthBin, ...]]] = {}
    clusters: dict[str, Clusters] = {}
    tasks: dict[str, TaskCounts]
    second_attempts: dict[str, SecondAttempts]
    peak_worker_bytes: int
    run: Command | None = None
    shards: Published | None
    provenance: ReportProvenance

    def with_(self, **changes: Any) -> Self:
        return self.model_copy(update=changes)

    def rules(self) -> list[MeasuredRule]:
        return [
            MeasuredRule(source=source, stage=stage, name=name, rule=rule)
            for source, stages in self.measured.items()
            for stage, rules in stages.items()
            for name, rule in rules.items()
        ]

    def to_bytes(self) -> bytes:
        entries = (
            f"{json.dumps(name)}: {json.dumps(value, indent=None if name in _IN_ONE_LINE else 1, ensure_ascii=False)}"
            for name, value in self.model_dump(mode="json").items()
        )
        return ("{\n" + ",\n".join(entries) + "\n}\n").encode()


def write_report(root: Root, report: Report) -> None:
    root.write_atomic(REPORT, report.to_bytes())


def read_report(root: Root) -> Report:
    """report.json. Raises FileNotFoundError, and ValueError for one of another version."""
    return Report.model_validate_json(root.read_bytes(REPORT))
