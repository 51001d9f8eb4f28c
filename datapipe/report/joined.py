"""The report of a snapshot that grew: the numbers of all that it was made of, from the report before and that of an addition.

    report of the snapshot before ─┐
    report of the addition         ┴▶ sums, source by source ─▶ report of the new snapshot, with shares and epochs of its own

Documents, bytes, tokens, drops, work, tasks, bins and money add up, and are those of one run that made its decisions in the
same order. What does not add up from reports alone is a bound: clusters count one again that an addition met; of a list that
filters searched for, as many entries are contaminated as in the part where most were; as many ids are unused as in the part
where fewest were. Thresholds are those of the first snapshot, and `run` tells of the addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from datapipe.report.distributions import SHOWN_BORDERLINE
from datapipe.report.mixture_shares import epoch_warnings, mixture_shares
from datapipe.report.report import Addition, MixtureShares, Report, SearchedSet
from datapipe.report.summary import published
from datapipe.shards.manifest import Snapshot
from datapipe.steps.warnings import RunWarning
from datapipe.token_counts import TokenizerFigures

_OF_THE_WHOLE = ("ends_early", "many_epochs", "nothing_to_draw")
"""Kinds of warnings that a mixture's shares and epochs give: only those of the whole count."""


def joined_report(before: Report, added: Report, snapshot: Snapshot, addition: Addition) -> Report:
    """The report of a snapshot, with the provenance of the addition.

    Args:
        before: the report of the snapshot that files were added to.
        added: of the addition.
        snapshot: the new one.
    """
    mixture = mixture_shares(snapshot) if snapshot.shards else None
    numbers = [report.model_dump(mode="json") for report in (before, added)]
    sums = {name: joined(numbers[0][name], numbers[1][name], _SUMS[name]) for name in _SUMS}
    for entry in (sums["total"], *sums["sources"].values()):
        for name in ("dropped", "quarantine_reasons"):
            entry["documents"][name] = dict(sorted(entry["documents"][name].items(), key=lambda item: -item[1]))
    return Report.model_validate(dict(added) | sums).with_(
        name=snapshot.name,
        taken=before.taken,
        mixture=mixture,
        tokenizer=_tokenizer(before.tokenizer, added.tokenizer),
        warnings=_warnings(before, added, mixture),
        thresholds={**added.thresholds, **before.thresholds},
        contamination=_contamination(before.contamination, added.contamination),
        peak_worker_bytes=max(before.peak_worker_bytes, added.peak_worker_bytes),
        shards=published(snapshot, addition.added_to),
        addition=addition,
    )


def joined(one: Any, other: Any, names: int = -1) -> Any:
    """Two values of one form: numbers are added, records and bins joined, all else is that of the first which has it.

    Args:
        names: levels of names, of sources, steps and rules, above the records in which the keys of `_BOUNDS` do not add up;
            below zero where there are none.
    """
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Mapping):
        bounds = {} if names else _BOUNDS
        return {
            key: bounds[key](one.get(key), other.get(key)) if key in bounds else joined(one.get(key), other.get(key), names - 1)
            for key in dict.fromkeys([*one, *other])
        }
    if isinstance(one, list):
        return _bins(one, other)
    return one if isinstance(one, str) else round(one + other, 9)


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


def _borderline(before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """On each side of a threshold the documents nearest to it."""

    def distance(each: Mapping[str, Any]) -> tuple[float, str]:
        return abs(each["value"] - each["threshold"]), each["key"]

    return {side: sorted([*before[side], *added[side]], key=distance)[:SHOWN_BORDERLINE] for side in ("kept", "dropped")}


_SUMS = {"total": -1, "sources": -1, "measured": 3, "lengths": -1, "clusters": 1, "tasks": 1, "second_attempts": -1}
"""Entries that are joined, with the levels of names in each."""

_BOUNDS: Mapping[str, Callable[[Any, Any], Any]] = {
    "peak_bytes": max,
    "sampled": min,
    "threshold": lambda before, added: before,
    "borderline": _borderline,
    "languages": lambda before, added: None if before is None or added is None else joined(before, added),
}
"""What does not add up in a record. `languages` is None where one part has more than are counted."""


def _tokenizer(before: TokenizerFigures | None, added: TokenizerFigures | None) -> TokenizerFigures | None:
    if before is None or added is None:
        return None
    first, second = before.model_dump(), added.model_dump()
    sums = {name: joined(first[name], second[name], level) for name, level in (("total", 0), ("sources", 1))}
    unused = [figures.unused for figures in (before, added) if figures.unused is not None]
    least = min(unused, key=lambda each: each.count, default=None)
    return TokenizerFigures.model_validate({**first, **sums, "unused": least})


def _warnings(before: Report, added: Report, mixture: MixtureShares | None) -> tuple[RunWarning, ...]:
    """The warnings of both, each once, and those about the epochs of the whole."""
    warnings = [warning for warning in (*before.warnings, *added.warnings) if warning.kind not in _OF_THE_WHOLE]
    warnings += epoch_warnings(mixture) if mixture else ()
    return tuple(warning for number, warning in enumerate(warnings) if warning not in warnings[:number])


def _contamination(before: Iterable[SearchedSet], added: Iterable[SearchedSet]) -> tuple[SearchedSet, ...]:
    """An entry for each list: that with more contaminated items."""
    entries: dict[tuple[str, str], SearchedSet] = {}
    for entry in (*before, *added):
        known = entries.setdefault((entry.stage, entry.name), entry)
        if entry.contaminated > known.contaminated:
            entries[entry.stage, entry.name] = entry
    return tuple(entries.values())
