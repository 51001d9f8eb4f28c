"""Counts the documents that other thresholds of a filter would keep, from the values that it wrote with `mode: tag`.

    report ─▶ sources that tag, the swept rule ─▶ grid of thresholds ─▶ facts of kept documents ─▶ documents and bytes at each

The counts cover the documents that the run kept. A later stage that compares documents has compared all tagged documents; it
might have kept other survivors if the filter had dropped some. A column `STAGE.RULE` holds the value that a rule measured,
`STAGE.rule` the first rule that failed. A document without a value passes every threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from datapipe.columns import numbers
from datapipe.errors import UserError, suggest
from datapipe.explore.database import Database, quoted, quoted_text
from datapipe.explore.documents import Inspector
from datapipe.stage.base import Rule
from datapipe.stage.ranking import BELOW_SHARE

MAX_DISTINCT = 16
"""Up to this many distinct values, such as counts of stop words, the grid is the values themselves."""

_QUANTILES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999)
_DIGITS = range(2, 7)


@dataclass(frozen=True, slots=True)
class Count:
    """Documents, and the UTF-8 bytes of their text."""

    documents: int
    bytes: int

    def __add__(self, other: Count) -> Count:
        return Count(self.documents + other.documents, self.bytes + other.bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """The documents that one threshold keeps.

    Attributes:
        alone: they pass this rule.
        together: they pass this rule and the other rules of the stage as they are set.
    """

    threshold: float
    alone: Count
    together: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSweep:
    """The sweep of one source, or the total.

    Attributes:
        limit: the threshold in force; None in a total of sources with different thresholds.
        tagged: the documents that the filter measured.
        kept: in the order of the thresholds.
        unsure: documents counted under `together` that might fail a rule without a measured value.
    """

    name: str
    limit: float | None
    tagged: Count
    kept: tuple[Kept, ...]
    unsure: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A swept threshold.

    Attributes:
        side: "min" or "max", as in `stage.Rule`.
        sources: in the order of the mixture.
        total: the sum of the sources.
        dropping: sources that the sweep leaves out because the stage dropped documents there instead of tagging them.
    """

    stage: str
    rule: str
    option: str
    side: str
    sources: tuple[SourceSweep, ...]
    total: SourceSweep
    dropping: tuple[str, ...] = ()


def sweep(output: Inspector, threshold: str, *, source: str = "", thresholds: Sequence[float] = ()) -> Sweep:
    """Counts the documents of an output that other thresholds would keep. Raises UserError.

    Args:
        threshold: "STAGE.OPTION" or "STAGE.RULE".
        source: only this source.
        thresholds: to try, instead of a grid of quantiles of the measured values.
    """
    rule = _named_rule(output, threshold, source)
    tags, _ = tags_of(output, rule)
    if not tags:
        raise UserError(_not_tagged(output, threshold, rule))
    database, of_source = output.database, {name: output.measured(name)[rule.stage][rule.rule] for name in tags}
    limits = {name: facts["threshold"] for name, facts in of_source.items() if facts["threshold"] is not None}
    grid = sorted(set(thresholds)) or _grid(database, rule, list(tags), limits.values())
    sources = [each.swept(database, name, rule.rule, grid, limits.get(name)) for name, each in tags.items()]
    return Sweep(
        stage=rule.stage,
        rule=rule.rule,
        option=rule.facts["option"],
        side=rule.facts["side"],
        sources=tuple(sources),
        total=total_of(sources),
        dropping=tuple(name for name in rule.sources if name not in tags),
    )


def total_of(sources: Sequence[SourceSweep]) -> SourceSweep:
    """The sum of sources over the same thresholds."""
    limits = {each.limit for each in sources}
    none = Count(0, 0)
    kept = (
        Kept(
            threshold=of_sources[0].threshold,
            alone=sum((each.alone for each in of_sources), none),
            together=sum((each.together for each in of_sources), none),
        )
        for of_sources in zip(*(each.kept for each in sources))
    )
    return SourceSweep(
        name="total",
        limit=limits.pop() if len(limits) == 1 else None,
        tagged=sum((each.tagged for each in sources), none),
        kept=tuple(kept),
        unsure=sum(each.unsure for each in sources),
    )


# ------------------------------------------------------------------------------------------------ tags in SQL


