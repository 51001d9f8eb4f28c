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
from dataclasses import dataclass
from typing import Any

from datapipe.config.mixture import Mixture
from datapipe.config.sources.provenance import CostSpec, SyntheticSpec
from datapipe.config.sources.source import Source
from datapipe.credentials import masked
from datapipe.licenses import UNKNOWN, named
from datapipe.plan.compile import Plan, Step
from datapipe.shards.manifest import Manifest, Snapshot
from datapipe.token_counts import NamedCounts

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
            **{name: _origin(source, costs[name]) for name, source in mixture.sources.items()},
            **{name: _taken_origin(entry) for name, entry in taken.items()},
        },
        "licenses": _total_by_license(by_source.values()),
        "synthetic": {
            "synthetic": _total(numbers for name in written for numbers in by_source[name].values()),
            "natural": _total(
                numbers for name, licenses in by_source.items() if name not in written for numbers in licenses.values()
            ),
        },
        "cost": _cost(mixture, plan, costs, node_hours),
    }


def of_manifest(manifest: Manifest, report: Mapping[str, Any]) -> dict[str, Any]:
    """The entry as far as the manifest has it: without cost."""
    has_tokens, mixture = isinstance(manifest, Snapshot), report["mixture"] or {}
    by_source = {
        name: _Numbers(
            documents=entry["documents"]["kept"],
            bytes=entry["kept_bytes"],
            tokens=entry["tokens"] if has_tokens else None,
            drawn_tokens=(mixture.get("sources") or {}).get(name, {}).get("tokens"),
        )
        for name, entry in report["sources"].items()
    }
    known = {name: manifest.sources[name] for name in by_source if name in manifest.sources}
    license_of = {name: named(known[name].license) if name in known else UNKNOWN for name in by_source}
    written = [name for name, source in known.items() if source.synthetic]
    return {
        "sources": {
            name: {"license": None if license_of[name] == UNKNOWN else license_of[name], "synthetic": source.synthetic or None}
            for name, source in known.items()
        },
        "licenses": _total_by_license({license_of[name]: numbers} for name, numbers in by_source.items() if numbers.documents),
        "synthetic": {
            "synthetic": _total(numbers for name, numbers in by_source.items() if name in written),
            "natural": _total(numbers for name, numbers in by_source.items() if name not in written),
        },
    }


def _taken(report: Mapping[str, Any], name: str) -> _Numbers:
    """What rows of another snapshot add; its manifest does not tell the bytes of their text."""
    entry, mixture = report["taken"][name], report["mixture"]
    drawn = mixture["sources"][name]["tokens"] if mixture else None
    return _Numbers(documents=entry["documents"], bytes=None, tokens=entry["tokens"], drawn_tokens=drawn)


