"""The entry `provenance` of report.json: where the sources come from, under which licences, who wrote them, what they cost.

    mixture ─────────────────▶ sources      license, homepage, collected, synthetic, cost_usd
    report, task records ────▶ licenses     documents, bytes, tokens and drawn tokens by licence
                         ────▶ synthetic    the same for text that models wrote, and for the rest
                         ────▶ cost         core-hours by step and source; money where the mixture has prices

Documents, bytes and tokens are those that are kept. Each total over licences is the total of the report: documents with a
licence of their own are counted by it, and all others by that of their source. Tokens include the end-of-text token of each
document, as they do elsewhere in the report. Drawn tokens of a source are divided among its licences by their tokens, to whole
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from datapipe.config.mixture import Mixture
from datapipe.config.sources.provenance import CostSpec
from datapipe.report.joined import joined
from datapipe.report.mixture_shares import ORIGIN, origin
from datapipe.shards.provenance import Provenance
from datapipe.snapshots.composed_manifest import provenance_of
from datapipe.stage.licenses import UNKNOWN
from datapipe.steps.kind import Plan, Step
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.write import WriteMetrics
from datapipe.token_counts import CountsByName

VARIOUS = "various"
"""Documents of a source that gives more licences than are counted apart (`token_counts.MAX_NAMES`)."""

UNCOUNTED = "not counted yet"
"""Documents that a run which did not end has cleaned, and not tokenized or written."""


def provenance(mixture: Mixture, plan: Plan, report: Mapping[str, Any], node_hours: float | None = None) -> dict[str, Any]:
    """The entry of a run.

    Args:
        report: the other entries of report.json.
        node_hours: of the Ray cluster; None for another engine.
    """
    by_source = {name: _by_license(mixture, plan, report, name) for name in mixture.sources}
    costs = {name: _usd(source.cost, report["sources"][name]) for name, source in mixture.sources.items()}
    written = [name for name, source in mixture.sources.items() if source.synthetic]
    taken = report["taken"]
    by_source |= {name: {entry["license"] or UNKNOWN: _taken(report, name)} for name, entry in taken.items()}
    written += [name for name, entry in taken.items() if entry["synthetic"]]
    return {
        "sources": {
            **_origins(mixture, costs),
            **{name: {key: entry[key] for key in ORIGIN} | {"cost_usd": None} for name, entry in taken.items()},
        },
        "licenses": _by_name(by_source.values()),
        "synthetic": {
            "synthetic": _total(part for name in written for part in by_source[name].values()),
            "natural": _total(part for name in by_source.keys() - set(written) for part in by_source[name].values()),
        },
        "cost": _cost(mixture, plan, costs, node_hours),
    }


def _origins(mixture: Mixture, costs: Mapping[str, float | None]) -> dict[str, dict[str, Any]]:
    """Where the sources of a mixture come from, and what their text cost."""
    own = {name: origin(Provenance(**provenance_of(source))) for name, source in mixture.sources.items()}
    return {name: entry | {"cost_usd": costs.get(name)} for name, entry in own.items()}


def _taken(report: Mapping[str, Any], name: str) -> Numbers:
    """What rows of another snapshot add; its manifest does not tell the bytes of their text."""
    entry = report["taken"][name]
    return numbers(entry["documents"], None, entry["tokens"], _drawn_of(report, name))


def _drawn_of(report: Mapping[str, Any], name: str) -> int | None:
    return report["mixture"]["sources"][name]["tokens"] if report["mixture"] else None


# ------------------------------------------------------------------------------------------------ licences


Numbers = dict[str, int | None]
"""What is kept under one licence. Tokens are None in a run without a tokenizer, drawn tokens in one without an end, and bytes
where rows of another snapshot are among them."""


def numbers(documents: int, num_bytes: int | None, tokens: int | None, drawn_tokens: int | None) -> Numbers:
    return {"documents": documents, "bytes": num_bytes, "tokens": tokens, "drawn_tokens": drawn_tokens}


def _by_license(mixture: Mixture, plan: Plan, report: Mapping[str, Any], name: str) -> dict[str, Numbers]:
    """What is kept of a source, by licence."""
    source, entry = mixture.sources[name], report["sources"][name]
    tokens = None if mixture.tokenizer.is_none else entry["tokens"]
    whole = numbers(entry["documents"]["kept"], entry["kept_bytes"], tokens, _drawn_of(report, name))
    if not whole["documents"]:
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
        for own in (own for step in plan.of_kind(kind, source) for own in step.numbers(numbers)):
            total.add(own.licenses)
    return total


def _divided(counted: CountsByName, whole: Numbers, default: str, around: int) -> dict[str, Numbers]:
    """The numbers of a source by the licences of its documents. Those without one have that of the source.

    Args:
        around: tokens of a document that begin and end it.
    """
    parts: dict[str, list[int]] = {}  # licence -> documents, bytes, tokens with those around documents
    for name, counts in (counted.by_name or {}).items():
        part = parts.setdefault(default if name == UNKNOWN else name, [0, 0, 0])
        for index, number in enumerate((counts.documents, counts.bytes, counts.tokens + around * counts.documents)):
            part[index] += number
    missing = [whole[column] or 0 for column in ("documents", "bytes", "tokens")]
    missing = [number - sum(part[index] for part in parts.values()) for index, number in enumerate(missing)]
    if missing[0] > 0:
        parts[UNCOUNTED] = [missing[0], missing[1], max(0, missing[2])]
    total_drawn = whole["drawn_tokens"]
    drawn = [None] * len(parts) if total_drawn is None else shared_out(total_drawn, [part[2] for part in parts.values()])
    return {
        name: numbers(part[0], part[1], None if whole["tokens"] is None else part[2], drawn_tokens)
        for (name, part), drawn_tokens in zip(parts.items(), drawn)
    }


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in proportion to the weights, in whole numbers: the bounds between the shares are rounded down."""
    whole = sum(weights) or 1
    bounds = [total * reached // whole for reached in accumulate(weights, initial=0)]
    return [stop - start for start, stop in pairwise(bounds)]


def _by_name(sources: Iterable[Mapping[str, Numbers]]) -> dict[str, Numbers]:
    """The sums by name, the one with the most documents first."""
    listed = [item for entries in sources for item in entries.items()]
    totals = {name: _total(part for other, part in listed if other == name) for name, _ in listed}
    return dict(sorted(totals.items(), key=lambda item: (-(item[1]["documents"] or 0), item[0])))


def _total(parts: Iterable[Numbers]) -> Numbers:
    """The sum of numbers; None where one of them is not known."""
    listed = list(parts)
    return {column: _sum(part[column] for part in listed) for column in ("documents", "bytes", "tokens", "drawn_tokens")}


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


# ------------------------------------------------------------------------------------------------ cost


def _usd(cost: CostSpec | None, entry: Mapping[str, Any]) -> float | None:
    """What the text of a source cost. Tokens of dropped documents are taken to be as long as those of kept ones."""
    if cost is None or cost.usd is not None:
        return None if cost is None else cost.usd
    if cost.usd_per_million_tokens is None or not entry["tokens"] or not entry["kept_bytes"]:
        return None
    tokens_read = entry["tokens"] * max(1.0, entry["bytes"] / entry["kept_bytes"])
    return round(tokens_read / 1e6 * cost.usd_per_million_tokens, 6)


def _cost(mixture: Mixture, plan: Plan, sources: Mapping[str, float | None], node_hours: float | None) -> dict[str, Any]:
    """Core-hours and money."""
    spec, is_cluster = mixture.execution, node_hours is not None
    by_step = {step.id: _core_s(step, is_cluster) / 3600 for step in plan.steps if step.records}
    of_source = {name: sum(_core_s(step, is_cluster) for step in plan.steps if step.source == name) for name in mixture.sources}
    shared = sum(_core_s(step, is_cluster) for step in plan.steps if not step.source)
    core_hours = sum(by_step.values())
    compute = None if spec.cost_per_core_hour is None else core_hours * spec.cost_per_core_hour
    cluster = None if spec.cost_per_node_hour is None or node_hours is None else node_hours * spec.cost_per_node_hour
    return {
        "core_hours": _rounded(core_hours),
        "core_hours_by_step": {name: _rounded(hours) for name, hours in by_step.items()},
        "core_hours_by_source": {name: _rounded(seconds / 3600) for name, seconds in of_source.items()},
        "core_hours_shared": _rounded(shared / 3600),
        "node_hours": _rounded(node_hours),
        **_money(sources, compute, cluster),
    }


def _money(sources: Mapping[str, float | None], compute: float | None, cluster: float | None) -> dict[str, float | None]:
    """Prices of text and machines. A cluster's hours include those of its cores, so the total counts one of the two."""
    known = [usd for usd in sources.values() if usd is not None]
    machines = compute if cluster is None else cluster
    sums = [*known, *([] if machines is None else [machines])]
    return {
        "sources_usd": _rounded(sum(known)) if known else None,
        "compute_usd": _rounded(compute),
        "cluster_usd": _rounded(cluster),
        "total_usd": _rounded(sum(sums)) if sums else None,
    }


def _core_s(step: Step, is_cluster: bool) -> float:
    """Core-seconds of the committed tasks of a step: their seconds, on a cluster times the cores that they reserve."""
    cores = {task.fingerprint: dict(task.resources).get("num_cpus", 1.0) for task in step.tasks or ()} if is_cluster else {}
    return sum(record.metrics.seconds * cores.get(record.fingerprint, 1.0) for record in step.records)


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 6)


