"""report.json: every number of a run, by source and in total, summed over committed tasks. Pure except `write_report`.

sources.web.documents   {read, kept, dropped: {reason: count}, quarantined, quarantine_reasons: {reason: count}}
           .bytes       bytes of text read
           .kept_bytes  bytes of text kept
           .tokens      tokens of the kept text
           .counts      events that stages count: name → count
           .sequences   sequences of the first sequence length
           .packing     sequence length → {rows, tokens, padding_tokens, padding_share, documents, split_documents,
                        split_for_padding, pieces, …}
           .steps       name → {seconds, bytes, mb_per_s, documents}
total                   the same for all sources, with the steps that serve several sources
excesses                global stages that dropped more of a source than `max_dropped`: {source, stage, dropped, read,
                        allowed, on_excess, text}
unreadable_files        sources with damaged input files: {source, count, files, text}; files has the first hundred, each as
                        {path, position, error}
warnings                what the run warns of: {kind, source, text, …}; source is null for a warning about none or several. The
                        kinds, with what each is about, are in `plan/warnings.py`
thresholds              source → stage that keeps a share → {threshold: least score that is kept, tie: least keyed hash of a
                        kept document of that score, documents, kept_documents, weight, kept_weight, share, of, from}
contamination           lists that filters searched for: {stage, name, entries, contaminated, clean, undetectable}
measured                source → stage → rule → {option, side, threshold, mode, documents, not_a_number, passed, failed,
                        passed_bytes, failed_bytes, dropped, bins, borderline}: what the rules of filters measured. `passed` and
                        `failed` are documents by this rule alone, `dropped` those of which it is the reason. The threshold is
                        null where it differs by document. `bins` are [low, high, passed, failed], half open, without empty
                        ones. `borderline` has under `kept` and `dropped` {document, key, value, threshold}, nearest first
lengths                 source → {read, kept: bins [low, high, documents, bytes]} of the bytes of texts, or of pages
clusters                stage → {clusters, dropped, sampled, sizes: [low, high, clusters, documents], both bounds included}; the
                        numbers are of a sample of clusters, and the first two estimates, where `sampled` is below 1
tasks                   step → {planned, committed, kind, source, label, seconds, peak_bytes}; rounds of an exchange and merges
                        also {rows, bytes} written
second_attempts         step → {tasks, won}: tasks that had a second attempt because they took much longer than others, and
                        those of them in which it ended first
run                     the command that wrote the report: {datapipe, engine, workers, wall_s, finished}
shards                  {files, bytes, fingerprint, before, taken_down, held_out}: of the snapshot, and the one before it; null
                        before it is published. Of the documents `taken_down`, loaders pad what rows have; all other numbers
                        count them. `held_out`: rows of the validation split
taken                   source → {documents, tokens, sequences, license, homepage, collected, synthetic}: sources whose rows
                        are those of another snapshot
mixture                 shares, tokens and epochs of each source, once there are shards; see `report/mixture_shares.py`
tokenizer               bytes per token, tokens per word, unknown tokens, unused ids; see `tokens/fertility.py`
addition                {part, folder, added_to}: of a snapshot that grew, the last addition. All numbers are of the whole; see
                        `report/joined.py`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from datapipe.ledger.names import REPORT
from datapipe.metrics import Packing, UnreadableFile, Work, counted, rate_mb_per_s, total_by_name, total_counts
from datapipe.plan.compile import EXCHANGES, Plan, Step
from datapipe.plan.counts import (
    ExcessDrops,
    SourceCounts,
    excess_drops,
    shared_work,
    source_counts,
    thresholds,
    unreadable_text,
)
from datapipe.plan.outputs import TokenizerFile
from datapipe.plan.warnings import RunWarning
from datapipe.report.mixture_shares import epoch_warnings, mixture_shares, taken_sources
from datapipe.shards.manifest import Manifest, Snapshot
from datapipe.storage import Root
from datapipe.token_counts import Fertility

_LISTED_FILES = 100
_LEAST_STARTING_S = 0.5

_NO_DISTRIBUTIONS: Mapping[str, Any] = {"measured": {}, "lengths": {}, "clusters": {}}


def summarize(
    name: str,
    plan: Plan,
    sources: Iterable[str],
    status: str,
    problem: str | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    snapshot: Manifest | None = None,
    warnings: Sequence[RunWarning] = (),
    contamination: Sequence[Mapping[str, Any]] = (),
    distributions: Mapping[str, Any] = _NO_DISTRIBUTIONS,
    run: Mapping[str, Any] | None = None,
    before: str | None = None,
) -> dict[str, Any]:
    """The report as plain data.

    Args:
        status: "done", "failed" or "stopped".
        problem: why the run is not done; None when it is.
        tokenizer: the tokenizer's entry, as `tokenizer_report` returns it; None before there is a tokenizer.
        snapshot: of the first sequence length; None before it is published.
        warnings: of the run; those about the epochs of the snapshot are added.
        contamination: an entry for each list that filters searched for, of `inspect.contamination.list_counts`.
        distributions: of `inspect.distributions`.
        run: the command; None where nobody asks for it.
        before: fingerprint of the snapshot before this one.
    """
    counts_by_source = {source: source_counts(plan, source) for source in sources}
    total = _total(list(counts_by_source.values()), plan)
    records = [record for step in plan.steps for record in step.records]
    mixture = mixture_shares(snapshot) if isinstance(snapshot, Snapshot) and snapshot.shards else None
    told = [*warnings, *(epoch_warnings(mixture) if mixture else ())]
    return {
        "name": name,
        "status": status,
        "problem": problem,
        "total": _entry(total) | {"task_seconds": sum(record.metrics.seconds for record in records)},
        "sources": {source: _entry(counts) for source, counts in counts_by_source.items()},
        "taken": taken_sources(snapshot, counts_by_source) if isinstance(snapshot, Snapshot) else {},
        "mixture": mixture,
        "tokenizer": tokenizer,
        "excesses": [_excess(excess) for excess in excess_drops(plan)],
        "unreadable_files": [
            _unreadable(source, counts.unreadable_files)
            for source, counts in counts_by_source.items()
            if counts.unreadable_files
        ],
        "warnings": [warning.to_json() for warning in told],
        "thresholds": thresholds(plan),
        "contamination": list(contamination),
        **distributions,
        "tasks": {step.id: _tasks(step) for step in plan.steps},
        "second_attempts": _second_attempts(plan),
        "slowest_step": slowest(total.work),
        "peak_worker_bytes": max((record.metrics.peak_bytes for record in records), default=0),
        "run": run,
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


def _excess(excess: ExcessDrops) -> dict[str, Any]:
    return {
        "source": excess.source,
        "stage": excess.stage,
        "dropped": excess.dropped,
        "read": excess.read,
        "allowed": excess.allowed,
        "on_excess": excess.on_excess,
        "text": excess.text,
    }


def _unreadable(source: str, files: Sequence[UnreadableFile]) -> dict[str, Any]:
    return {
        "source": source,
        "count": len(files),
        "files": [asdict(file) for file in files[:_LISTED_FILES]],
        "text": unreadable_text(source, files),
    }


def shards_entry(snapshot: Manifest, before: str | None) -> dict[str, Any]:
    """The entry `shards`."""
    files = snapshot.data_files
    return {
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "fingerprint": snapshot.fingerprint,
        "before": before,
        "taken_down": snapshot.num_taken_down,
        "held_out": _held_out(snapshot),
    }


def _held_out(snapshot: Manifest) -> int:
    """The rows of the validation split."""
    shards = snapshot.shards if isinstance(snapshot, Snapshot) else ()
    return sum(shard.sequences for shard in shards if shard.split == "validation")


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
    return counts | _exchanged(step) if step.kind in EXCHANGES else counts


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


def _exchanged(step: Step) -> dict[str, int]:
    """Rows and bytes that one round of an exchange wrote."""
    outputs = [output for record in step.records for files in record.outputs.values() for output in files]
    return {"rows": sum(output.rows for output in outputs), "bytes": sum(output.bytes for output in outputs)}


def _entry(counts: SourceCounts) -> dict[str, Any]:
    document_counts = counts.document_counts
    return {
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
        "packing": {str(length): _packing(packing) for length, packing in counts.packing.items()},
        "counts": dict(sorted(document_counts.counts.items())),
        "steps": {name: _step(work) for name, work in counts.work.items()},
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
    """The name of the work that took most of the workers' time."""
    return max(work, key=lambda name: work[name].seconds, default=None)


_KEYS = {"name", "status", "problem", "total", "sources", "mixture", "tokenizer", "warnings", "tasks", "slowest_step"}
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
        for record in step.records:
            fertility.add(record.metrics.fertility)
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
