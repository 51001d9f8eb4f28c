"""What a snapshot says of how its sources are drawn: shares, tokens, epochs, strata. For report.json and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from datapipe.loader.order.batch_order import begin_run
from datapipe.loader.order.lineage import Skips
from datapipe.loader.order.recipe import recipe_of
from datapipe.loader.order.sample_order import Inventory
from datapipe.plan.weighting import drawn_shares, epoch_tokens
from datapipe.shards.manifest import Snapshot


def drawing(snapshot: Snapshot) -> dict[str, Any]:
    """The mixture of a snapshot as plain data, by the loader's own arithmetic: caps and what they do to the others included.

    tokens                     drawn in all; None for an endless run
    asked_tokens               what the mixture file asks for; the run ends before where sources reach their caps
    sources.NAME.share         of all tokens drawn
                .epoch_tokens  what one epoch draws, rows times their length
                .epochs        how many of them are drawn; None for an endless run
                .strata        documents, tokens, sequences and repeats of each; None where there are none
    """
    sizes = epoch_tokens(snapshot.sources, snapshot.shards, snapshot.sequence_length)
    shares, drawn = drawn_shares(snapshot), _drawn_tokens(snapshot)
    total = None if drawn is None else sum(drawn.values())
    sources = {
        name: {
            "share": float(shares[name]) if drawn is None or not total else drawn[name] / total,
            "tokens": None if drawn is None else drawn[name],
            "epoch_tokens": sizes[name],
            "epochs": None if drawn is None or not sizes[name] else round(drawn[name] / sizes[name], 6),
            "max_epochs": source.max_epochs,
            "strata": _strata(snapshot, name),
        }
        for name, source in snapshot.sources.items()
    }
    known = {
        "tokens": total,
        "asked_tokens": snapshot.total_tokens,
        "phases": len(snapshot.phases),
        "exhausted": snapshot.exhausted,
        "window": snapshot.window_shards,
    }
    return {**known, "sources": sources}


def _drawn_tokens(snapshot: Snapshot) -> dict[str, int] | None:
    """Tokens that the loader draws of each source until its end; None where it has none."""
    inventory = Inventory(snapshot, "train", snapshot.seed, snapshot.window_shards)
    order = begin_run(inventory, recipe_of(snapshot), 1, Skips()).sample_order
    if order.num_samples is None:
        return None
    counts = dict(zip(order.mixture.sources, order.mixture.counts(order.num_samples)))
    return {name: counts[name] * snapshot.sequence_length for name in snapshot.sources}


def _strata(snapshot: Snapshot, source: str) -> list[dict[str, int]] | None:
    strata = snapshot.sources[source].strata
    if strata is None:
        return None
    shards = snapshot.shards_of(source, "train")
    return [
        {
            "documents": sum(shard.documents for shard in shards if shard.stratum == number),
            "tokens": sum(shard.tokens for shard in shards if shard.stratum == number),
            "sequences": sum(shard.sequences for shard in shards if shard.stratum == number),
            "repeat": repeat,
        }
        for number, repeat in enumerate(strata.repeats)
    ]


def drawing_table(mixture: Mapping[str, Any]) -> Table:
    """A table of `drawing`."""
    total, asked = mixture["tokens"], mixture["asked_tokens"]
    title = "what is drawn: " + ("without end" if total is None else f"{total:,} tokens")
    if total is not None and (asked is None or total < asked - asked // 1000):
        title += ", where sources reach their max_epochs" + ("" if asked is None else f", of {asked:,} asked for")
    if mixture["phases"] > 1:
        title += f", in {mixture['phases']} phases"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("source", "share", "tokens", "tokens an epoch", "epochs", "at most"):
        table.add_column(name, justify="left" if name == "source" else "right")
    for name, one in mixture["sources"].items():
        cells = [
            f"{one['share']:.2%}",
            "endless" if total is None else f"{one['tokens']:,}",
            f"{one['epoch_tokens']:,}",
            "endless" if total is None else "" if one["epochs"] is None else f"{one['epochs']:,.2f}",
            "" if one["max_epochs"] is None else f"{one['max_epochs']:g}",
        ]
        table.add_row(name, *cells)
        for number, stratum in enumerate(one["strata"] or ()):
            counts = f"{stratum['documents']:,} documents, {stratum['repeat']} times an epoch"
            table.add_row(f"  stratum {number}: {counts}", "", "", f"{stratum['tokens']:,}", "", "", style="dim")
    return table
