"""`datapipe plan`: the tree of steps and the mixture table. For people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.tree import Tree

from datapipe.config.mixture import Mixture
from datapipe.plan.books import source_books
from datapipe.plan.compile import Plan, Request, Step
from datapipe.plan.fingerprint import short
from datapipe.report.funnel import size
from datapipe.report.progress import committed_size


def plan_view(mixture: Mixture, request: Request, plan: Plan) -> RenderableType:
    """The step tree and the mixture table."""
    return Group(_tree(mixture, request, plan), "", _mixture_table(mixture, plan))


def _tree(mixture: Mixture, request: Request, plan: Plan) -> Tree:
    tree = Tree(f"[bold]{mixture.name}[/bold] → {mixture.output}")
    branches: dict[str, Tree] = {}
    for step in plan.steps:
        group = step.source or step.id.rpartition("/")[0]
        if group not in branches:
            branches[group] = tree.add(_group_label(request, step, group))
        branches[group].add(f"{step.id.rpartition('/')[2]}  {_state(step)}  [dim]{step.label}[/dim]")
    return tree


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


def _mixture_table(mixture: Mixture, plan: Plan) -> Table:
    table = Table(title="mixture", title_justify="left", title_style="bold")
    for name in ("source", "documents", "unique tokens", "weight", "tokens to draw", "epochs"):
        table.add_column(name, justify="left" if name == "source" else "right")
    total = mixture.mixture.tokens
    shares = mixture.average_shares()
    for name in mixture.sources:
        found = source_books(plan, name)
        share = shares[name]
        drawn = None if total is None else int(share * total)
        epochs = "" if not drawn or not found.is_complete or not found.tokens else f"{drawn / found.tokens:,.2f}"
        table.add_row(
            name,
            f"{found.books.kept:,}" if found.books.kept else "?",
            f"{found.tokens:,}" if found.is_complete else "?",
            f"{float(share):.2%}",
            "endless" if drawn is None else f"{drawn:,}",
            epochs or ("endless" if drawn is None else "?"),
        )
    return table