class Tags(NamedTuple):
    """The tags of one filter.

    Attributes:
        stage: its name in the run.
        side: of the swept rule.
        others: rules of the filter that stay as they are. Of one whose side is "other", only the first rule that failed tells
            the result.
        order: names of all its rules, in the order in which the first failed one is found.
    """

    stage: str
    side: str
    others: Sequence[Rule] = ()
    order: Sequence[str] = ()

    def swept(self, database: Database, source: str, rule: str, grid: Sequence[float], limit: float | None) -> SourceSweep:
        """What each threshold of a rule keeps of a source.

        Args:
            grid: thresholds, ascending.
            limit: the one in force.
        """
        passes, is_unsure = self._others()
        is_min, column = self.side == "min", self._column(rule)
        query = (
            f"select case when isnan({column}) then '{'inf' if is_min else '-inf'}' else {column} end as value, bytes, "
            f"({passes})::tinyint as passes, ({passes} and ({is_unsure}))::tinyint as unsure "
            f"from facts where fate = 'kept' and source = $source"
        )
        # between: (num_thresholds + 1, 4) documents and bytes between two thresholds, all and those that pass the other rules
        between, unsure = np.zeros((len(grid) + 1, 4), np.int64), 0
        for batch in database.batches(query, {"source": source}):
            value, size, passed = (numbers(batch.column(name)) for name in ("value", "bytes", "passes"))
            # a value keeps its document at the thresholds up to it (min), or from it on (max)
            index = np.searchsorted(grid, value, "right" if is_min else "left")
            alone = np.column_stack([np.ones_like(size), size])
            for number, weights in enumerate(np.hstack([alone, alone * passed[:, None]]).T):
                between[:, number] += np.bincount(index, weights, len(between)).astype(np.int64)  # exact below 2**53
            unsure += int(numbers(batch.column("unsure")).sum())
        sums = np.cumsum(between[::-1], axis=0)[::-1][1:] if is_min else np.cumsum(between, axis=0)[:-1]
        kept = (
            Kept(threshold=threshold, alone=Count(*counts[:2]), together=Count(*counts[2:]))
            for threshold, counts in zip(grid, sums.tolist())
        )
        total = Count(*between.sum(axis=0)[:2].tolist())
        return SourceSweep(name=source, limit=limit, tagged=total, kept=tuple(kept), unsure=unsure)

    def distinct(self, database: Database, rule: str, sources: Sequence[str], most: int) -> list[float] | None:
        """The values of a rule, ascending; None where there are more than `most`."""
        query = f"select distinct value from {self._values(rule)} order by value limit {most + 1}"
        values = [value for (value,) in database.tuples(query, {"sources": list(sources)})]
        return None if len(values) > most else values

    def quantiles(self, database: Database, rule: str, sources: Sequence[str], ranks: Sequence[float]) -> list[float]:
        """The values of a rule at these ranks, from 0 to 1, ascending."""
        query = (  # a seventh of the time of quantile_disc, which selects once for each rank
            f"with ranked as (select value, row_number() over (order by value) - 1 as rank from {self._values(rule)}), "
            f"wanted as (select distinct floor(unnest($ranks::double[]) * (select max(rank) from ranked)) as rank) "
            f"select value from ranked join wanted using (rank) order by rank"
        )
        return [value for (value,) in database.tuples(query, {"sources": list(sources), "ranks": list(ranks)})]

    def _others(self) -> tuple[str, str]:
        """In SQL, whether a document passes the other rules, and whether it might fail one without a measured value."""
        first, passes, unsure = quoted(f"{self.stage}.rule"), ["true"], ["false"]
        for other in self.others:
            column = self._column(other.name)
            if other.side == "other":
                passes.append(f"{first} is distinct from {quoted_text(other.name)}")
                earlier = ", ".join(map(quoted_text, self.order[: self.order.index(other.name)]))
                unsure += [f"coalesce({first} in ({earlier}), false)"] if earlier else []
            elif other.side == "min":
                passes.append(f"{column} >= '{float(other.limit)!r}'::double")  # NaN is greater than all numbers
            else:
                passes.append(f"({column} <= '{float(other.limit)!r}'::double or isnan({column}))")
        return " and ".join(passes), " or ".join(unsure)

    def _column(self, rule: str) -> str:
        return f"coalesce({quoted(f'{self.stage}.{rule}')}::double, 'nan'::double)"

    def _values(self, rule: str) -> str:
        where = f"fate = 'kept' and source in $sources and isfinite({self._column(rule)})"
        return f"(select {self._column(rule)} as value from facts where {where})"


# ------------------------------------------------------------------------------------------------ rules


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOf:
    """A rule of the filters of some sources, with what the report knows of it."""

    stage: str
    rule: str
    sources: tuple[str, ...]
    facts: Mapping[str, Any]


def rule_of(output: Inspector, stage: str, rule: str, source: str = "") -> RuleOf:
    """A rule. Raises UserError where no source has measured it.

    Args:
        stage: by its name in the run or in the mixture.
        source: only this source.
    """
    found = {
        name: (run_name, rules[rule])
        for name in output.select_sources(source)
        for run_name, rules in output.measured(name).items()
        if stage in (run_name, run_name.partition("@")[0]) and rule in rules
    }
    if not found:
        raise UserError(f"No filter has measured {stage}:{rule} in this output. Choose a rule of api/output.")
    run_name, facts = next(iter(found.values()))
    thresholds = {each.get("threshold") for _, each in found.values()}
    known = facts.get("threshold") if len(thresholds) == 1 else None
    return RuleOf(stage=run_name, rule=rule, sources=tuple(found), facts={**facts, "threshold": known})


