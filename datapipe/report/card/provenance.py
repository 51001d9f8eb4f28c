"""The entry `provenance` of report.json: where the sources come from, under which licences, who wrote them, what they cost.

    mixture ─────────────────▶ sources      license, homepage, collected, synthetic, cost_usd
    report, task records ────▶ licenses     documents, bytes, tokens and drawn tokens by licence
                         ────▶ synthetic    the same for text that models wrote, and for the rest
                         ────▶ cost         core-hours by step and source; money where the mixture has prices

Documents, bytes and tokens are those that are kept, and add up to the totals of the report: a document is counted by its own
licence, or by that of its source. Tokens include the end-of-text token of each document. Drawn tokens of a source are divided
among its licences by their tokens, to whole numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from datapipe.config.mixture import Mixture
from datapipe.config.sources.provenance import CostSpec
from datapipe.report.records import Cost, Entry, Kept, Origin, ReportProvenance, Summary
from datapipe.shards.source_entry import Provenance
from datapipe.stage.licenses import UNKNOWN
from datapipe.steps.budget import LimitMetrics
from datapipe.steps.kind import Plan, Step
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.write import WriteMetrics
from datapipe.token_counts import CountsByName

VARIOUS = "various"
"""Documents of a source with more licences than are counted apart (`token_counts.MAX_NAMES`)."""

UNCOUNTED = "not counted yet"
"""Documents that a run which did not end has cleaned, and not tokenized or written."""


def provenance(mixture: Mixture, plan: Plan, report: Summary, node_hours: float | None = None) -> ReportProvenance:
    """The entry of a run, from the other entries of its report and the `node_hours` of its Ray
    cluster; None for another engine."""
    by_source = {name: _by_license(mixture, plan, report, name) for name in mixture.sources}
    costs = {name: _usd(source.cost, report.sources[name]) for name, source in mixture.sources.items()}
    own = {name: Provenance(**source.provenance()) for name, source in mixture.sources.items()}
    origins = {name: Origin.of(source, cost_usd=costs[name]) for name, source in own.items()}
    taken = report.taken
    for name, source in taken.items():  # whose manifest does not have the bytes of their text
        numbers = {"documents": source.documents, "bytes": None, "tokens": source.tokens}
        by_source[name] = {source.license or UNKNOWN: Kept(**numbers, drawn_tokens=_drawn_of(report, name))}
    written = {name for name, source in {**mixture.sources, **taken}.items() if source.synthetic}
    kept = {
        kind: Kept.total(part for name in names for part in by_source[name].values())
        for kind, names in (("synthetic", written), ("natural", by_source.keys() - written))
    }
    return ReportProvenance(
        sources=origins | {name: Origin.of(source) for name, source in taken.items()},
        licenses=_by_name(by_source.values()),
        synthetic=kept,
        cost=_cost(mixture, plan, costs, node_hours),
    )


def _drawn_of(report: Summary, name: str) -> int | None:
    return report.mixture.sources[name].tokens if report.mixture else None


def _by_license(mixture: Mixture, plan: Plan, report: Summary, name: str) -> dict[str, Kept]:
    source, entry = mixture.sources[name], report.sources[name]
    tokens = None if mixture.tokenizer.is_none else entry.tokens
    drawn = _drawn_of(report, name)
    whole = Kept(documents=entry.documents.kept, bytes=entry.kept_bytes, tokens=tokens, drawn_tokens=drawn)
    if not whole.documents:
        return {}
    if source.license_field is None:
        return {source.license or UNKNOWN: whole}
    counted = _counted(plan, name)
    if counted.by_name is None:
        return {VARIOUS: whole}
    around = 2 if plan.tokenizer is not None and plan.tokenizer.bos_id is not None else 1
    return _divided(counted, whole, source.license or UNKNOWN, around)


def _counted(plan: Plan, source: str) -> CountsByName:
    total = CountsByName()
    for kind, numbers in (("tokenize", TokenizeMetrics), ("write", WriteMetrics)):
        for step in plan.of_kind(kind, source):
            total.add(step.own(numbers).licenses)
    for step in plan.of_kind("limit", source):
        total.subtract(step.own(LimitMetrics).licenses)
    return total


def _divided(counted: CountsByName, whole: Kept, default: str, around: int) -> dict[str, Kept]:
    """The numbers of a source by the licences of its documents, with the `around` tokens
    that begin and end each of them. Documents without a licence have that of the source."""
    parts: dict[str, np.ndarray] = {}  # licence -> documents, bytes, tokens with those around documents
    for name, counts in (counted.by_name or {}).items():
        numbers = np.array([counts.documents, counts.bytes, counts.tokens + around * counts.documents])
        license = default if name == UNKNOWN else name
        parts[license] = parts.get(license, 0) + numbers
    missing = np.array([whole.documents, whole.bytes, whole.tokens or 0]) - sum(parts.values())
    if missing[0] > 0:
        parts[UNCOUNTED] = missing.clip(0)
    listed, total_drawn = {name: part.tolist() for name, part in parts.items()}, whole.drawn_tokens
    drawn = [None] * len(parts) if total_drawn is None else shared_out(total_drawn, [part[2] for part in listed.values()])
    has_tokens = whole.tokens is not None
    return {
        name: Kept(documents=documents, bytes=num_bytes, tokens=tokens if has_tokens else None, drawn_tokens=drawn_tokens)
        for (name, (documents, num_bytes, tokens)), drawn_tokens in zip(listed.items(), drawn)
    }


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in proportion to the weights, in whole numbers: the bounds between the shares are rounded down."""
    whole = sum(weights) or 1
    bounds = [total * reached // whole for reached in accumulate(weights, initial=0)]
    return [stop - start for start, stop in pairwise(bounds)]


def _by_name(sources: Iterable[Mapping[str, Kept]]) -> dict[str, Kept]:
    """The sums by name, the one with the most documents first."""
    listed = [item for entries in sources for item in entries.items()]
    totals = {name: Kept.total(part for other, part in listed if other == name) for name, _ in listed}
    return dict(sorted(totals.items(), key=lambda item: (-(item[1].documents or 0), item[0])))


def _usd(cost: CostSpec | None, entry: Entry) -> float | None:
    """What the text of a source cost. Tokens of dropped documents are taken to be as long as those of kept ones."""
    if cost is None or cost.usd is not None:
        return None if cost is None else cost.usd
    if cost.usd_per_million_tokens is None or not entry.tokens or not entry.kept_bytes:
        return None
    tokens_read = entry.tokens * max(1.0, entry.bytes / entry.kept_bytes)
    return round(tokens_read / 1e6 * cost.usd_per_million_tokens, 6)


def _cost(mixture: Mixture, plan: Plan, sources: Mapping[str, float | None], node_hours: float | None) -> Cost:
    spec, is_cluster = mixture.execution, node_hours is not None
    by_step = {step.id: _core_s(step, is_cluster) / 3600 for step in plan.steps if step.records}
    of_source = {name: sum(_core_s(step, is_cluster) for step in plan.steps if step.source == name) for name in mixture.sources}
    shared = sum(_core_s(step, is_cluster) for step in plan.steps if not step.source)
    core_hours = sum(by_step.values())
    known = [usd for usd in sources.values() if usd is not None]
    compute = None if spec.cost_per_core_hour is None else core_hours * spec.cost_per_core_hour
    cluster = None if spec.cost_per_node_hour is None or node_hours is None else node_hours * spec.cost_per_node_hour
    machines = compute if cluster is None else cluster  # whose hours include those of its cores
    sums = [*known, *([] if machines is None else [machines])]
    return Cost(
        core_hours=core_hours,
        core_hours_by_step=by_step,
        core_hours_by_source={name: seconds / 3600 for name, seconds in of_source.items()},
        core_hours_shared=shared / 3600,
        node_hours=node_hours,
        sources_usd=sum(known) if known else None,
        compute_usd=compute,
        cluster_usd=cluster,
        total_usd=sum(sums) if sums else None,
    )


def _core_s(step: Step, is_cluster: bool) -> float:
    """Core-seconds of the committed tasks of a step: their seconds, on a cluster times the cores that they reserve."""
    cores = {task.fingerprint: dict(task.resources).get("num_cpus", 1.0) for task in step.tasks or ()} if is_cluster else {}
    if {1.0}.issuperset(cores.values()):
        return step.totals.seconds
    return sum(record.metrics.seconds * cores.get(record.fingerprint, 1.0) for record in step.records)
