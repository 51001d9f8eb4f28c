"""Reports of runs that never were, with any number of sources and rules, and any names."""

import itertools
from collections.abc import Sequence
from typing import Any

from datapipe.kernels.distributions import bin_edges
from datapipe.report.report import Report


def _bins(threshold: float, count: int) -> list[list[float]]:
    """Bins around a threshold, which lies inside one of them."""
    bins = []
    for number in range(500, 500 + count):
        low, high = bin_edges(number)
        bins.append([low, high, (number * 7) % 50 + (low >= threshold), (number * 3) % 40 if low < threshold else 0])
    return bins


def rule(bins: int = 30) -> dict[str, Any]:
    """A rule of `measured`."""
    threshold = bin_edges(500 + bins // 3)[0] * 1.01
    rows = _bins(threshold, bins)
    passed, failed = sum(row[2] for row in rows), sum(row[3] for row in rows)
    nearest = {"document": "web/a.jsonl:0", "key": "0" * 32, "value": threshold, "threshold": threshold}
    facts = {"option": "min_words", "side": "min", "threshold": threshold, "mode": "drop", "documents": passed + failed + 3}
    counts = {"not_a_number": 3, "passed": passed, "failed": failed, "dropped": failed // 2}
    counts |= {"passed_bytes": 9, "failed_bytes": 8}
    return {**facts, **counts, "bins": rows, "borderline": {"kept": [nearest], "dropped": []}}


def _entry(number: int, rules: Sequence[str]) -> dict[str, Any]:
    dropped = {f"filter.some:{name}": 10 + place for place, name in enumerate(rules)}
    kept = 100 + number
    counts = {"kept": kept, "dropped": dropped, "quarantined": 2, "quarantine_reasons": {"read: no JSON": 2}}
    documents = {"read": kept + sum(dropped.values()) + 2, **counts}
    seconds = {"read": 1.5, "filter.some": 3.25, "write documents": 0.5}
    steps = {name: {"seconds": s, "bytes": 1000, "mb_per_s": 1.25, "documents": 7} for name, s in seconds.items()}
    numbers = {"bytes": 90_000, "kept_bytes": 50_000, "tokens": 12_345 + number, "sequences": 30, "packing": {}, "counts": {}}
    return {"documents": documents, **numbers, "steps": steps}


def _fertility(number: int, language: str) -> dict[str, Any]:
    counts = {"documents": 5 + number, "bytes": 5000 + number, "words": 900, "tokens": 1200}
    of_language = {**counts, "bytes_per_token": 4.25, "tokens_per_word": 1.25}
    return {
        **of_language,
        "unknown_tokens": 0,
        "languages": {language: of_language, "de": {**of_language, "bytes": 77, "bytes_per_token": 3.5}},
    }


def grid(*axes: Sequence[str]) -> dict[str, Any]:
    """The grid of a source, of these parts by axis. Every eleventh name has no cell; of every seventh cell nothing is drawn."""
    names = ["/".join(parts) for number, parts in enumerate(itertools.product(*axes)) if number % 11 != 10]
    tokens = {name: 10 ** (number * 7 % 6) * (1 + number % 9) for number, name in enumerate(names)}
    drawn = {name: 0 if number % 7 == 6 else tokens[name] ** 0.5 for number, name in enumerate(names)}
    cells = {
        name: {
            "documents": 1 + tokens[name] // 400,
            "tokens": tokens[name],
            "repeat": 2.5,
            "share": drawn[name] / sum(drawn.values()),
            "epochs": 1.25,
            "max_epochs": 4.0,
            "is_exhausted": number % 5 == 0,
        }
        for number, name in enumerate(names)
    }
    return {"axes": [{"column": f"axis {number}"} for number in range(len(axes))], "cells": cells}


def report(
    sources: Sequence[str] = ("web", "code"), rules: Sequence[str] = ("too_few_words",), language: str = "en", **changes: Any
) -> Report:
    """A report.

    Args:
        changes: entries to replace.
    """
    entries = {name: _entry(number, rules) for number, name in enumerate(sources)}
    total = _entry(0, rules)
    documents = [entry["documents"] for entry in entries.values()]
    total["documents"] = {
        **{name: sum(each[name] for each in documents) for name in ("read", "kept", "quarantined")},
        "dropped": {name: count * len(entries) for name, count in total["documents"]["dropped"].items()},
        "quarantine_reasons": {"read: no JSON": 2 * len(entries)},
    }
    drawn = {name: 1000 * (number + 1) for number, name in enumerate(sources)}
    whole = sum(drawn.values())
    of_source = {"max_epochs": None, "strata": None, "epoch_tokens": 5000}
    schedule = [
        {"start_tokens": n * whole, "stop_tokens": (n + 1) * whole, "tokens": {name: d // (n + 1) for name, d in drawn.items()}}
        for n in range(4)
    ]
    origin = {"license": None, "synthetic": False, "license_field": None, "homepage": None, "collected": None}
    of_map = {"kind": "map", "source": None, "label": "reads"}
    measured = {"filter.some": {name: rule() for name in rules}}
    content = {
        "name": "trial",
        "status": "done",
        "problem": None,
        "total": {**total, "task_seconds": 12.5},
        "sources": entries,
        "taken": {},
        "mixture": {
            "tokens": whole,
            "asked_tokens": None,
            "phases": 1,
            "exhausted": "stop",
            "window": 8,
            "sources": {name: {**of_source, "share": n / whole, "tokens": n, "epochs": n / 5000} for name, n in drawn.items()},
            "schedule": schedule,
        },
        "tokenizer": {
            "vocab_size": 600,
            "eos_token": "</s>",
            "bos_token": None,
            "total": _fertility(0, language),
            "sources": {name: _fertility(number, language) for number, name in enumerate(sources)},
            "unused": {"count": 12, "examples": []},
        },
        **{name: [] for name in ("warnings", "contamination")},
        "thresholds": {},
        "measured": dict.fromkeys(sources, measured),
        "lengths": {name: {"read": [[1, 2, 3, 4], [2, 4, 9, 30]], "kept": [[2, 4, 5, 15]]} for name in sources},
        "clusters": {"dedup.exact": {"clusters": 7, "dropped": 12, "sampled": 1.0, "sizes": [[2, 2, 5, 10], [4, 7, 2, 9]]}},
        "tasks": {name: {"planned": 3, "committed": 3, "seconds": 4.5, "peak_bytes": 1 << 28} | of_map for name in sources},
        "second_attempts": {},
        "peak_worker_bytes": 1 << 28,
        "run": {"datapipe": "0.1.0", "engine": "local", "workers": 2, "wall_s": 6.5, "finished": "2026-11-23T04:00:00+00:00"},
        "shards": {"files": 4, "bytes": 123_456, "fingerprint": "ab" * 16, "before": None, "taken_down": 0, "held_out": 0},
        "provenance": {"sources": dict.fromkeys(sources, origin), "licenses": {}, "synthetic": {}, "cost": None},
    }
    return Report.model_validate(content | changes)
