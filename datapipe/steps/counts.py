"""Document counts of a run, and losses of its sources. For every source, read = kept + Σ dropped by reason + quarantined. Pure.

Each task checks its own counts. This module checks the steps of a plan: every step reads the
documents that the step before it kept.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Self

from datapipe.dataclass import dataclass, field
from datapipe.errors import DatapipeError
from datapipe.metrics import DocumentCounts, Packing, UnreadableFile, Work, by_file, total_by_name
from datapipe.quantities import counted
from datapipe.records.outputs import Record
from datapipe.stage.base import BELOW_SHARE
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import drops_for_others
from datapipe.steps.budget import LimitMetrics, LimitTask
from datapipe.steps.kind import Plan, Step
from datapipe.steps.pack import PackMetrics
from datapipe.steps.pipeline import BoundStage, GlobalStep
from datapipe.steps.read_batches import MapMetrics
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.write import WriteMetrics

MOST_LOST = 0.9  # Share of the documents that reach a stage above which a run warns of its loss
_NAMED_REASONS = 3
_NAMED_FILES = 5


@dataclass(slots=True)
class SourceCounts:
    """Totals of one source over its committed tasks."""

    # `read` of the first step, `kept` of the last one, all others summed
    document_counts: DocumentCounts = field(default_factory=DocumentCounts)
    tokens: int = 0  # of both splits
    empty: int = 0  # kept documents without text; known once they are tokenized or written
    sequences: int = 0  # of both splits, of the first sequence length
    packing: dict[int, Packing] = field(default_factory=dict)  # by sequence length
    work: dict[str, Work] = field(default_factory=dict)  # time by name of the work
    unreadable_files: tuple[UnreadableFile, ...] = ()  # by path, each with its first damage
    is_complete: bool = False  # whether every step of the source is committed


def source_counts(plan: Plan, source: str) -> SourceCounts:
    """The counts of a source. Raises DatapipeError when two committed steps disagree."""
    steps = steps_of_documents(plan, source)
    parts = [step.totals.documents for step in steps]
    for step, before, after in zip(steps[1:], parts, parts[1:]):
        if step.is_committed and before.kept != after.read and step.kind != LimitTask.kind:
            raise _mismatch(step.id, f"the previous step kept {before.kept} documents, this step read {after.read}")
    total = DocumentCounts(read=parts[0].read, read_bytes=parts[0].read_bytes)
    for step, part in zip(steps, parts):
        total.dropped.update(part.dropped)
        total.counts.update(part.counts)
        total.quarantined += part.quarantined
        total.quarantine_reasons.update(part.quarantine_reasons)
        if step.kind == LimitTask.kind:  # of the generations that have a limit
            total.kept -= part.read - part.kept
            total.kept_bytes -= part.read_bytes - part.kept_bytes
        elif step.is_committed or step is steps[0]:
            total.kept, total.kept_bytes = part.kept, part.kept_bytes
    tokenized, limited, packed, written = (plan.of_kind(kind, source) for kind in ("tokenize", "limit", "pack", "write"))
    of_tokens = [step.own(TokenizeMetrics) for step in tokenized]
    of_files = [step.own(WriteMetrics) for step in written]
    counts = SourceCounts(
        document_counts=total,
        tokens=sum(own.tokens for own in of_tokens) - sum(step.own(LimitMetrics).tokens for step in limited),
        empty=sum(own.empty for own in (*of_tokens, *of_files)),
        sequences=sum(step.own(PackMetrics).sequences for step in packed[:1]),
        packing=total_by_name(step.own(PackMetrics).packing for step in packed),
        work=total_by_name(step.totals.work for step in plan.steps if step.source == source),
        unreadable_files=by_file(steps[0].own(MapMetrics).unreadable_files),
        is_complete=all(step.is_committed for step in (*steps, *packed, *written)),
    )
    if counts.is_complete:
        _check(source, counts, written, packed)
    return counts


def steps_of_documents(plan: Plan, source: str) -> list[Step]:
    """The steps that may drop or quarantine documents of a source, in order."""
    return [step for kind in ("map", "tokenize", "limit") for step in plan.of_kind(kind, source)]


def _check(source: str, counts: SourceCounts, written: list[Step], packed: list[Step]) -> None:
    counts.document_counts.check(source)
    num_kept = counts.document_counts.kept
    for step in written:
        num_read = step.totals.documents.read
        if num_read != num_kept:
            raise _mismatch(step.id, f"{num_kept} documents were kept, this step read {num_read}")
    for step in packed:
        packing = step.own(PackMetrics).packing.values()
        in_shards, dropped = sum(part.tokens for part in packing), sum(part.dropped_tokens for part in packing)
        if in_shards + dropped != counts.tokens:
            raise _mismatch(step.id, f"{counts.tokens} tokens were encoded, {in_shards} are in shards, {dropped} were dropped")


def _mismatch(where: str, counts: str) -> DatapipeError:
    return DatapipeError(f"{where}: the counts do not add up: {counts}. This is a defect of datapipe or of a stage of yours.")


def shared_work(plan: Plan) -> dict[str, Work]:
    """Time of the work that serves several sources: global stages and the tokenizer."""
    return total_by_name(step.totals.work for step in plan.steps if not step.source)


def fields_without_value(step: Step) -> list[str]:
    """The kept fields that are null in every document that a source's first step read, where it read any."""
    counts = step.totals.documents
    has_documents = step.is_committed and counts.read > counts.quarantined
    return [name for name, count in step.own(MapMetrics).field_values.items() if count == 0] if has_documents else []


