"""report.json: every number of a run, per source and in total, summed over committed tasks. Pure, but for writing it.

sources.web.documents   {read, kept, dropped: {reason: n}, quarantined}
           .bytes       text read;  kept_bytes: text kept
           .tokens, .tallies
           .sequences   of the first sequence length
           .packing     sequence length → {rows, tokens, padding_tokens, padding_share, documents, split_documents, pieces, …}
           .steps       name → {seconds, bytes, mb_per_s, documents}
total                   the same, and the steps that serve several sources
excesses                of each source that lost more to a global stage than its `max_dropped`: {source, stage, dropped, read,
                        allowed, on_excess, text}
tasks                   step → {planned, committed}; of each round of an exchange, and of merging, also what it wrote:
                        {rows, bytes, seconds}
mixture                 shares, tokens and epochs of each source once there is a snapshot; see `report/mixture_shares.py`
tokenizer               bytes per token, tokens per word, unused ids; see `tokens/fertility.py`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from datapipe.ledger.names import REPORT
from datapipe.metrics import Packing, Work, rate_mb_per_s, total_counts, total_packing, total_work
from datapipe.plan.compile import EXCHANGES, Plan, Step
from datapipe.plan.counts import Excess, SourceCounts, excesses, shared_work, source_counts
from datapipe.report.mixture_shares import drawing
from datapipe.shards.manifest import Snapshot
from datapipe.storage import Root


def summarize(
    name: str,
    plan: Plan,
    sources: Iterable[str],
    status: str,
    problem: str | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    snapshot: Snapshot | None = None,
) -> dict[str, Any]:
    """The report as plain data.

    Args:
        status: "done", "failed" or "stopped".
        problem: why, where it is not "done".
        tokenizer: what it made of the texts, once there is one.
        snapshot: of the first sequence length, once it is published.
    """
    document_counts = {source: source_counts(plan, source) for source in sources}
    total = SourceCounts(
        document_counts=total_counts(one.document_counts for one in document_counts.values()),
        tokens=sum(one.tokens for one in document_counts.values()),
        sequences=sum(one.sequences for one in document_counts.values()),
        packing=total_packing(one.packing for one in document_counts.values()),
        work=total_work([*(one.work for one in document_counts.values()), shared_work(plan)]),
    )
    records = [record for step in plan.steps for record in step.records]
    return {
        "name": name,
        "status": status,
        "problem": problem,
        "total": _entry(total) | {"task_seconds": sum(record.metrics.seconds for record in records)},
        "sources": {source: _entry(one) for source, one in document_counts.items()},
        "mixture": None if snapshot is None else drawing(snapshot),
        "tokenizer": tokenizer,
        "excesses": [_excess(one) for one in excesses(plan)],
        "tasks": {
            step.id: {"planned": None if step.tasks is None else len(step.tasks), "committed": len(step.records)}
            | (_exchanged(step) if step.kind in EXCHANGES else {})
            for step in plan.steps
        },
        "slowest_step": slowest(total.work),
        "peak_worker_bytes": max((record.metrics.peak_bytes for record in records), default=0),
    }


def _excess(found: Excess) -> dict[str, Any]:
    return {
        "source": found.source,
        "stage": found.stage,
        "dropped": found.dropped,
        "read": found.read,
        "allowed": found.allowed,
        "on_excess": found.on_excess,
        "text": found.text,
    }


def _exchanged(step: Step) -> dict[str, int | float]:
    """What one round of an exchange wrote, and what it took."""
    outputs = [output for record in step.records for files in record.outputs.values() for output in files]
    return {
        "rows": sum(output.rows for output in outputs),
        "bytes": sum(output.bytes for output in outputs),
        "seconds": round(sum(record.metrics.seconds for record in step.records), 6),
    }


def _entry(found: SourceCounts) -> dict[str, Any]:
    document_counts = found.document_counts
    return {
        "documents": {
            "read": document_counts.read,
            "kept": document_counts.kept,
            "dropped": dict(document_counts.dropped.most_common()),
            "quarantined": document_counts.quarantined,
        },
        "bytes": document_counts.read_bytes,
        "kept_bytes": document_counts.kept_bytes,
        "tokens": found.tokens,
        "sequences": found.sequences,
        "packing": {str(length): _packing(packing) for length, packing in found.packing.items()},
        "counts": dict(sorted(document_counts.counts.items())),
        "steps": {name: _step(work) for name, work in found.work.items()},
    }


def _packing(packing: Packing) -> dict[str, int | float]:
    whole = packing.tokens + packing.padding_tokens
    return {**packing.to_json(), "padding_share": round(packing.padding_tokens / whole, 9) if whole else 0.0}


def _step(work: Work) -> dict[str, Any]:
    rate = rate_mb_per_s(work.bytes, work.seconds)
    return {
        "seconds": round(work.seconds, 6),
        "bytes": work.bytes,
        "mb_per_s": None if rate is None else round(rate, 3),
        "documents": work.documents,
    }


def slowest(work: Mapping[str, Work]) -> str | None:
    """The piece of work that took most of the workers' time."""
    return max(work, key=lambda name: work[name].seconds, default=None)


def write_report(root: Root, report: Mapping[str, Any]) -> None:
    root.write_atomic(REPORT, (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
