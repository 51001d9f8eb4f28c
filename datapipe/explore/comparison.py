"""Two outputs side by side: documents that only one of them keeps, and why the other does not.

    facts of both  ─▶  one row a document, joined by key  ─▶  only in one, with the other's reason
    reports of both                                       ─▶  numbers of sources, rules side by side

Documents are the same where source, file and position are: two mixtures over the same data. What does not fit into memory
spills to disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from datapipe.explore.database import Database
from datapipe.explore.output import Output

NOT_READ = "not read"
"""The reason of documents that the other output never read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneSided:
    """Documents that one output keeps and the other does not.

    Attributes:
        documents: how many.
        reasons: why the other does not, "stage:rule", "quarantined: stage" or `NOT_READ` → documents; the most frequent first.
        sample: names of documents, a keyed sample, by reason.
    """

    documents: int
    reasons: Mapping[str, int]
    sample: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """The documents of two outputs.

    Attributes:
        both: documents that both keep.
        only: for the first and the second output, what it alone keeps.
    """

    both: int
    only: tuple[OneSided, OneSided]

    def to_json(self) -> dict[str, Any]:
        return {"both": self.both, "only_first": asdict(self.only[0]), "only_second": asdict(self.only[1])}


def membership(first: Output, second: Output, count: int = 3) -> Membership:
    """Which documents only one of two outputs keeps.

    Args:
        count: documents of each reason in the samples.
    """
    database = Database({"a": first.facts, "b": second.facts}, first.limits)
    [both] = database.rows(_BOTH)
    only = _one_sided(database, "a", "b", first, count), _one_sided(database, "b", "a", second, count)
    return Membership(both=both["documents"], only=only)


_DECIDED = """(
    select key, bool_or(fate = 'kept') as is_kept,
        min(case fate when 'dropped' then stage || ':' || rule when 'quarantined' then 'quarantined: ' || stage end) as reason
    from {0}.facts group by key
) as {0}_decided"""

_BOTH = f"""
select count(*) as documents from {_DECIDED.format("a")} join {_DECIDED.format("b")} using (key)
where a_decided.is_kept and b_decided.is_kept
"""


def _one_sided(database: Database, own: str, other: str, output: Output, count: int) -> OneSided:
    """What one output alone keeps, by the reason that the other has; the sample is keyed."""
    query = (
        f"select coalesce({other}_decided.reason, '{NOT_READ}') as why, count(*) as documents, "
        f"min_by(key, md5(key), {int(count)}) as sample "
        f"from {_DECIDED.format(own)} left join {_DECIDED.format(other)} using (key) "
        f"where {own}_decided.is_kept and not coalesce({other}_decided.is_kept, false) "
        f"group by why order by documents desc, why"
    )
    rows = database.rows(query)
    return OneSided(
        documents=sum(row["documents"] for row in rows),
        reasons={row["why"]: row["documents"] for row in rows},
        sample={row["why"]: tuple(output.locator.locate(key, text=False).label for key in row["sample"]) for row in rows},
    )


# ------------------------------------------------------------------------------------------------ reports side by side


class RuleChange(NamedTuple):
    """What a rule measured in two outputs.

    Attributes:
        thresholds: of the first and the second output; None where it differs by document, or there is no such rule.
        failed: shares of the measured documents that fail the rule; None where there is no such rule.
        medians: of the measured values, within a bin; None where nothing was measured.
    """

    source: str
    stage: str
    rule: str
    thresholds: tuple[float | None, float | None]
    failed: tuple[float | None, float | None]
    medians: tuple[float | None, float | None]


def rule_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[RuleChange]:
    """The rules of two reports that measured different values or have different thresholds, largest change of the failing share
    first. A rule that one of them lacks counts as passed by all."""
    measured = [report.get("measured") or {} for report in (first, second)]
    names = dict.fromkeys(name for entry in measured for name in _rule_names(entry))
    changes = []
    for source, stage, rule in names:
        rules = [entry.get(source, {}).get(stage, {}).get(rule) for entry in measured]
        one, other = (_facts(each) for each in rules)
        if one != other:
            changes.append(RuleChange(source, stage, rule, *zip(one, other)))
    return sorted(changes, key=lambda change: -abs((change.failed[0] or 0.0) - (change.failed[1] or 0.0)))


def _rule_names(measured: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    return ((source, stage, rule) for source, stages in measured.items() for stage, rules in stages.items() for rule in rules)


def _facts(rule: Mapping[str, Any] | None) -> tuple[float | None, float | None, float | None]:
    """Threshold, failing share and median."""
    if rule is None:
        return None, None, None
    counted = rule["passed"] + rule["failed"]
    return rule["threshold"], rule["failed"] / counted if counted else None, _median(rule["bins"])


def _median(bins: Sequence[Sequence[float]]) -> float | None:
    """The median of a histogram, at its place between the edges of its bin."""
    counts = [passed + failed for _, _, passed, failed in bins]
    left = sum(counts) / 2
    for (low, high, _, _), count in zip(bins, counts):
        if count and left <= count:
            return low + (high - low) * left / count
        left -= count
    return None
