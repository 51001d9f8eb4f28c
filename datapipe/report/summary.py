"""The report of a run, summed over its committed tasks. Pure but for `tokenizer_figures`, which reads a tokenizer."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil

from datapipe.cell_names import source_of
from datapipe.loader.order.batch_order import drawn_tokens, run_order
from datapipe.loader.order.sample_order import SampleOrder
from datapipe.metrics import total_by_name, total_counts
from datapipe.quantities import counted
from datapipe.records.outputs import OutputFile, TokenizerFile
from datapipe.report.grid import Grid, grids
from datapipe.report.records import (
    Entry,
    Interval,
    MixtureShares,
    Published,
    ReportProvenance,
    SecondAttempts,
    SourceShare,
    Stratum,
    TakenSource,
    TaskCounts,
    Threshold,
    Total,
)
from datapipe.report.report import Report
from datapipe.shards.manifest import ShardEntry, Snapshot
from datapipe.steps.counts import SourceCounts, shared_work, source_counts
from datapipe.steps.fold import fewest
from datapipe.steps.kind import Plan, Step
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.rank import filters_with_cuts
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.warnings import RunWarning
from datapipe.steps.weighting import drawn_shares, epoch_tokens
from datapipe.storage.root import Root
from datapipe.token_counts import Fertility
from datapipe.tokens.figures import TokenizerFigures, unused_tokens

MOST_EPOCHS = 4
"""Repetitions of a text that are worth about as much as new text; beyond them the value
of each falls (Muennighoff et al. 2023, arXiv 2305.16264)."""

SCHEDULE_INTERVALS = 40


def summarize(
    name: str,
    plan: Plan,
    sources: Iterable[str],
    snapshot: Snapshot | None = None,
    warnings: Sequence[RunWarning] = (),
    before: str | None = None,
) -> Report:
    """The report of a run that is done; entries that its plan does not give are empty. `snapshot` is None before it is
    published, `warnings` are those of the run, and `before` is the fingerprint of the snapshot before this one."""
    counts_by_source = {source: source_counts(plan, source) for source in sources}
    entries = {source: _entry(counts) for source, counts in counts_by_source.items()}
    packed = snapshot if snapshot is not None and snapshot.has_tokens else None
    order = run_order(packed) if packed is not None and packed.shards else None
    mixture = None if packed is None or order is None else mixture_shares(packed, order)
    found = {} if packed is None or order is None else grids(packed, order)
    return Report(
        name=name,
        status="finished",
        problem=None,
        total=Total(
            **dict(_entry(_total(list(counts_by_source.values()), plan))),
            task_seconds=sum(step.totals.seconds for step in plan.steps),
        ),
        sources=entries,
        taken={} if packed is None else taken_sources(packed, counts_by_source),
        mixture=mixture,
        grids=found,
        warnings=(*warnings, *(epoch_warnings(mixture, found) if mixture else ())),
        thresholds={
            source: {name: _threshold(bound) for name, bound in filters.items()}
            for source, filters in filters_with_cuts(plan).items()
        },
        tasks={step.id: _tasks(step) for step in plan.steps},
        second_attempts={
            step.id: SecondAttempts(tasks=each.total(), won=each["won"])
            for step in plan.steps
            if (each := step.totals.second_attempts)
        },
        peak_worker_bytes=max((step.totals.peak_bytes for step in plan.steps), default=0),
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
    totals, is_exchange = step.totals, step.work.is_exchange
    return TaskCounts(
        planned=None if step.tasks is None else len(step.tasks),
        committed=len(step.records),
        kind=step.kind,
        source=step.source or None,
        label=step.label,
        seconds=round(totals.seconds, 6),
        peak_bytes=totals.peak_bytes,
        rows=totals.rows.total() if is_exchange else None,
        bytes=totals.bytes if is_exchange else None,
    )


def tokenizer_figures(root: Root, plan: Plan) -> TokenizerFigures | None:
    """The figures of the tokenizer; None before there is one."""
    from datapipe.exchange.tables import committed_bytes
    from datapipe.tokens.fertility import merged_ids

    tokenizer = next((output for step in plan.of_kind("train") for output in step.outputs("tokenizer", TokenizerFile)), None)
    if tokenizer is None:
        return None
    steps, unused = plan.of_kind("tokenize"), None
    sources: dict[str, Fertility] = {}
    for step in steps:
        sources.setdefault(step.source, Fertility()).add(step.own(TokenizeMetrics).fertility)
    if all(step.is_committed for step in steps):
        parts = (committed_bytes(root, output) for step in steps for output in fewest(plan, step, "used_ids", OutputFile))
        unused = unused_tokens(committed_bytes(root, tokenizer), merged_ids(tokenizer.vocab_size, parts))
    about = {name: getattr(tokenizer, name) for name in ("vocab_size", "eos_token", "bos_token")}
    return TokenizerFigures.of(sources, unused=unused, **about)


def taken_sources(snapshot: Snapshot, own: Collection[str]) -> dict[str, TakenSource]:
    """The sources whose rows are those of another snapshot: those of a manifest but the `own` ones, which have input files."""
    return {
        name: TakenSource.of(source, **_sums(shard for shard in snapshot.shards if shard.source == name))
        for name, source in snapshot.sources.items()
        if name not in own
    }


def _sums(shards: Iterable[ShardEntry]) -> dict[str, int]:
    listed, names = list(shards), ("documents", "tokens", "sequences")
    return {name: sum(getattr(shard, name) for shard in listed) for name in names}


def mixture_shares(snapshot: Snapshot, order: SampleOrder) -> MixtureShares:
    """The realised mixture, computed with the loader's own arithmetic. Epoch caps are applied."""
    sizes = epoch_tokens(snapshot.sources, snapshot.shards, snapshot.sequence_length)
    shares, drawn = drawn_shares(snapshot), drawn_tokens(snapshot, order)
    total = None if drawn is None else sum(drawn.values())
    sources = {
        name: SourceShare(
            share=float(shares[name]) if drawn is None or not total else drawn[name] / total,
            tokens=None if drawn is None else drawn[name],
            epoch_tokens=sizes[name],
            epochs=None if drawn is None or not sizes[name] else round(drawn[name] / sizes[name], 6),
            max_epochs=source.max_epochs,
            strata=_strata(snapshot, name),
        )
        for name, source in snapshot.sources.items()
    }
    return MixtureShares(
        tokens=total,
        asked_tokens=snapshot.total_tokens,
        phases=len(snapshot.phases),
        exhausted=snapshot.exhausted,
        window=snapshot.window_shards,
        sources=sources,
        schedule=_schedule(snapshot, order),
    )


