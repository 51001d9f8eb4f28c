"""report.json: every number of a run, summed over committed tasks. README.md has its keys. Pure except `write_report`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datapipe.metrics import total_by_name, total_counts
from datapipe.quantities import counted, rate_mb_per_s
from datapipe.records.names import REPORT
from datapipe.records.outputs import TokenizerFile
from datapipe.report.mixture_shares import epoch_warnings, mixture_shares, taken_sources
from datapipe.shards.manifest import Snapshot
from datapipe.steps.counts import SourceCounts, shared_work, source_counts, thresholds
from datapipe.steps.kind import Plan, Step
from datapipe.steps.tokenize import TokenizeMetrics
from datapipe.steps.warnings import RunWarning
from datapipe.storage.root import Root
from datapipe.token_counts import Fertility

_LEAST_STARTING_S = 0.5

_NO_DISTRIBUTIONS: Mapping[str, Any] = {"measured": {}, "lengths": {}, "clusters": {}}


def summarize(
    name: str,
    plan: Plan,
    sources: Iterable[str],
    snapshot: Snapshot | None = None,
    warnings: Sequence[RunWarning] = (),
    before: str | None = None,
) -> dict[str, Any]:
    """The report of a run that is done, as plain data. Entries that its plan does not tell are empty.

    Args:
        snapshot: of the first sequence length; None before it is published.
        warnings: of the run; those about the epochs of the snapshot are added.
        before: fingerprint of the snapshot before this one.
    """
    counts_by_source = {source: source_counts(plan, source) for source in sources}
    total = _total(list(counts_by_source.values()), plan)
    records = [record for step in plan.steps for record in step.records]
    packed = snapshot if snapshot is not None and snapshot.has_tokens else None
    mixture = mixture_shares(packed) if packed is not None and packed.shards else None
    told = [*warnings, *(epoch_warnings(mixture) if mixture else ())]
    return {
        "name": name,
        "status": "done",
        "problem": None,
        "total": _entry(total) | {"task_seconds": sum(record.metrics.seconds for record in records)},
        "sources": {source: _entry(counts) for source, counts in counts_by_source.items()},
        "taken": {} if packed is None else taken_sources(packed, counts_by_source),
        "mixture": mixture,
        "tokenizer": None,
        "warnings": [warning.to_json() for warning in told],
        "thresholds": thresholds(plan),
        "contamination": [],
        **_NO_DISTRIBUTIONS,
        "tasks": {step.id: _tasks(step) for step in plan.steps},
        "second_attempts": _second_attempts(plan),
        "peak_worker_bytes": max((record.metrics.peak_bytes for record in records), default=0),
        "run": None,
        "shards": None if snapshot is None else shards_entry(snapshot, before),
    }


def _total(counts: Sequence[SourceCounts], plan: Plan) -> SourceCounts:
    return SourceCounts(
        document_counts=total_counts(source.document_counts for source in counts),
        tokens=sum(source.tokens for source in counts),
        sequences=sum(source.sequences for source in counts),
        packing=total_by_name(source.packing for source in counts),
        work=total_by_name([*(source.work for source in counts), shared_work(plan)]),
    )


def shards_entry(snapshot: Snapshot, before: str | None) -> dict[str, Any]:
    """The entry `shards`."""
    shards = snapshot.shards
    return {
        "files": len(shards),
        "bytes": sum(shard.bytes for shard in shards),
        "fingerprint": snapshot.fingerprint,
        "before": before,
        "taken_down": snapshot.num_taken_down,
        "held_out": sum(shard.sequences for shard in shards if shard.split == "validation"),
    }


def starting_text(report: Mapping[str, Any]) -> str:
    """What tasks took beside their steps, in words; empty where that is little."""
    total = report["total"]
    beside_s = total["task_seconds"] - sum(step["seconds"] for step in total["steps"].values())
    if beside_s < _LEAST_STARTING_S:
        return ""
    return f"Beside these, tasks took {beside_s:,.1f} s to start: importing libraries, compiling and loading kernels."


def taken_down_text(report: Mapping[str, Any]) -> str:
    """A sentence on the documents that were taken down; empty where none were."""
    number = report["shards"]["taken_down"] if report["shards"] else 0
    if not number:
        return ""
    return f"{counted(number, 'document')} taken down: loaders pad those that rows have. The other numbers count them."


def _tasks(step: Step) -> dict[str, Any]:
    counts = {
        "planned": None if step.tasks is None else len(step.tasks),
        "committed": len(step.records),
        "kind": step.kind,
        "source": step.source or None,
        "label": step.label,
        "seconds": round(sum(record.metrics.seconds for record in step.records), 6),
        "peak_bytes": max((record.metrics.peak_bytes for record in step.records), default=0),
    }
    outputs = [output for record in step.records for files in record.outputs.values() for output in files]
    written = {"rows": sum(output.rows for output in outputs), "bytes": sum(output.bytes for output in outputs)}
    return counts | written if step.work.is_exchange else counts


def _second_attempts(plan: Plan) -> dict[str, dict[str, int]]:
    ended = {step.id: [record.metrics.second_attempt for record in step.records] for step in plan.steps}
    return {name: {"tasks": len(each) - each.count(""), "won": each.count("won")} for name, each in ended.items() if any(each)}


def second_attempts_text(report: Mapping[str, Any]) -> str:
    """A sentence on the tasks that had a second attempt; empty where none had."""
    steps: Mapping[str, Any] = report["second_attempts"]
    if not steps:
        return ""
    tasks, won = (sum(each[name] for each in steps.values()) for name in ("tasks", "won"))
    return (
        f"{counted(tasks, 'task')} of {', '.join(steps)} took much longer than others and had a second attempt, which ended "
        f"first in {won:,}."
    )


def _entry(counts: SourceCounts) -> dict[str, Any]:
    document_counts = counts.document_counts
    entry = {
        "documents": {
            "read": document_counts.read,
            "kept": document_counts.kept,
            "dropped": dict(document_counts.dropped.most_common()),
            "quarantined": document_counts.quarantined,
            "quarantine_reasons": dict(document_counts.quarantine_reasons.most_common()),
        },
        "bytes": document_counts.read_bytes,
        "kept_bytes": document_counts.kept_bytes,
        "tokens": counts.tokens,
        "sequences": counts.sequences,
        "packing": {str(length): packing.to_json() for length, packing in counts.packing.items()},
        "counts": dict(sorted(document_counts.counts.items())),
        "steps": {
            name: {"seconds": work.seconds, "bytes": work.bytes, "documents": work.documents}
            for name, work in counts.work.items()
        },
    }
    return with_rates(entry)


def with_rates(entry: dict[str, Any]) -> dict[str, Any]:
    """Adds to the entry of a source the shares and rates that follow from its sums."""
    for packing in entry["packing"].values():
        whole = packing["tokens"] + packing["padding_tokens"]
        packing["padding_share"] = round(packing["padding_tokens"] / whole, 9) if whole else 0.0
    for work in entry["steps"].values():
        rate = rate_mb_per_s(work["bytes"], work["seconds"])
        work["seconds"], work["mb_per_s"] = round(work["seconds"], 6), None if rate is None else round(rate, 3)
    return entry


_KEYS = {"name", "status", "problem", "total", "sources", "mixture", "tokenizer", "warnings", "tasks"}
_KEYS |= {"taken", "contamination", "measured", "second_attempts", "run", "shards", "provenance"}


def parse_report(content: bytes) -> dict[str, Any]:
    """A report that was written by this version. Raises ValueError for another one, and for what is none."""
    report = json.loads(content)
    if not isinstance(report, dict) or not report.keys() >= _KEYS:
        raise ValueError("keys are missing")
    return report


def report_bytes(report: Mapping[str, Any]) -> bytes:
    """The content of report.json. Distributions, which are long and not read by people, stand on a line each."""
    entries = (
        f"{json.dumps(name)}: {json.dumps(value, indent=None if name in _NO_DISTRIBUTIONS else 1, ensure_ascii=False)}"
        for name, value in report.items()
    )
    return ("{\n" + ",\n".join(entries) + "\n}\n").encode()


def write_report(root: Root, report: Mapping[str, Any]) -> None:
    root.write_atomic(REPORT, report_bytes(report))


def tokenizer_report(root: Root, plan: Plan) -> dict[str, Any] | None:
    """The `tokenizer` entry; None before there is a tokenizer. `unused` is None until every document is tokenized."""
    from datapipe.exchange.partitions import committed_bytes
    from datapipe.tokens.fertility import described, merged_ids, unused_tokens

    tokenizer = next((output for step in plan.of_kind("train") for output in step.outputs("tokenizer", TokenizerFile)), None)
    if tokenizer is None:
        return None
    steps = plan.of_kind("tokenize")
    sources: dict[str, Fertility] = {}
    total = Fertility()
    for step in steps:
        fertility = sources.setdefault(step.source, Fertility())
        for own in step.numbers(TokenizeMetrics):
            fertility.add(own.fertility)
        total.add(fertility)
    unused = None
    if all(step.is_committed for step in steps):
        parts = (committed_bytes(root, output) for step in steps for output in step.outputs("used_ids"))
        unused = unused_tokens(committed_bytes(root, tokenizer), merged_ids(tokenizer.vocab_size, parts))
    return {
        "vocab_size": tokenizer.vocab_size,
        "eos_token": tokenizer.eos_token,
        "bos_token": tokenizer.bos_token,
        "total": described(total),
        "sources": {name: described(fertility) for name, fertility in sources.items()},
        "unused": unused,
    }