def tags_of(output: Inspector, rule: RuleOf) -> tuple[dict[str, Tags], bool]:
    """The tags of a rule's stage, of the sources that have some, and whether they tell which documents pass its other rules:
    where a filter keeps a share, its cut moves with the threshold."""
    measured = {source: output.measured(source)[rule.stage] for source in rule.sources}
    measured = {source: rules for source, rules in measured.items() if rules[rule.rule]["mode"] == "tag"}
    if not measured or f"{rule.stage}.{rule.rule}" not in output.database.columns("facts"):
        return {}, False
    is_certain = rule.rule == BELOW_SHARE or not any(BELOW_SHARE in rules for rules in measured.values())
    return {
        source: Tags(rule.stage, rule.facts["side"], _others(rules, rule) if is_certain else (), list(rules))
        for source, rules in measured.items()
    }, is_certain


def _others(rules: Mapping[str, Mapping[str, Any]], rule: RuleOf) -> list[Rule]:
    """The other rules of the stage that some document fails."""
    replaced = rule.facts.get("option") if rule.rule == BELOW_SHARE else None
    return [
        Rule(name=name, side="other" if facts["threshold"] is None else facts["side"], limit=facts["threshold"] or 0.0)
        for name, facts in rules.items()
        if name not in (rule.rule, BELOW_SHARE) and facts.get("failed") and facts.get("option") != replaced
    ]


def _named_rule(output: Inspector, threshold: str, source: str) -> RuleOf:
    """The rule that "STAGE.RULE" names, or of which "STAGE.OPTION" is the threshold. Raises UserError."""
    rules = [
        (stage, rule, facts)
        for name in output.select_sources(source)
        for stage, rules in output.measured(name).items()
        for rule, facts in rules.items()
    ]
    named = {rule: stage for stage, rule, _ in rules if threshold == f"{stage}.{rule}"}
    by_option = {rule: stage for stage, rule, facts in rules if facts["option"] and threshold == f"{stage}.{facts['option']}"}
    found = named or {rule: stage for rule, stage in by_option.items() if rule != BELOW_SHARE} or by_option
    known = dict.fromkeys(f"{stage}.{facts['option'] or rule}" for stage, rule, facts in rules if facts["side"] != "other")
    listed = f"{suggest(threshold, known)} Expected one of: {', '.join(known) or '(none)'}. {' '.join(output.notes)}".rstrip()
    if not found:
        raise UserError(f"--sweep {threshold}: no filter of this output has measured this threshold.{listed}")
    if len(found) > 1:
        names = ", ".join(f"{stage}.{rule}" for rule, stage in found.items())
        raise UserError(f"--sweep {threshold}: this is the threshold of several rules. Expected one of: {names}")
    [(rule, stage)] = found.items()
    chosen = rule_of(output, stage, rule, source)
    if chosen.facts["side"] == "other":
        raise UserError(f"--sweep {threshold}: the rule '{rule}' compares no value with a threshold.{listed}")
    return chosen


def _not_tagged(output: Inspector, threshold: str, rule: RuleOf) -> str:
    use = output.use_of(rule.sources[0], rule.stage)
    name = rule.stage if use is None else use.name
    renamed = f", as: {rule.stage}" if rule.stage != name else ""
    return (
        f"--sweep {threshold}: '{rule.stage}' dropped the documents that failed, so this output lacks their measured values. "
        f"Set `mode: tag` in the mixture:\n"
        f"    - {name}: {{mode: tag{renamed}}}\n"
        f"The stage then keeps every document and writes the value that each rule measured. Run it into another output: "
        f"datapipe run MIXTURE.yaml --output {quote(output.root.url + '-tagged')}"
    )


# ------------------------------------------------------------------------------------------------ the grid


def _grid(database: Database, rule: RuleOf, sources: Sequence[str], limits: Iterable[float]) -> list[float]:
    """All measured values, or readable quantiles of them, and the thresholds in force."""
    tags = Tags(rule.stage, rule.facts["side"])
    measured = tags.distinct(database, rule.rule, sources, MAX_DISTINCT)
    if measured is None:
        measured = _readable(tags.quantiles(database, rule.rule, sources, _QUANTILES))
    return sorted({*measured, *filter(math.isfinite, limits)})


def _readable(quantiles: Sequence[float]) -> list[float]:
    """The quantiles rounded to the fewest digits that keep them distinct."""
    exact = rounded = set(quantiles)
    for digits in _DIGITS:
        rounded = {float(f"{value:.{digits}g}") for value in exact}
        if len(rounded) == len(exact):
            break
    return sorted(rounded)
