"""The books of a run: for every source, read = kept + Σ dropped by reason + quarantined, from the records of a plan. Pure.

Within a task the engine checked it already; here the steps are held against each other: what one kept, the next has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from datapipe.errors import DatapipeError
from datapipe.metrics import DocumentCounts, Packing, Work, total_counts, total_packing, total_work
from datapipe.plan.compile import Plan, Step
from datapipe.stage.tables import drops_for_others


@dataclass(slots=True)
class SourceCounts:
    """The totals of one source over the whole run, as far as it is committed.

    Attributes:
        books: `read` as the first step has it, `kept` as the last.
        tokens: over both splits.
        sequences: over both splits, of the first sequence length.
        packing: by sequence length.
        work: time per stage.
        is_complete: whether every step of the source is committed.
    """

    document_counts: DocumentCounts = field(default_factory=DocumentCounts)
    tokens: int = 0
    sequences: int = 0
    packing: dict[int, Packing] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    is_complete: bool = False


def source_counts(plan: Plan, source: str) -> SourceCounts:
    """The books of a source. Raises DatapipeError where two committed steps disagree."""
    steps = plan.of_kind("map", source)
    parts = [total_counts(record.metrics.document_counts for record in step.records) for step in steps]
    for step, before, after in zip(steps[1:], parts, parts[1:]):
        if step.is_committed and before.kept != after.read:
            raise DatapipeError(
                f"{step.id}: the books do not balance: the step before kept {before.kept} documents, this one read {after.read}"
            )
    total = DocumentCounts(read=parts[0].read, read_bytes=parts[0].read_bytes)
    for step, part in zip(steps, parts):
        total.dropped.update(part.dropped)
        total.counts.update(part.counts)
        total.quarantined += part.quarantined
        if step.is_committed:
            total.kept, total.kept_bytes = part.kept, part.kept_bytes
    tokenized, packed = plan.of_kind("tokenize", source), plan.of_kind("pack", source)
    found = SourceCounts(
        document_counts=total,
        tokens=sum(record.metrics.tokens for step in tokenized for record in step.records),
        sequences=sum(record.metrics.sequences for step in packed[:1] for record in step.records),
        packing=total_packing(record.metrics.packing for step in packed for record in step.records),
        work=total_work(record.metrics.work for step in plan.steps if step.source == source for record in step.records),
        is_complete=all(step.is_committed for step in (*steps, *tokenized, *packed)),
    )
    if found.is_complete:
        _check(source, found, tokenized, packed)
    return found


def _check(source: str, found: SourceCounts, tokenized: list[Step], packed: list[Step]) -> None:
    found.document_counts.check(source)
    encoded = sum(record.metrics.document_counts.read for step in tokenized for record in step.records)
    if encoded != found.document_counts.kept:
        raise DatapipeError(
            f"{source}: the books do not balance: {found.document_counts.kept} documents kept, {encoded} tokenized"
        )
    for step in packed:
        total = total_packing(record.metrics.packing for record in step.records)
        in_shards, dropped = sum(one.tokens for one in total.values()), sum(one.dropped_tokens for one in total.values())
        if in_shards + dropped != found.tokens:
            raise DatapipeError(
                f"{step.id}: the books do not balance: {found.tokens} tokens encoded, {in_shards} in shards, {dropped} dropped"
            )


def shared_work(plan: Plan) -> dict[str, Work]:
    """Time spent on what serves several sources: global stages, the tokenizer."""
    return total_work(record.metrics.work for step in plan.steps if not step.source for record in step.records)


@dataclass(frozen=True, kw_only=True, slots=True)
class Excess:
    """A global stage that dropped more of a source than its `max_dropped` allows.

    Attributes:
        on_excess: as the source has it.
        inspect: the option of `datapipe inspect` that shows what was dropped.
    """

    source: str
    stage: str
    dropped: int
    read: int
    allowed: float
    on_excess: str
    inspect: str

    @property
    def text(self) -> str:
        return (
            f"source '{self.source}': {self.stage} dropped {self.dropped:,} of {self.read:,} documents "
            f"({self.dropped / self.read:.2%}), and max_dropped allows {self.allowed:.2%}"
        )


def excesses(plan: Plan) -> list[Excess]:
    """What global stages dropped beyond `max_dropped`, of sources that were judged to the end."""
    found: list[Excess] = []
    for source, global_stages in plan.pipeline.global_stages.items():
        for stage, global_step, step in zip(
            global_stages, plan.pipeline.after[source], plan.of_kind("map", source)[1:], strict=False
        ):
            if stage.max_dropped is None or global_step is None or not step.is_committed:
                continue
            document_counts = total_counts(record.metrics.document_counts for record in step.records)
            dropped = sum(count for reason, count in document_counts.dropped.items() if reason.startswith(f"{global_step.id}:"))
            if _is_more(dropped, document_counts.read, stage.max_dropped):
                found.append(
                    Excess(
                        source=source,
                        stage=global_step.id,
                        dropped=dropped,
                        read=document_counts.read,
                        allowed=stage.max_dropped,
                        on_excess=stage.on_excess,
                        inspect=f"--{'clusters' if drops_for_others(stage.exchanges()) else 'dropped'} {global_step.id}",
                    )
                )
    return found


def over_quarantined(document_counts: Mapping[str, SourceCounts], share: float) -> str | None:
    """The first source that has more than `share` of its documents in quarantine, or None."""
    over = (
        name
        for name, found in document_counts.items()
        if _is_more(found.document_counts.quarantined, found.document_counts.read, share)
    )
    return next(over, None)


def _is_more(count: int, total: int, share: float) -> bool:
    """Whether `count` is more than this share of `total`, as people mean it: 29 of 100 are not, of 29%, though 0.29 * 100 is
    below 29."""
    return count > 0 and count / total > share