@dataclass(frozen=True, slots=True)
class ExcessDrops:
    """A global stage that dropped a larger share of a source than its `max_dropped`."""

    source: str
    stage: str
    # dropped, read: documents
    dropped: int
    read: int
    allowed: float  # `max_dropped`, a share
    on_excess: str  # "warn" or "fail"
    inspect: str  # the option of `datapipe inspect` that shows the dropped documents

    @property
    def text(self) -> str:
        return (
            f"source '{self.source}': {self.stage} dropped {self.dropped:,} of {counted(self.read, 'document')} "
            f"({self.dropped / self.read:.2%}); max_dropped allows {self.allowed:.2%}"
        )


def excess_drops(plan: Plan) -> list[ExcessDrops]:
    """The global stages that dropped more than their `max_dropped`. Only sources with all decisions committed are checked."""
    excesses: list[ExcessDrops] = []
    for source, after in plan.pipeline.after.items():
        stages = iter(plan.pipeline.global_stages[source])
        for global_step, step in zip(after, plan.of_kind("map", source)[1:], strict=False):
            if not isinstance(global_step, GlobalStep):
                continue
            stage, name = next(stages), global_step.id
            if stage.max_dropped is None or not step.is_committed:
                continue
            counts = step.totals.documents
            dropped = sum(count for reason, count in counts.dropped.items() if reason.startswith(f"{name}:"))
            if _is_more(dropped, counts.read, stage.max_dropped):
                inspect = f"--{'clusters' if drops_for_others(stage.exchanges()) else 'dropped'} {name}"
                limit = stage.max_dropped, stage.on_excess
                excesses.append(ExcessDrops(source, name, dropped, counts.read, *limit, inspect))
    return excesses


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The drops of one stage in a source."""

    stage: str
    dropped: Counter[str]  # documents by reason, "stage:rule"
    reached: int  # documents that the stages before it left
    # whether an option asks for a loss as large as this: a share to keep, or `max_dropped`; or the documents are in others
    is_asked: bool
    is_global: bool  # whether the stage compares documents with others, as deduplication does

    @property
    def share(self) -> float:
        return self.dropped.total() / self.reached


def losses(counts: DocumentCounts, stages: Sequence[BoundStage]) -> Iterator[Loss]:
    left, names = counts.read, sorted((bound.name for bound in stages), key=len, reverse=True)
    by_stage: dict[str, Counter[str]] = {}
    for reason, number in counts.dropped.items():
        stage = next((name for name in names if reason == name or reason.startswith(f"{name}:")), "")
        by_stage.setdefault(stage, Counter())[reason] += number
    for bound in stages:
        dropped = by_stage.pop(bound.name, None)
        if dropped is not None and dropped.total() and left:
            stage, num_dropped = bound.stage, dropped.total()
            if bound.share is not None:
                is_asked = (num_dropped - dropped[f"{bound.name}:{BELOW_SHARE}"]) / left <= MOST_LOST
            else:
                is_asked = bound.asked_share < 1 or (
                    isinstance(stage, Global) and (stage.makes_contents or num_dropped / left <= (stage.max_dropped or 0))
                )
            yield Loss(stage=bound.name, dropped=dropped, reached=left, is_asked=is_asked, is_global=isinstance(stage, Global))
            left -= num_dropped


def asked_share(stages: Sequence[BoundStage]) -> Fraction:
    """The share of a source that its filters are asked to keep; 1 where none is asked for a share."""
    return prod((bound.asked_share for bound in stages), start=Fraction(1))


def why_nothing_is_left(counts: SourceCounts, files: Collection[str]) -> str:
    """Why no document of a source is left, as a clause: "filter.length:too_few_words dropped 50 of
    50 documents". `files`: the paths of its input files."""
    documents = counts.document_counts
    if not documents.read:
        more = f" and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else ""
        return f"no document is in its input: {next(iter(files), '')}{more}"
    read = f"of {counted(documents.read, 'document')}"
    reasons = [f"{name} dropped {number:,}" for name, number in documents.dropped.most_common(_NAMED_REASONS)]
    if documents.quarantined:
        reasons.append(f"{documents.quarantined:,} are in quarantine ({quarantine_text(documents)})")
    return f"{read}, {', '.join(reasons)}"


