"""`datapipe plan`: the tree of steps and the mixture table."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import ceil
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from datapipe.config.mixture import Mixture
from datapipe.config.sources.split import SplitSpec
from datapipe.credentials import masked
from datapipe.dataclass import asdict
from datapipe.machine.terminal import harmless
from datapipe.quantities import counted, rough_duration, size, spans
from datapipe.report.cells import Table
from datapipe.report.grid import cells
from datapipe.report.layout import NumberTable, harmless_text
from datapipe.report.report import read_report
from datapipe.stage.global_stage import Global
from datapipe.steps.counts import SourceCounts, source_counts
from datapipe.steps.estimate import Estimate
from datapipe.steps.grid import names_of
from datapipe.steps.kind import Plan, Step
from datapipe.steps.request import Request, TakenSource
from datapipe.steps.tokenize import choice_of
from datapipe.steps.weighting import BYTES_PER_TOKEN, shares_of
from datapipe.storage.root import Root

_MOST_PATTERNS = 12

Reasons = Mapping[str, Sequence[str]]
"""Why each step would run, by its id, from `engine.history.why`."""


def plan_view(mixture: Mixture, request: Request, plan: Plan, reasons: Reasons | None = None) -> RenderableType:
    tree = _tree(mixture, request, plan, reasons or {})
    return tree if mixture.tokenizer.is_none else Group(tree, "", _mixture_table(request, plan))


def estimate_text(expected: Estimate, free: int | None, num_cores: int) -> str:
    """What the run would write and how long it would take; empty where nothing would run.
    `free` are bytes that the disk of the output has left; None where that is not known."""
    if not expected.bytes and not expected.core_seconds:
        return ""
    room = "" if free is None else f" ({size(free)} free)"
    basis = ", if it keeps all documents" if expected.is_all_kept else ""
    took = f"about {rough_duration(expected.core_seconds / num_cores + expected.start_seconds)} on {counted(num_cores, 'core')}"
    without = f", without the time of {', '.join(expected.unknown)}" if expected.unknown else ""
    return f"would write about {size(expected.bytes)}{room} and take {took}{basis}{without}"


def plan_json(mixture: Mixture, request: Request, plan: Plan, reasons: Reasons, expected: Estimate) -> dict[str, Any]:
    """The plan as plain data. What is not known before steps are committed is None, as are shares in a run without tokens."""
    return {
        "name": mixture.name,
        "output": masked(mixture.output),
        "steps": [
            {
                "step": step.id,
                "kind": step.kind,
                "source": step.source or None,
                "label": step.label,
                "is_committed": step.is_committed,
                "tasks": None if step.tasks is None else len(step.tasks),
                "committed_tasks": len(step.records),
                "reasons": [masked(reason) for reason in reasons.get(step.id, ())],
            }
            for step in plan.steps
        ],
        "sources": _sources_json(request, plan),
        "estimate": asdict(expected),
        "warnings": [warning.to_json() for warning in request.warnings],
    }


def _sources_json(request: Request, plan: Plan) -> dict[str, Any]:
    mixture = request.mixture
    counts_by_source = {name: source_counts(plan, name) for name in mixture.sources}
    is_text, total = mixture.tokenizer.is_none, mixture.mixture.tokens
    shares, basis = ({}, "") if is_text else _shares(mixture, request, counts_by_source)
    taken = {
        name: {
            "snapshot": source.snapshot.fingerprint,
            "tokens": _taken_tokens(source),
            "share": float(shares[name]),
            "tokens_to_draw": None if total is None else int(shares[name] * total),
            "max_epochs": mixture.max_epochs_of(name),
        }
        for name, source in request.taken.items()
    }
    own = {
        name: {
            "files": len(files := request.sources[name].files),
            "bytes": sum(file.num_bytes for file in files.values()),
            "documents": counts.document_counts.kept or None,
            "tokens": counts.tokens if counts.is_complete and not is_text else None,
            "share": float(shares[name]) if name in shares else None,
            "share_basis": None if is_text else basis or "the weights of the mixture",
            "tokens_to_draw": None if is_text or total is None else int(shares[name] * total),
            "max_epochs": mixture.max_epochs_of(name),
            "cells": names_of(plan, name) or None,
        }
        for name, counts in counts_by_source.items()
    }
    return own | taken


def _tree(mixture: Mixture, request: Request, plan: Plan, reasons: Reasons) -> Tree:
    tree = Tree(Text.assemble((harmless(mixture.name), "bold"), harmless(f" → {masked(mixture.output)}")))
    branches: dict[str, Tree] = {}
    waiting: set[str] = set()
    for step in plan.steps:
        group = step.source or step.id.rpartition("/")[0]
        if group not in branches:
            files = request.sources[step.source].files if step.source else {}
            stored = f": {counted(len(files), 'file')}, {size(sum(file.num_bytes for file in files.values()))}"
            branches[group] = tree.add(Text.assemble(harmless_text(group, "bold"), stored if step.source else ""))
            for note in _source_notes(request, plan, step.source) if step.source else _shared_notes(request, plan, group):
                branches[group].add(harmless_text(note, "dim"))
        state = [] if group in waiting and step.tasks is None else [*_state(step), "  "]
        waiting |= {group} if step.tasks is None else set()
        line = Text.assemble(harmless(step.id.rpartition("/")[2]), "  ", *state, (harmless(step.label), "dim"))
        branch = branches[group].add(line)
        for reason in reasons.get(step.id, ()) if step.tasks is not None else ():
            branch.add(harmless_text(masked(reason), "dim"))
    return tree


def _source_notes(request: Request, plan: Plan, source: str) -> Iterator[str]:
    """Notes of the stages that treat each document by itself, "my_module:keep: a Python call for each document"; on the strata,
    "strata by score, ascending, in an epoch: below 2 once; 2 to below 10 twice; from 10 3 times"; and on the cells."""
    for bound in request.sources[source].stages:
        if not isinstance(bound.stage, Global):
            yield from (f"{bound.name}: {note}" for note in bound.stage.notes())
    strata = request.mixture.sources[source].strata
    if strata is not None:
        repeats = zip(spans(strata.bounds), strata.repeats, strict=True)
        parts = [f"{span} {({1: 'once', 2: 'twice'}).get(repeat, f'{repeat} times')}" for span, repeat in repeats]
        yield f"strata by {strata.by}, {strata.order}, in an epoch: {'; '.join(parts)}"
    if (split := request.mixture.sources[source].split) is not None:
        yield from _split_notes(split, len(names_of(plan, source)))


def _split_notes(split: SplitSpec, num_cells: int) -> Iterator[str]:
    """ "240 cells by language × quality in 20 quantiles", and what patterns say of the cells. `num_cells`: 0 if unknown."""
    kinds = [
        f"{axis.column} in {axis.quantiles} quantiles"
        if axis.quantiles
        else f"{axis.column} ({', '.join(spans(axis.bounds))})"
        if axis.bounds
        else axis.column
        for axis in split.by
    ]
    yield f"{counted(num_cells, 'cell') if num_cells else 'cells'} by {' × '.join(kinds)}"
    weights = split.weights
    if not isinstance(weights, Mapping):
        yield f"weights of cells: {'in proportion to the rows of an epoch' if weights is None else weights}"
    for what in ("weights", "repeat", "max_epochs", "max_tokens"):
        by_pattern = getattr(split, what)
        if isinstance(by_pattern, Mapping) and by_pattern:
            form = "," if what == "max_tokens" else "g"
            shown = [f"{pattern} {value if form == ',' else float(value):{form}}" for pattern, value in by_pattern.items()]
            more = f" and {len(shown) - _MOST_PATTERNS:,} more" if len(shown) > _MOST_PATTERNS else ""
            yield f"{'weights of cells' if what == 'weights' else what}: {', '.join(shown[:_MOST_PATTERNS])}{more}"


def last_grids(root: Root, mixture: Mixture) -> Sequence[Table]:
    """The tables of sums of the sources with cells, as the last run of the output found them."""
    split = {name for name, source in mixture.sources.items() if source.split is not None}
    with suppress(FileNotFoundError, ValueError):
        report = read_report(root)
        known = report.with_(grids={name: grid for name, grid in report.grids.items() if name in split})
        return [table for table in cells(known).tables if table.drawing is not None]
    return []


def _shared_notes(request: Request, plan: Plan, group: str) -> Iterator[str]:
    """Notes on the tokenizer, or on a global stage: the rows of earlier runs that it compares documents with, and the sources
    that have the same stage with other options, whose documents are not compared with these."""
    if group == "tokenizer":
        yield from request.tokenizer_notes
        if plan.tokenizer is not None and not request.tokenizer_content:  # the notes have it for the user's own tokenizer
            yield choice_of(plan.tokenizer).words
    for step in (step for step in plan.pipeline.global_steps if step.id == group):
        stage = cast(Global, step.stage.stage)
        yield from stage.notes()
        tables = request.reference_rows.get((step.stage.name, step.stage.digest), {})
        if files := [file for table in tables.values() for file in table]:
            urls, num_bytes = masked(", ".join(stage.against)), sum(file.bytes for file in files)
            yield f"against {urls}: {counted(len(files), 'file')}, {size(num_bytes)} of rows"
        own = stage.model_dump(mode="json")
        for other in plan.pipeline.global_steps:
            if other.stage.name == step.stage.name and other.id != group:
                options = other.stage.stage.model_dump(mode="json").items()
                differing = ", ".join(name for name, value in options if own.get(name) != value)
                sources = ", ".join(name for name, _ in other.sources)
                yield f"not compared with {sources}, where {differing} differs ({other.id})"


def _state(step: Step) -> list[str | tuple[str, str]]:
    if step.tasks is None:
        return [("after the steps before", "yellow")]
    if step.is_committed:
        return [("committed", "green"), f" {counted(len(step.tasks), 'task')}, {size(step.totals.bytes)}"]
    return [("would run", "cyan"), f" {len(step.pending())} of {counted(len(step.tasks), 'task')}"]


def _mixture_table(request: Request, plan: Plan) -> NumberTable:
    weighting, sources = request.mixture.mixture.weighting, _sources_json(request, plan)
    basis = next((entry["share_basis"] for entry in sources.values() if "share_basis" in entry), "")
    caption = "" if weighting == "given" else f"weights by {weighting} of {basis}"
    headings = ["source", "weight", "documents", "unique tokens", "tokens to draw", "epochs", "max epochs"]
    table = NumberTable("mixture", headings, caption=caption)
    for name, entry in sources.items():
        tokens, drawn, max_epochs = entry["tokens"], entry["tokens_to_draw"], entry["max_epochs"]
        documents = "of a snapshot" if "snapshot" in entry else f"{entry['documents']:,}" if entry["documents"] else "?"
        table.add_row(
            name,
            f"{entry['share']:.2%}",
            documents,
            "?" if tokens is None else f"{tokens:,}",
            "endless" if drawn is None else f"{drawn:,}",
            "endless" if drawn is None else f"{drawn / tokens:,.2f}" if drawn and tokens else "?",
            "" if max_epochs is None else f"{max_epochs:g}",
        )
    return table


def _taken_tokens(source: TakenSource) -> int:
    """Tokens of the rows of another snapshot, of its first sequence length."""
    return sum(shard.tokens for shard in source.snapshot.shards if shard.source == source.source)


def _shares(
    mixture: Mixture, request: Request, counts_by_source: Mapping[str, SourceCounts]
) -> tuple[dict[str, Fraction], str]:
    """The share of each source in the run, and what weights that are not given were computed from."""
    if mixture.mixture.weighting == "given":
        return mixture.average_shares(), ""
    taken = {name: _taken_tokens(source) for name, source in request.taken.items()}
    if all(counts.is_complete for counts in counts_by_source.values()):
        tokens = {name: counts.tokens for name, counts in counts_by_source.items()}
        return shares_of(mixture, tokens | taken), "the tokens, validation included"
    file_bytes = {name: sum(file.num_bytes for file in source.files.values()) for name, source in request.sources.items()}
    estimated = {name: ceil(num_bytes / BYTES_PER_TOKEN) for name, num_bytes in file_bytes.items()}
    basis = f"the bytes of the input files, {BYTES_PER_TOKEN} to a token, until they are packed"
    return shares_of(mixture, estimated | taken), basis
