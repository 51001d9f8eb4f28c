"""What a snapshot says of how its sources are drawn: shares, tokens, epochs, strata. For report.json and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from datapipe.plan.weighting import drawn_shares, epoch_tokens
from datapipe.shards.manifest import Snapshot


def drawing(snapshot: Snapshot) -> dict[str, Any]:
    """The mixture of a snapshot as plain data.

    sources.NAME.share         of all tokens drawn, caps apart
                .epoch_tokens  what one epoch draws, rows times their length
                .epochs        how many of them `tokens` take; None for an endless run
                .strata        documents, tokens, sequences and repeats of each; None where there are none
    """
    sizes = epoch_tokens(snapshot.sources, snapshot.shards, snapshot.sequence_length)
    shares, total = drawn_shares(snapshot), snapshot.total_tokens
    sources = {
        name: {
            "share": float(shares[name]),
            "tokens": None if total is None else int(shares[name] * total),
            "epoch_tokens": sizes[name],
            "epochs": None if total is None or not sizes[name] else round(float(shares[name] * total / sizes[name]), 6),
            "max_epochs": source.max_epochs,
            "strata": _strata(snapshot, name),
        }
        for name, source in snapshot.sources.items()
    }
    known = {"tokens": total, "phases": len(snapshot.phases), "exhausted": snapshot.exhausted, "window": snapshot.window_shards}
    return {**known, "sources": sources}


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
    total = mixture["tokens"]
    title = f"what is drawn: {f'{total:,} tokens' if total else 'without end'}"
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