def quarantine_text(document_counts: DocumentCounts) -> str:
    """Why documents are in quarantine, the most frequent reasons first: "read: not a JSON object (50), …"; empty for none."""
    named = document_counts.quarantine_reasons.most_common(_NAMED_REASONS)
    more = len(document_counts.quarantine_reasons) - len(named)
    texts = [f"{reason} ({count:,})" for reason, count in named]
    return "; ".join([*texts, *([f"and {counted(more, 'more reason')}"] if more else [])])


def unreadable_text(source: str, files: Sequence[UnreadableFile]) -> str:
    """A sentence that names the unreadable files of a source, at most the first few."""
    named = [f"{file.path} from {file.position:,} on: {file.error.rstrip('.')}" for file in files[:_NAMED_FILES]]
    more = f"; and {len(files) - len(named):,} more" if len(files) > len(named) else ""
    return f"source '{source}': {counted(len(files), 'input file')} cannot be read whole: {'; '.join(named)}{more}"


@dataclass(slots=True)
class FirstTasks:
    """The records of the first tasks of a source, as long as all documents in them are quarantined."""

    step: Step
    records: list[Record] = field(default_factory=list)
    _read: int = 0
    _damages: int = 0
    _has_documents: bool = False

    @classmethod
    def of(cls, step: Step) -> Self:
        """Those of a planned step. Its sums tell whether its records are looked at, each of which is decoded for that."""
        counts = step.totals.documents
        first = cls(step, _has_documents=counts.read != counts.quarantined)
        for record in () if first._has_documents else step.records:
            first.add(record)
        return first

    def add(self, record: Record) -> None:
        if self._has_documents:
            return
        metrics = record.metrics
        counts = metrics.document_counts
        self._read += counts.read
        self._damages += len(metrics.of(MapMetrics).unreadable_files)
        self._has_documents = counts.read != counts.quarantined
        self.records = [] if self._has_documents else self.records
        self.records += [] if self._has_documents else [record]

    @property
    def num_left(self) -> int:
        """Tasks without a record; only as long as nothing but quarantined documents was read."""
        return len(self.step.tasks or ()) - len(self.records)

    def is_hopeless(self, max_share: float) -> bool:
        """Whether all records that the tasks read are quarantined, in so many of the source's tasks that it is over the limit,
        `max_share`, even if all others are clean. Tasks read about as much text as each other. Damaged files, of which each is
        one record in quarantine, have a separate limit."""
        is_all = self._damages < self._read and not self._has_documents
        return is_all and _is_more(len(self.records), len(self.step.tasks or ()), max_share)


def source_over_quarantine_limit(counts_by_source: Mapping[str, SourceCounts], max_share: float) -> str | None:
    """The first source with more than this share of its documents in quarantine, or None."""
    for name, counts in counts_by_source.items():
        if _is_more(counts.document_counts.quarantined, counts.document_counts.read, max_share):
            return name
    return None


def _is_more(count: int, total: int, share: float) -> bool:
    """Whether `count` is more than this share of `total`. Divides instead of multiplying: `0.29 * 100 < 29` in floats."""
    return count > 0 and count / total > share
