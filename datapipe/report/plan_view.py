"""`datapipe plan`: the tree of steps and the mixture table. For people."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import cast

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from datapipe.config.mixture import Mixture
from datapipe.plan.compile import Plan, Step
from datapipe.plan.counts import SourceCounts, source_counts
from datapipe.plan.fingerprint import short
from datapipe.plan.request import Request
from datapipe.plan.steps import GlobalStep
from datapipe.plan.weighting import BYTES_PER_TOKEN, shares_of
from datapipe.report.funnel import size
from datapipe.report.progress import committed_size
from datapipe.stage.global_stage import Global


def plan_view(mixture: Mixture, request: Request, plan: Plan) -> RenderableType:
    """The step tree and the mixture table."""
    return Group(_tree(mixture, request, plan), "", _mixture_table(mixture, request, plan))


def _tree(mixture: Mixture, request: Request, plan: Plan) -> Tree:
    tree = Tree(f"[bold]{mixture.name}[/bold] → {mixture.output}")
    branches: dict[str, Tree] = {}
    notes = {
        global_step.id: [*global_step.stage.stage.notes(), *_held(request, global_step), *_apart(plan, global_step)]
        for global_step in plan.pipeline.global_steps
    }
    for step in plan.steps:
        group = step.source or step.id.rpartition("/")[0]
        if group not in branches:
            branches[group] = tree.add(_group_label(request, step, group))
            for note in notes.get(group, ()) if not step.source else ():
                branches[group].add(f"[dim]{escape(note)}[/dim]")
        branches[group].add(f"{step.id.rpartition('/')[2]}  {_state(step)}  [dim]{step.label}[/dim]")
    return tree


def _held(request: Request, global_step: GlobalStep) -> list[str]:
    """What a global stage is held against, for people."""
    files = [
        one
        for listed in request.reference_rows.get((global_step.stage.name, global_step.stage.digest), {}).values()
        for one in listed
    ]
    if not files:
        return []
    urls = ", ".join(cast(Global, global_step.stage.stage).against)
    return [f"against {urls}: {len(files):,} files, {size(sum(one.bytes for one in files))} of rows"]


def _apart(plan: Plan, global_step: GlobalStep) -> list[str]:
    """Of a stage that sources name with different options: with whom they are not compared, and why."""
    own = global_step.stage.stage.model_dump(mode="json")
    found: list[str] = []
    for other in plan.pipeline.global_steps:
        if other.stage.name == global_step.stage.name and other.id != global_step.id:
            options = [name for name, value in other.stage.stage.model_dump(mode="json").items() if own.get(name) != value]
            sources = ", ".join(name for name, _ in other.sources)
            found.append(f"not compared with {sources}, where {', '.join(options)} differs ({other.id})")
    return found


def _group_label(request: Request, step: Step, group: str) -> str:
    if not step.source:
        return f"[bold]{group}[/bold]"
    files = request.sources[step.source].files
    return f"[bold]{group}[/bold]: {len(files):,} files, {size(sum(file.num_bytes for file in files.values()))}"


def _state(step: Step) -> str:
    if step.tasks is None:
        return "[yellow]waits[/yellow]"
    fingerprints = f" {short(step.tasks[0].fingerprint)}…" if step.tasks else ""
    if step.is_committed:
        return f"[green]committed[/green] {len(step.tasks)} tasks, {committed_size(step)}{fingerprints}"
    return f"[cyan]would run[/cyan] {len(step.pending())} of {len(step.tasks)} tasks{fingerprints}"


def _mixture_table(mixture: Mixture, request: Request, plan: Plan) -> Table:
    table = Table(title="mixture", title_justify="left", title_style="bold")
    for name in ("source", "documents", "unique tokens", "weight", "tokens to draw", "epochs", "at most"):
        table.add_column(name, justify="left" if name == "source" else "right")
    total = mixture.mixture.tokens
    document_counts = {name: source_counts(plan, name) for name in mixture.sources}
    shares, known_by = _shares(mixture, request, document_counts)
    if known_by:
        table.caption, table.caption_justify = f"weights by {mixture.mixture.weighting} of {known_by}", "left"
    for name, found in document_counts.items():
        share, at_most = shares[name], mixture.max_epochs_of(name)
        drawn = None if total is None else int(share * total)
        epochs = "" if not drawn or not found.is_complete or not found.tokens else f"{drawn / found.tokens:,.2f}"
        table.add_row(
            name,
            f"{found.document_counts.kept:,}" if found.document_counts.kept else "?",
            f"{found.tokens:,}" if found.is_complete else "?",
            f"{float(share):.2%}",
            "endless" if drawn is None else f"{drawn:,}",
            epochs or ("endless" if drawn is None else "?"),
            "" if at_most is None else f"{at_most:g}",
        )
    return table


def _shares(mixture: Mixture, request: Request, document_counts: Mapping[str, SourceCounts]) -> tuple[dict[str, Fraction], str]:
    """The part of the run that comes from each source; and what it was reckoned from, where weights are not given."""
    if mixture.mixture.weighting == "given":
        return mixture.average_shares(), ""
    if all(found.is_complete for found in document_counts.values()):
        return shares_of(
            mixture, {name: found.tokens for name, found in document_counts.items()}
        ), "the tokens, held-out ones included"
    files = {name: sum(file.num_bytes for file in one.files.values()) for name, one in request.sources.items()}
    guessed = {name: ceil(num_bytes / BYTES_PER_TOKEN) for name, num_bytes in files.items()}
    return shares_of(mixture, guessed), f"the bytes of the input files, {BYTES_PER_TOKEN} to a token, until they are packed"