def _taken_origin(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Where rows of another snapshot come from, as its manifest says."""
    dates = entry.get("collected")
    return {
        "license": entry["license"],
        "license_field": None,
        "homepage": entry.get("homepage"),
        "collected": None if dates is None else {"from": dates[0], "to": dates[1]},
        "synthetic": entry["synthetic"] or None,
        "cost_usd": None,
    }


def _origin(source: Source, usd: float | None) -> dict[str, Any]:
    """Where a source comes from, as its mixture says."""
    collected = None if source.collected is None else {"from": source.collected[0], "to": source.collected[1]}
    said = source.synthetic.model_dump() if isinstance(source.synthetic, SyntheticSpec) else {}
    written_by = {name: text and masked(text) for name, text in said.items()} or source.synthetic or None
    return {
        "license": source.license,
        "license_field": source.license_field,
        "homepage": source.homepage and masked(source.homepage),
        "collected": collected,
        "synthetic": written_by,
        "cost_usd": usd,
    }


# ------------------------------------------------------------------------------------------------ licences


@dataclass(frozen=True, kw_only=True, slots=True)
class _Numbers:
    """What is kept under one licence. Tokens are None in a run without a tokenizer, drawn tokens in one without an end, bytes
    of text where rows of another snapshot are among them."""

    documents: int
    bytes: int | None
    tokens: int | None
    drawn_tokens: int | None


def _by_license(mixture: Mixture, plan: Plan, report: Mapping[str, Any], name: str) -> dict[str, _Numbers]:
    """What is kept of a source, by licence."""
    source, entry = mixture.sources[name], report["sources"][name]
    tokens = None if mixture.tokenizer.is_none else entry["tokens"]
    whole = _Numbers(
        documents=entry["documents"]["kept"],
        bytes=entry["kept_bytes"],
        tokens=tokens,
        drawn_tokens=None if not report["mixture"] else report["mixture"]["sources"][name]["tokens"],
    )
    if not whole.documents:
        return {}
    if source.license_field is None:
        return {source.license or UNKNOWN: whole}
    counted = _counted([*plan.of_kind("tokenize", name), *plan.of_kind("write", name)])
    if counted.by_name is None:
        return {VARIOUS: whole}
    around = 2 if plan.tokenizer is not None and plan.tokenizer.bos_id is not None else 1
    return _divided(counted, whole, source.license or UNKNOWN, around)


def _counted(steps: Iterable[Step]) -> NamedCounts:
    total = NamedCounts()
    for step in steps:
        for record in step.records:
            total.add(record.metrics.licenses)
    return total


def _divided(counted: NamedCounts, whole: _Numbers, default: str, around: int) -> dict[str, _Numbers]:
    """The numbers of a source by the licences of its documents. Those without one have that of the source.

    Args:
        around: tokens of a document that begin and end it.
    """
    parts: dict[str, list[int]] = {}  # licence -> documents, bytes, tokens with those around documents
    for name, counts in (counted.by_name or {}).items():
        part = parts.setdefault(default if name == UNKNOWN else name, [0, 0, 0])
        for index, number in enumerate((counts.documents, counts.bytes, counts.tokens + around * counts.documents)):
            part[index] += number
    missing = [whole.documents, whole.bytes or 0, whole.tokens or 0]
    missing = [number - sum(part[index] for part in parts.values()) for index, number in enumerate(missing)]
    if missing[0] > 0:
        parts[UNCOUNTED] = [missing[0], missing[1], max(0, missing[2])]
    drawn = None if whole.drawn_tokens is None else shared_out(whole.drawn_tokens, [part[2] for part in parts.values()])
    return {
        name: _Numbers(
            documents=part[0],
            bytes=part[1],
            tokens=None if whole.tokens is None else part[2],
            drawn_tokens=None if drawn is None else drawn[index],
        )
        for index, (name, part) in enumerate(parts.items())
    }


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in proportion to the weights, in whole numbers: each share is rounded down, and the first ones with the largest
    remainders get one more."""
    whole = sum(weights) or 1
    shares = [total * weight // whole for weight in weights]
    remainders = [total * weight % whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: (-remainders[index], index))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


def _total_by_license(sources: Iterable[Mapping[str, _Numbers]]) -> dict[str, dict[str, int | None]]:
    """The sums over sources, the licence with the most documents first."""
    listed = [(license, numbers) for licenses in sources for license, numbers in licenses.items()]
    names = dict.fromkeys(license for license, _ in listed)
    totals = {name: _total(numbers for license, numbers in listed if license == name) for name in names}
    return dict(sorted(totals.items(), key=lambda item: (-(item[1]["documents"] or 0), item[0])))


def _total(parts: Iterable[_Numbers]) -> dict[str, int | None]:
    """The sum of numbers; None where one of them is not known."""
    listed = list(parts)
    columns = {
        "documents": [part.documents for part in listed],
        "bytes": [part.bytes for part in listed],
        "tokens": [part.tokens for part in listed],
        "drawn_tokens": [part.drawn_tokens for part in listed],
    }
    return {name: None if None in column else sum(number or 0 for number in column) for name, column in columns.items()}


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
    """Core-hours and money. A cluster's hours include those of its cores, so the total counts one of the two."""
    spec, is_cluster = mixture.execution, node_hours is not None
    by_step = {step.id: _core_s(step, is_cluster) / 3600 for step in plan.steps if step.records}
    of_source = {name: sum(_core_s(step, is_cluster) for step in plan.steps if step.source == name) for name in mixture.sources}
    shared = sum(_core_s(step, is_cluster) for step in plan.steps if not step.source)
    core_hours = sum(by_step.values())
    compute = None if spec.cost_per_core_hour is None else core_hours * spec.cost_per_core_hour
    cluster = None if spec.cost_per_node_hour is None or node_hours is None else node_hours * spec.cost_per_node_hour
    known = [usd for usd in sources.values() if usd is not None]
    machines = compute if cluster is None else cluster
    sums = [sum(known)] if known else []
    sums += [] if machines is None else [machines]
    return {
        "sources_usd": _rounded(sum(known)) if known else None,
        "core_hours": _rounded(core_hours),
        "core_hours_by_step": {name: _rounded(hours) for name, hours in by_step.items()},
        "core_hours_by_source": {name: _rounded(seconds / 3600) for name, seconds in of_source.items()},
        "core_hours_shared": _rounded(shared / 3600),
        "node_hours": _rounded(node_hours),
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
    costs = {
        name: _usd(source.cost, report["sources"][name])
        for name, source in mixture.sources.items()
        if name in report["sources"]
    }
    drawn = {name: entry["tokens"] for name, entry in ((report["mixture"] or {}).get("sources") or {}).items()}
    written = {name for name, source in mixture.sources.items() if source.synthetic}
    return {
        "sources": {name: _origin(source, costs.get(name)) for name, source in mixture.sources.items()},
        "licenses": _licenses(mixture, _sums(first["licenses"], second["licenses"]), drawn),
        "synthetic": {
            kind: numbers
            | {"drawn_tokens": _drawn([tokens for name, tokens in drawn.items() if (name in written) == (kind == "synthetic")])}
            for kind, numbers in _sums(first["synthetic"], second["synthetic"]).items()
        },
        "cost": _added_cost(first.get("cost") or {}, second.get("cost") or {}, costs),
    }


def _sums(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, dict[str, int | None]]:
    """Numbers by name; None where one of two is not known."""
    sums: dict[str, dict[str, int | None]] = {}
    for name in dict.fromkeys([*before, *added]):
        parts = [numbers[name] for numbers in (before, added) if name in numbers]
        columns = {column: [part[column] for part in parts] for column in ("documents", "bytes", "tokens")}
        sums[name] = {column: None if None in known else sum(known) for column, known in columns.items()} | {
            "drawn_tokens": None
        }
    return sums


def _licenses(
    mixture: Mixture, sums: Mapping[str, dict[str, int | None]], drawn: Mapping[str, int | None]
) -> dict[str, dict[str, int | None]]:
    """The numbers by licence, the one with the most documents first. Drawn tokens are told where every source has one licence:
    which of several a drawn row has is not in the reports."""
    has_several = any(source.license_field is not None for source in mixture.sources.values())
    license_of = {name: source.license or UNKNOWN for name, source in mixture.sources.items()}
    told = {
        name: numbers
        | {
            "drawn_tokens": None
            if has_several
            else _drawn([drawn.get(source) for source in drawn if license_of.get(source) == name])
        }
        for name, numbers in sums.items()
    }
    return dict(sorted(told.items(), key=lambda item: (-(item[1]["documents"] or 0), item[0])))


def _drawn(tokens: Sequence[int | None]) -> int | None:
    return None if None in tokens else sum(number or 0 for number in tokens)


def _added_cost(before: Mapping[str, Any], added: Mapping[str, Any], sources: Mapping[str, float | None]) -> dict[str, Any]:
    """Hours and money of all runs. A source that has one price is paid once."""

    def total(name: str) -> float | None:
        known = [cost[name] for cost in (before, added) if cost.get(name) is not None]
        return _rounded(sum(known)) if known else None

    def by_name(name: str) -> dict[str, float | None]:
        each = [cost.get(name) or {} for cost in (before, added)]
        return {key: _rounded(sum(one.get(key) or 0.0 for one in each)) for key in dict.fromkeys([*each[0], *each[1]])}

    known = [usd for usd in sources.values() if usd is not None]
    compute, cluster = total("compute_usd"), total("cluster_usd")
    machines = compute if cluster is None else cluster
    sums = [*([sum(known)] if known else []), *([] if machines is None else [machines])]
    return {
        "sources_usd": _rounded(sum(known)) if known else None,
        "core_hours": total("core_hours"),
        "core_hours_by_step": by_name("core_hours_by_step"),
        "core_hours_by_source": by_name("core_hours_by_source"),
        "core_hours_shared": total("core_hours_shared"),
        "node_hours": total("node_hours"),
        "compute_usd": compute,
        "cluster_usd": cluster,
        "total_usd": _rounded(sum(sums)) if sums else None,
    }