def _schedule(snapshot: Snapshot, order: SampleOrder) -> tuple[Interval, ...]:
    """What is drawn in each of `SCHEDULE_INTERVALS` equal parts of a run, cut where phases end, too."""
    if not order.num_samples:
        return ()
    length, num_samples = snapshot.sequence_length, order.num_samples
    ends = [-(-phase.until_tokens // length) for phase in snapshot.phases if phase.until_tokens is not None]
    parts = (num_samples * number // SCHEDULE_INTERVALS for number in range(SCHEDULE_INTERVALS + 1))
    ends = ends if len(ends) <= SCHEDULE_INTERVALS else []  # the stairs of a linear schedule are finer than the parts
    borders = sorted({*parts, *(end for end in ends if end < num_samples)})
    counts = [_drawn_rows(order, border) for border in borders]
    return tuple(
        Interval(
            start_tokens=start * length,
            stop_tokens=stop * length,
            tokens={name: rows * length for name, rows in (after - before).items()},
        )
        for start, stop, before, after in zip(borders, borders[1:], counts, counts[1:])
    )


def _drawn_rows(order: SampleOrder, stop: int) -> Counter[str]:
    """Rows of each source before sample `stop`. To the loader, each cell of a source is one."""
    rows = Counter[str]()
    for name, count in zip(order.mixture.sources, order.mixture.counts(stop)):
        rows[source_of(name)] += count
    return rows


def _strata(snapshot: Snapshot, source: str) -> tuple[Stratum, ...] | None:
    strata = snapshot.sources[source].strata
    if strata is None:
        return None
    shards = snapshot.shards_of(source, "train")
    return tuple(
        Stratum(**_sums(shard for shard in shards if shard.stratum == number), repeat=repeat)
        for number, repeat in enumerate(strata.repeats)
    )


def epoch_warnings(mixture: MixtureShares, grids: Mapping[str, Grid]) -> list[RunWarning]:
    """A warning about each source of which some text is drawn more than `MOST_EPOCHS` times; none for an endless run."""
    warnings: list[RunWarning] = []
    for name, source in mixture.sources.items():
        epochs, repeats, what, more = source.epochs or 0.0, source.most_repeats, f"source '{name}'", ""
        if repeats > 1:
            what += f": a stratum that an epoch repeats {repeats} times"
        elif name in grids:
            often = {cell: each for cell, each in grids[name].cells.items() if each.times > MOST_EPOCHS}
            if not often:
                continue
            cell, most = max(often.items(), key=lambda item: item[1].times)
            epochs, repeats = most.epochs or 0.0, ceil(most.repeat)
            what += f": the cell {cell}"
            more = (
                f", and {counted(len(often) - 1, 'other cell')} more than {MOST_EPOCHS} times" if often.keys() - {cell} else ""
            )
        if epochs * repeats > MOST_EPOCHS:
            text = (
                f"{what} is drawn {epochs * repeats:,.1f} times over the run{more}. Text that is repeated more than "
                f"{MOST_EPOCHS} times is worth less and less (arXiv 2305.16264). Add text to it, lower its weight, or set its "
                f"max_epochs to {MOST_EPOCHS / repeats:.3g}."
            )
            details = {"epochs": epochs, "repeats": repeats}
            warnings.append(RunWarning(kind="many_epochs", source=name, text=text, details=details))
    return warnings
