"""Two outputs side by side: documents that only one of them keeps, and why the other does not.

    facts of both  ─▶  one row a document, joined by key  ─▶  only in one, with the other's reason
    reports of both                                       ─▶  numbers of sources, rules side by side

Documents are the same where source, file and position are: two mixtures over the same data. What does not fit into memory
spills to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipe.config.interpolation import parsed_yaml
from datapipe.credentials import masked
from datapipe.explore.database import Database
from datapipe.explore.documents import Inspector
from datapipe.report.report import Entry, MeasuredRule, Report, RuleBin
from datapipe.report.snapshot_list import option_changes

NOT_READ = "not read"
"""The reason of documents that the other output never read."""


_BOTH = """
select count(*) as documents from a.facts join b.facts using (key) where a.facts.fate = 'kept' and b.facts.fate = 'kept'
"""

_ONLY = f"""
select case other.fate when 'dropped' then other.stage || ':' || other.rule
    when 'quarantined' then 'quarantined: ' || other.stage else '{NOT_READ}' end as why,
    count(*) as documents, min_by(own.key, md5(own.key), $count) as sample
from {{own}}.facts as own left join {{other}}.facts as other using (key)
where own.fate = 'kept' and other.fate is distinct from 'kept' group by why order by documents desc, why
"""


def compare(outputs: Sequence[str], reports: Sequence[Report]) -> dict[str, Any]:
    """Two outputs as plain data.

    outputs     of both, without credentials
    runs        {status, problem} of both: numbers of a run that is not done count what it has committed
    options     the stages and options of the mixtures that differ, a line each
    sources     name → {read, kept, tokens}: [first, second], null where a run has no such source
    documents   as `membership` returns them
    rules       as `rule_changes` returns them
    """
    first, second = map(Inspector.open, outputs)
    names = dict.fromkeys(name for report in reports for name in report.sources)
    return {
        "outputs": [masked(output) for output in outputs],
        "runs": [{"status": report.status, "problem": masked(report.problem or "") or None} for report in reports],
        "options": option_changes(*(parsed_yaml(each.mixture.resolved_yaml()) for each in (first, second))),
        "sources": {name: _numbers([report.sources.get(name) for report in reports]) for name in names},
        "total": _numbers([report.total for report in reports]),
        "documents": membership(first, second),
        "rules": rule_changes(*reports),
    }


def _numbers(entries: Sequence[Entry | None]) -> dict[str, list[int | None]]:
    documents = [None if entry is None else entry.documents for entry in entries]
    counts = {name: [None if each is None else getattr(each, name) for each in documents] for name in ("read", "kept")}
    return {**counts, "tokens": [None if entry is None else entry.tokens for entry in entries]}


def membership(first: Inspector, second: Inspector, count: int = 3) -> dict[str, Any]:
    """Which documents only one of two outputs keeps, as plain data.

    both                   documents that both keep
    only_first, only_second
                           what one alone keeps: {documents, reasons, sample}; reasons: why the other does not, "stage:rule",
                           "quarantined: stage" or `NOT_READ` → documents, the most frequent first; sample: names of documents,
                           a keyed sample, by reason

    Args:
        count: documents of each reason in the samples.
    """
    database = Database({"a": first.facts, "b": second.facts}, first.limits)
    found: dict[str, Any] = {"both": database.rows(_BOTH)[0]["documents"]}
    for name, output, own, other in (("only_first", first, "a", "b"), ("only_second", second, "b", "a")):
        rows = database.rows(_ONLY.format(own=own, other=other), {"count": count})
        sample = {row["why"]: [output.locator.label(key) for key in row["sample"]] for row in rows}
        reasons = {row["why"]: row["documents"] for row in rows}
        found[name] = {"documents": sum(reasons.values()), "reasons": reasons, "sample": sample}
    return found


# ------------------------------------------------------------------------------------------------ reports side by side


def rule_changes(first: Report, second: Report) -> list[dict[str, Any]]:
    """The rules of two reports that measured different values or have different thresholds, as plain data, the largest change
    of the failing share first. A rule that one of them lacks counts as passed by all.

    source, stage, rule
    thresholds  of the first and the second output; None where it differs by document, or there is no such rule
    failed      shares of the measured documents that fail the rule; None where there is no such rule
    medians     of the measured values, within a bin; None where nothing was measured
    """
    measured = [{(rule.source, rule.stage, rule.name): rule for rule in report.rules()} for report in (first, second)]
    changes = []
    for name in dict.fromkeys([*measured[0], *measured[1]]):
        one, other = (_facts(rules.get(name)) for rules in measured)
        if one != other:
            about = dict(zip(("thresholds", "failed", "medians"), zip(one, other)))
            changes.append({**dict(zip(("source", "stage", "rule"), name)), **about})
    return sorted(changes, key=lambda change: -abs((change["failed"][0] or 0.0) - (change["failed"][1] or 0.0)))


def _facts(rule: MeasuredRule | None) -> tuple[float | None, float | None, float | None]:
    """Threshold, failing share and median."""
    return (None, None, None) if rule is None else (rule.rule.threshold, rule.rule.failed_share, _median(rule.rule.bins))


def _median(bins: Sequence[RuleBin]) -> float | None:
    """The median of a histogram, at its place between the edges of its bin."""
    counts = [passed + failed for _, _, passed, failed in bins]
    left = sum(counts) / 2
    for (low, high, _, _), count in zip(bins, counts):
        if count and left <= count:
            return low + (high - low) * left / count
        left -= count
    return None
