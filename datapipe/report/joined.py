"""The report of a snapshot that grew: the numbers of all that it was made of, from the report before and that of an addition.

    report of the snapshot before ─┐
    report of the addition         ┴▶ sums, source by source ─▶ report of the new snapshot, with shares and epochs of its own

Documents, bytes, tokens, drops, work, tasks, bins and money add up, and are those of one run that made its decisions in the
same order. What does not add up from reports alone is a bound: clusters count one again that an addition met; of a list that
filters searched for, as many entries are contaminated as in the part where most were; as many ids are unused as in the part
where fewest were. Thresholds are those of the first snapshot, and `run` tells of the addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datapipe.report.distributions import SHOWN_BORDERLINE
from datapipe.report.mixture_shares import epoch_warnings, mixture_shares
from datapipe.report.summary import shards_entry, with_rates
from datapipe.shards.manifest import Snapshot

Report = Mapping[str, Any]

_OF_THE_WHOLE = ("ends_early", "many_epochs", "nothing_to_draw")
"""Kinds of warnings that a mixture's shares and epochs give: only those of the whole count."""

_NEAREST = 100


def joined_report(before: Report, added: Report, snapshot: Snapshot, addition: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a snapshot, without the entry `provenance`.

    Args:
        before: the report of the snapshot that files were added to.
        added: of the addition.
        snapshot: the new one.
        addition: the entry `addition`.
    """
    mixture = mixture_shares(snapshot) if snapshot.shards else None
    total = _entry(before["total"], added["total"])
    return {
        **added,
        "name": snapshot.name,
        "total": total,
        "sources": _by_name(before["sources"], added["sources"], _entry),
        "taken": before["taken"],
        "mixture": mixture,
        "tokenizer": _tokenizer(before["tokenizer"], added["tokenizer"]),
        "excesses": [*before["excesses"], *added["excesses"]],
        "unreadable_files": _unreadable(before["unreadable_files"], added["unreadable_files"]),
        "warnings": _warnings(before, added, mixture),
        "thresholds": {**added["thresholds"], **before["thresholds"]},
        "contamination": _contamination(before["contamination"], added["contamination"]),
        "measured": _by_name(before["measured"], added["measured"], _measured),
        "lengths": _by_name(before["lengths"], added["lengths"], lambda one, other: _by_name(one, other, _bins)),
        "clusters": _by_name(before["clusters"], added["clusters"], _clusters),
        "tasks": _by_name(before["tasks"], added["tasks"], _task),
        "second_attempts": _by_name(before["second_attempts"], added["second_attempts"], _summed),
        "slowest_step": max(total["steps"], key=lambda name: total["steps"][name]["seconds"], default=None),
        "peak_worker_bytes": max(before["peak_worker_bytes"], added["peak_worker_bytes"]),
        "shards": shards_entry(snapshot, addition["added_to"]),
        "addition": dict(addition),
    }


def _by_name(before: Mapping[str, Any], added: Mapping[str, Any], join: Any) -> dict[str, Any]:
    """Entries by name: joined where both have one."""
    return {
        name: join(before[name], added[name]) if name in before and name in added else before.get(name, added.get(name))
        for name in dict.fromkeys([*before, *added])
    }


def _summed(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of the numbers in two records of one form, at any depth; all else is that of the first which has it."""

    def joined(one: Any, other: Any) -> Any:
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            return _summed(one, other)
        numbers = [value for value in (one, other) if isinstance(value, (int, float)) and not isinstance(value, bool)]
        return sum(numbers) if len(numbers) == 2 else one if one is not None else other

    return _by_name(before, added, joined)


def _entry(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """What `summary` tells of a source, or of all."""
    entry = _summed(before, added)
    for name in ("dropped", "quarantine_reasons"):
        reasons = entry["documents"][name]
        entry["documents"][name] = dict(sorted(reasons.items(), key=lambda item: -item[1]))
    return with_rates(entry)


def _tokenizer(before: Mapping[str, Any] | None, added: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if before is None or added is None:
        return None
    unused = [entry["unused"] for entry in (before, added) if entry["unused"] is not None]
    return {
        **before,
        "total": _fertility(before["total"], added["total"]),
        "sources": _by_name(before["sources"], added["sources"], _fertility),
        "unused": min(unused, key=lambda entry: entry["count"], default=None),
    }


def _fertility(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of tokens, with their ratios, of all documents and by language; none by language where one has none."""
    entry = _summed(before, added)
    if "languages" in entry:
        each = before["languages"], added["languages"]
        entry["languages"] = None if None in each else _by_name(*each, _fertility)
    entry["bytes_per_token"] = round(entry["bytes"] / entry["tokens"], 4) if entry["tokens"] else None
    entry["tokens_per_word"] = round(entry["tokens"] / entry["words"], 4) if entry["words"] else None
    return entry


def _unreadable(before: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One entry for each source, with the texts of both."""
    entries: dict[str, dict[str, Any]] = {}
    for entry in (*before, *added):
        known = entries.setdefault(entry["source"], {**entry, "count": 0, "files": [], "text": ""})
        known["count"] += entry["count"]
        known["files"] = [*known["files"], *entry["files"]][:_NEAREST]
        known["text"] = f"{known['text']} {entry['text']}".strip()
    return list(entries.values())


def _warnings(before: Report, added: Report, mixture: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The warnings of both, each once, and those about the epochs of the whole."""
    told = [warning for warning in (*before["warnings"], *added["warnings"]) if warning["kind"] not in _OF_THE_WHOLE]
    told += [warning.to_json() for warning in (epoch_warnings(mixture) if mixture else ())]
    return [warning for number, warning in enumerate(told) if warning not in told[:number]]


def _contamination(before: Iterable[Mapping[str, Any]], added: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """An entry for each list: that with more contaminated items."""
    entries: dict[tuple[str, str], Mapping[str, Any]] = {}
    for entry in (*before, *added):
        known = entries.setdefault((entry["stage"], entry["name"]), entry)
        if entry["contaminated"] > known["contaminated"]:
            entries[entry["stage"], entry["name"]] = entry
    return list(entries.values())


def _measured(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Stage → rule → what it measured."""
    return _by_name(before, added, lambda one, other: _by_name(one, other, _rule))


def _rule(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    rule = _summed(before, added) | {"threshold": before["threshold"], "bins": _bins(before["bins"], added["bins"])}
    rule["borderline"] = {
        side: sorted(
            [*before["borderline"][side], *added["borderline"][side]],
            key=lambda one: (abs(one["value"] - one["threshold"]), one["key"]),
        )[:SHOWN_BORDERLINE]
        for side in ("kept", "dropped")
    }
    return rule


def _bins(before: Sequence[Sequence[float]], added: Sequence[Sequence[float]]) -> list[list[float]]:
    """Bins [low, high, counts…]. The bounds are those of one grid, whose neighbours a report may have joined: a bin inside of
    another adds to it."""
    joined: list[list[float]] = []
    for low, high, *counts in sorted((*before, *added), key=lambda one: (one[0], -one[1])):
        if joined and joined[-1][0] <= low and high <= joined[-1][1]:
            joined[-1][2:] = [known + count for known, count in zip(joined[-1][2:], counts)]
        else:
            joined.append([low, high, *counts])
    return joined


def _clusters(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    joined = _summed(before, added)
    return joined | {"sampled": min(before["sampled"], added["sampled"]), "sizes": _bins(before["sizes"], added["sizes"])}


def _task(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    joined = _summed(before, added)
    return joined | {"seconds": round(joined["seconds"], 6), "peak_bytes": max(before["peak_bytes"], added["peak_bytes"])}
