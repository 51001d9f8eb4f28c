"""The report of a run, summed over its committed tasks. Pure but for `tokenizer_figures`, which reads a tokenizer."""

from collections.abc import Iterable, Sequence

from datapipe.metrics import total_by_name, total_counts
from datapipe.records.outputs import TokenizerFile
from datapipe.report.mixture_shares import epoch_warnings, mixture_shares, taken_sources
from datapipe.report.origins import ReportProvenance
from datapipe.report.report import Entry, Published, Report, SecondAttempts, TaskCounts, Threshold, Total
from datapipe.shards.manifest import Snapshot
from datapipe.steps.counts import SourceCounts, shared_work, source_counts
from datapipe.steps.kind import Plan, Step
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.rank import filters_with_cuts
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.warnings import RunWarning
from datapipe.storage.root import Root
from datapipe.token_counts import Fertility, TokenizerFigures


def summarize(
    name: str,
    plan: Plan,
    sources: Iterable[str],
    snapshot: Snapshot | None = None,
    warnings: Sequence[RunWarning] = (),
    before: str | None = None,
) -> Report:
    """The report of a run that is done; entries that its plan does not give are empty. `snapshot`
    is None before it is published, `warnings` are those of the run, and `before` is the fingerprint
    of the snapshot before this one."""
    counts_by_source = {source: source_counts(plan, source) for source in sources}
    records = [record for step in plan.steps for record in step.records]
    attempts = {step.id: [*filter(None, (record.metrics.second_attempt for record in step.records))] for step in plan.steps}
    entries = {source: _entry(counts) for source, counts in counts_by_source.items()}
    packed = snapshot if snapshot is not None and snapshot.has_tokens else None
    mixture = mixture_shares(packed) if packed is not None and packed.shards else None
    return Report(
        name=name,
        status="done",
        problem=None,
        total=Total(
            **dict(_entry(_total(list(counts_by_source.values()), plan))),
            task_seconds=sum(record.metrics.seconds for record in records),
        ),
        sources=entries,
        taken={} if packed is None else taken_sources(packed, counts_by_source),
        mixture=mixture,
        warnings=(*warnings, *(epoch_warnings(mixture) if mixture else ())),
        thresholds={
            source: {name: _threshold(bound) for name, bound in filters.items()}
            for source, filters in filters_with_cuts(plan).items()
        },
        tasks={step.id: _tasks(step) for step in plan.steps},
        second_attempts={
            name: SecondAttempts(tasks=len(each), won=each.count("won")) for name, each in attempts.items() if each
        },
        peak_worker_bytes=max((record.metrics.peak_bytes for record in records), default=0),
        shards=None if snapshot is None else Published.of(snapshot, before),
        provenance=ReportProvenance(),
    )


def _threshold(bound: BoundStage) -> Threshold:
    cut, share = bound.cut, bound.share
    assert cut is not None
    assert share is not None
    of_share = {"share": float(share.share), "of": share.of, "from": share.threshold_from or None}
    return Threshold.model_validate({**cut.to_json(), **of_share})


def _total(counts: Sequence[SourceCounts], plan: Plan) -> SourceCounts:
    return SourceCounts(
        document_counts=total_counts(source.document_counts for source in counts),
        tokens=sum(source.tokens for source in counts),
        sequences=sum(source.sequences for source in counts),
        packing=total_by_name(source.packing for source in counts),
        work=total_by_name([*(source.work for source in counts), shared_work(plan)]),
    )


def _entry(counts: SourceCounts) -> Entry:
    of_documents = counts.document_counts
    documents = {
        "read": of_documents.read,
        "kept": of_documents.kept,
        "dropped": dict(of_documents.dropped.most_common()),
        "quarantined": of_documents.quarantined,
        "quarantine_reasons": dict(of_documents.quarantine_reasons.most_common()),
    }
    entry = {
        "documents": documents,
        "bytes": of_documents.read_bytes,
        "kept_bytes": of_documents.kept_bytes,
        "tokens": counts.tokens,
        "sequences": counts.sequences,
        "packing": counts.packing,
        "counts": dict(sorted(of_documents.counts.items())),
        "steps": counts.work,
    }
    return Entry.model_validate(entry, from_attributes=True)


def _tasks(step: Step) -> TaskCounts:
    outputs = [output for record in step.records for files in record.outputs.values() for output in files]
    is_exchange = step.work.is_exchange
    return TaskCounts(
        planned=None if step.tasks is None else len(step.tasks),
        committed=len(step.records),
        kind=step.kind,
        source=step.source or None,
        label=step.label,
        seconds=round(sum(record.metrics.seconds for record in step.records), 6),
        peak_bytes=max((record.metrics.peak_bytes for record in step.records), default=0),
        rows=sum(output.rows for output in outputs) if is_exchange else None,
        bytes=sum(output.bytes for output in outputs) if is_exchange else None,
    )


def tokenizer_figures(root: Root, plan: Plan) -> TokenizerFigures | None:
    """The figures of the tokenizer; None before there is one."""
    from datapipe.exchange.tables import committed_bytes
    from datapipe.tokens.fertility import merged_ids, unused_tokens

    tokenizer = next((output for step in plan.of_kind("train") for output in step.outputs("tokenizer", TokenizerFile)), None)
    if tokenizer is None:
        return None
    steps, unused = plan.of_kind("tokenize"), None
    sources: dict[str, Fertility] = {}
    for step in steps:
        fertility = sources.setdefault(step.source, Fertility())
        for own in step.numbers(TokenizeMetrics):
            fertility.add(own.fertility)
    if all(step.is_committed for step in steps):
        parts = (committed_bytes(root, output) for step in steps for output in step.outputs("used_ids"))
        unused = unused_tokens(committed_bytes(root, tokenizer), merged_ids(tokenizer.vocab_size, parts))
    about = {name: getattr(tokenizer, name) for name in ("vocab_size", "eos_token", "bos_token")}
    return TokenizerFigures.of(sources, unused=unused, **about)
