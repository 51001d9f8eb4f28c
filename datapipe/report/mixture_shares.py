"""The realised mixture of a snapshot: shares, tokens, epochs and strata of its sources, for report.json."""

from collections.abc import Collection, Iterable

from datapipe.loader.order.batch_order import drawn_tokens, run_order
from datapipe.loader.order.sample_order import SampleOrder
from datapipe.report.origins import TakenSource
from datapipe.report.report import Interval, MixtureShares, SourceShare, Stratum
from datapipe.shards.manifest import ShardEntry, Snapshot
from datapipe.steps.warnings import RunWarning
from datapipe.steps.weighting import drawn_shares, epoch_tokens

MOST_EPOCHS = 4
"""Repetitions of a text that are worth about as much as new text; beyond them the value
of each falls (Muennighoff et al. 2023, arXiv 2305.16264)."""

SCHEDULE_INTERVALS = 40


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


def mixture_shares(snapshot: Snapshot) -> MixtureShares:
    """The realised mixture, computed with the loader's own arithmetic. Epoch caps are applied."""
    order = run_order(snapshot)
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
    counts = [order.mixture.counts(border) for border in borders]
    return tuple(
        Interval(
            start_tokens=start * length,
            stop_tokens=stop * length,
            tokens={name: (b - a) * length for name, a, b in zip(order.mixture.sources, before, after) if b > a},
        )
        for start, stop, before, after in zip(borders, borders[1:], counts, counts[1:])
    )


def _strata(snapshot: Snapshot, source: str) -> tuple[Stratum, ...] | None:
    strata = snapshot.sources[source].strata
    if strata is None:
        return None
    shards = snapshot.shards_of(source, "train")
    return tuple(
        Stratum(**_sums(shard for shard in shards if shard.stratum == number), repeat=repeat)
        for number, repeat in enumerate(strata.repeats)
    )


def epoch_warnings(mixture: MixtureShares) -> list[RunWarning]:
    """A warning about each source of which some text is drawn more than `MOST_EPOCHS` times; none for an endless run."""
    warnings: list[RunWarning] = []
    for name, source in mixture.sources.items():
        epochs, repeats = source.epochs, source.most_repeats
        if epochs is not None and epochs * repeats > MOST_EPOCHS:
            what = f"source '{name}'" if repeats == 1 else f"source '{name}': a stratum that an epoch repeats {repeats} times"
            text = (
                f"{what} is drawn {epochs * repeats:,.1f} times over the run. Text that is repeated more than {MOST_EPOCHS} "
                f"times is worth less and less (arXiv 2305.16264). Add text to it, lower its weight, or set its max_epochs to "
                f"{MOST_EPOCHS / repeats:g}."
            )
            details = {"epochs": epochs, "repeats": repeats}
            warnings.append(RunWarning(kind="many_epochs", source=name, text=text, details=details))
    return warnings
