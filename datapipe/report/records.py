"""The records of report.json that its sections share. `README.md` explains the keys.

Shares and rates are computed from the sums beside them.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WrapSerializer

from datapipe.dataclass import replace
from datapipe.metrics import Packing, Work
from datapipe.shards.manifest import Snapshot
from datapipe.shards.shard_table import absent
from datapipe.shards.source_entry import Provenance, SyntheticEntry
from datapipe.steps.warnings import RunWarning
from datapipe.tokens.figures import TokenizerFigures

BY_SOURCE = "by source"
"""Annotates a field with an entry for each source, computed from that source alone."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)  # the commands that import them use few


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

    model_config = ConfigDict(serialize_by_alias=True)

    threshold: float | None
    tie: str | None
    documents: int | None
    kept_documents: int | None
    weight: int | None
    kept_weight: int | None
    share: float
    of: str
    earlier: str | None = Field(alias="from")


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


class Collected(Record):
    model_config = ConfigDict(serialize_by_alias=True)

    first: str = Field(alias="from")
    last: str = Field(alias="to")


class Origin(Record):
    license: str | None
    synthetic: bool | SyntheticEntry
    license_field: str | None
    homepage: str | None
    collected: Collected | None
    cost_usd: float | None = None

    @classmethod
    def of(cls, source: Provenance | Self, **more: Any) -> Self:
        """What a manifest records of a source, or another record of it."""
        dates = source.collected
        if isinstance(dates, tuple):
            dates = Collected.model_validate(dict(zip(("from", "to"), dates)))
        return cls.model_validate({**dict(source), "collected": dates, **more})


class TakenSource(Origin):
    """A source whose rows are those of another snapshot."""

    documents: int
    tokens: int
    sequences: int


class Kept(Record):
    """The kept documents of one licence. Tokens are None in a run without a tokenizer, drawn
    tokens in one without an end, and bytes where rows of another snapshot are among them."""

    documents: int | None
    bytes: int | None
    tokens: int | None
    drawn_tokens: int | None

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sum; None where one of the numbers is not known."""
        listed = list(parts)
        columns = {name: [getattr(part, name) for part in listed] for name in cls.model_fields}
        return cls(**{name: None if None in numbers else sum(numbers) for name, numbers in columns.items()})


Rounded = Annotated[float, AfterValidator(lambda number: round(number, 6))]


class Cost(Record):
    """Core-hours of committed tasks, and money where the mixture has prices."""

    core_hours: Rounded
    core_hours_by_step: dict[str, Rounded]
    core_hours_by_source: dict[str, Rounded]
    core_hours_shared: Rounded
    node_hours: Rounded | None
    sources_usd: Rounded | None
    compute_usd: Rounded | None
    cluster_usd: Rounded | None
    total_usd: Rounded | None


class ReportProvenance(Record):
    sources: dict[str, Origin] = {}
    licenses: dict[str, Kept] = {}
    synthetic: dict[str, Kept] = {}
    cost: Cost | None = None


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
_reads_done = BeforeValidator(lambda status: "finished" if status == "done" else status)  # as reports had it in 2026
Status = Annotated[Literal["finished", "failed", "stopped"], _reads_done]


class Summary(Record):
    """What a report has of the plan of a run, of the numbers of its tasks, and of its snapshot."""

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
    tasks: dict[str, TaskCounts]
    second_attempts: dict[str, SecondAttempts]
    peak_worker_bytes: int
    run: Command | None = None
    shards: Published | None
    provenance: ReportProvenance

    def with_(self, **changes: Any) -> Self:
        return self.model_copy(update=changes)