# ------------------------------------------------------------------------------------------------ additions


def joined_provenance(
    mixture: Mixture, before: Mapping[str, Any], added: Mapping[str, Any], report: Mapping[str, Any]
) -> dict[str, Any]:
    """The entry of a snapshot that grew: what is kept by licence, and what it cost, of all that it was made of.

    Args:
        before, added: reports of the snapshot before, and of the addition, each with its entry.
        report: the other entries of the new report.
    """
    first, second = before["provenance"], added["provenance"]
    names = report["sources"].keys() & mixture.sources.keys()
    costs = {name: _usd(mixture.sources[name].cost, report["sources"][name]) for name in names}
    drawn = {name: entry["tokens"] for name, entry in (report["mixture"] or {"sources": {}})["sources"].items()}
    sources = first["sources"] | _origins(mixture, costs)
    cost = joined(first["cost"], second["cost"])
    synthetic = _by_name((first["synthetic"], second["synthetic"]))
    for kind, part in synthetic.items():
        of_kind = (tokens for name, tokens in drawn.items() if bool(sources[name]["synthetic"]) == (kind == "synthetic"))
        part["drawn_tokens"] = _sum(of_kind)
    return {
        "sources": sources,
        "licenses": _licenses(mixture, _by_name((first["licenses"], second["licenses"])), drawn),
        "synthetic": synthetic,
        "cost": cost | _money(costs, cost["compute_usd"], cost["cluster_usd"]),  # a source that has one price is paid once
    }


def _licenses(mixture: Mixture, kept: dict[str, Numbers], drawn: Mapping[str, int | None]) -> dict[str, Numbers]:
    """Adds the drawn tokens where every source has one licence: which of several a drawn row has is not in the reports."""
    has_several = any(source.license_field is not None for source in mixture.sources.values())
    license_of = {name: source.license or UNKNOWN for name, source in mixture.sources.items()}
    for license, part in kept.items():
        of_license = (tokens for name, tokens in drawn.items() if license_of.get(name) == license)
        part["drawn_tokens"] = None if has_several else _sum(of_license)
    return kept
