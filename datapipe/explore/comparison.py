"""Two outputs side by side: documents that only one of them keeps, and why the other does not.

    facts of both  ─▶  one row a document, joined by key  ─▶  only in one, with the other's reason
    reports of both                                       ─▶  numbers of sources, rules side by side

Documents are the same where source, file and position are: two mixtures over the same data.
"""

from collections.abc import Sequence

from datapipe.config.interpolation import parsed_yaml
from datapipe.credentials import masked
from datapipe.explore.database import Database
from datapipe.explore.documents import Inspector
from datapipe.report.distributions import RuleBin
from datapipe.report.records import Entry, Record, Status
from datapipe.report.report import Report
from datapipe.report.snapshot_list import option_changes

NOT_READ = "not read"  # the reason of documents that the other output never read
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


Pair = tuple[float | None, float | None]  # of the first and the second output


class OutputStatus(Record):
    """Numbers of a run that is not done count what it has committed."""

    status: Status
    problem: str | None


class Counts(Record):
    """Of both outputs; None where a run has no such source."""

    read: tuple[int | None, int | None]
    kept: tuple[int | None, int | None]
    tokens: tuple[int | None, int | None]


class OneSided(Record):
    """The documents that one output alone keeps, with a keyed sample of names, by the reason of the
    other: "stage:rule", "quarantined: stage" or `NOT_READ`, most frequent first."""

    documents: int
    reasons: dict[str, int]
    sample: dict[str, tuple[str, ...]]


class Membership(Record):
    both: int
    only_first: OneSided
    only_second: OneSided


class RuleChange(Record):
    """A rule that decides or measures otherwise: thresholds, failing shares of the measured documents, and medians of the
    values. None where there is no such rule, a threshold differs by document, or nothing was measured."""

    source: str
    stage: str
    rule: str
    thresholds: Pair
    failed: Pair
    medians: Pair


class Comparison(Record):
    """Two outputs. `options` are the stages and options of the mixtures that differ, a line each."""

    outputs: tuple[str, str]
    runs: tuple[OutputStatus, ...]
    options: tuple[str, ...]
    sources: dict[str, Counts]
    total: Counts
    documents: Membership
    rules: tuple[RuleChange, ...]


def compare(outputs: tuple[str, str], reports: tuple[Report, Report]) -> Comparison:
    first, second = map(Inspector.open, outputs)
    before, after = reports
    return Comparison(
        outputs=(masked(outputs[0]), masked(outputs[1])),
        runs=tuple(OutputStatus(status=each.status, problem=masked(each.problem or "") or None) for each in reports),
        options=tuple(option_changes(*(parsed_yaml(each.mixture.resolved_yaml()) for each in (first, second)))),
        sources={
            name: _counts(before.sources.get(name), after.sources.get(name)) for name in {**before.sources, **after.sources}
        },
        total=_counts(before.total, after.total),
        documents=membership(first, second),
        rules=tuple(rule_changes(before, after)),
    )


def _counts(first: Entry | None, second: Entry | None) -> Counts:
    both = [(entry.documents.read, entry.documents.kept, entry.tokens) if entry else (None,) * 3 for entry in (first, second)]
    return Counts(**dict(zip(("read", "kept", "tokens"), zip(*both))))


def membership(first: Inspector, second: Inspector, count: int = 3) -> Membership:
    """Which documents only one of two outputs keeps, with names of `count` documents of each reason."""
    database = Database({"a": first.facts, "b": second.facts}, first.limits)

    def only(output: Inspector, own: str, other: str) -> OneSided:
        rows = database.rows(_ONLY.format(own=own, other=other), {"count": count})
        sample = {row["why"]: tuple(output.locator.label(key) for key in row["sample"]) for row in rows}
        reasons = {row["why"]: row["documents"] for row in rows}
        return OneSided(documents=sum(reasons.values()), reasons=reasons, sample=sample)

    both = database.rows(_BOTH)[0]["documents"]
    return Membership(both=both, only_first=only(first, "a", "b"), only_second=only(second, "b", "a"))


def rule_changes(first: Report, second: Report) -> list[RuleChange]:
    """The rules of two reports that measured different values or have different thresholds, the largest change of the failing
    share first. A rule that one of them lacks counts as passed by all."""
    measured = [{(each.source, each.stage, each.name): each.rule for each in report.rules()} for report in (first, second)]
    changes: list[RuleChange] = []
    for source, stage, rule in dict.fromkeys([*measured[0], *measured[1]]):
        before, after = (
            (measured_rule.threshold, measured_rule.failed_share, _median(measured_rule.bins)) if measured_rule else (None,) * 3
            for measured_rule in (rules.get((source, stage, rule)) for rules in measured)
        )
        if before != after:
            about = dict(zip(("thresholds", "failed", "medians"), zip(before, after)))
            changes.append(RuleChange(source=source, stage=stage, rule=rule, **about))
    return sorted(changes, key=lambda change: -abs((change.failed[0] or 0.0) - (change.failed[1] or 0.0)))


def _median(bins: Sequence[RuleBin]) -> float | None:
    counts = [passed + failed for _, _, passed, failed in bins]
    left = sum(counts) / 2
    for (low, high, _, _), count in zip(bins, counts):
        if count and left <= count:
            return low + (high - low) * left / count
        left -= count
    return None
