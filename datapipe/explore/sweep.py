"""Counts the documents that other thresholds of a filter would keep, from the values that it wrote with `mode: tag`.

    mixture ─▶ sources that tag, the swept rule ─▶ grid of thresholds ─▶ facts of kept documents ─▶ documents and bytes at each

The counts cover the documents that the run kept. A later stage that compares documents has compared all tagged documents; it
might have kept other survivors if the filter had dropped some. A column `STAGE.RULE` holds the value that a rule measured,
`STAGE.rule` the first rule that failed. A document without a value passes every threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import NamedTuple, Self

import numpy as np

from datapipe import catalogue
from datapipe.columns import numbers
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError, suggest
from datapipe.explore.database import Database, quoted, quoted_text
from datapipe.explore.output import Output
from datapipe.stage.base import Filter, Rule
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


def sweep(output: Output, threshold: str, *, source: str = "", thresholds: Sequence[float] = ()) -> Sweep:
    """Counts the documents of an output that other thresholds would keep. Raises UserError.

    Args:
        threshold: "STAGE.OPTION" or "STAGE.RULE".
        source: only this source.
        thresholds: to try, instead of a grid of quantiles of the measured values.
    """
    tagged, dropping = _tagged_sources(output, threshold, source)
    rule, database = tagged[0].rule, output.database
    grid = sorted(set(thresholds)) or _grid(database, tagged)
    sources = [each.tags.swept(database, each.source, each.rule.name, grid, float(each.rule.limit)) for each in tagged]
    return Sweep(
        stage=tagged[0].tags.stage,
        rule=rule.name,
        option=rule.option,
        side=rule.side,
        sources=tuple(sources),
        total=total_of(sources),
        dropping=dropping,
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

    @classmethod
    def beside(cls, rule: Rule, stage: str, rules: Sequence[Rule]) -> Self:
        """The tags for sweeping a rule of a stage beside its others."""
        return cls(stage, rule.side, [other for other in rules if other.name != rule.name], [other.name for other in rules])

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


# ------------------------------------------------------------------------------------------------ sources and rules


class _TaggedSource(NamedTuple):
    """A source whose documents carry the tags of the stage, and the swept rule there."""

    source: str
    rule: Rule
    tags: Tags


def _tagged_sources(output: Output, threshold: str, source: str) -> tuple[list[_TaggedSource], tuple[str, ...]]:
    """The sources that ran the stage in tag mode, with the swept rule, and the names of the sources where it dropped."""
    stage, _, option = threshold.rpartition(".")
    mixture, url = output.mixture, output.root.url
    if threshold in {use.alias for name in mixture.sources for use in mixture.stages_of(name)}:
        raise UserError(f"--sweep {threshold}: expected a threshold behind the stage, as --sweep {threshold}.OPTION")
    named = {name: {use.alias: use for use in mixture.stages_of(name)} for name in output.select_sources(source)}
    uses = {name: stages[stage] for name, stages in named.items() if stage in stages}
    if not uses:
        known = list(dict.fromkeys(alias for stages in named.values() for alias in stages))
        whose = f"source '{source}'" if source else "this run"
        raise UserError(
            f"--sweep {threshold}: {whose} has no stage '{stage or threshold}'.{suggest(stage or threshold, known)} "
            f"Expected STAGE.THRESHOLD with a stage of: {', '.join(known) or '(none)'}"
        )
    built = {name: catalogue.build_stage(use) for name, use in uses.items()}
    filters = {name: stage_object for name, stage_object in built.items() if isinstance(stage_object, Filter)}
    if not filters:
        raise UserError(
            f"--sweep {threshold}: '{stage}' is no filter, so it has no thresholds. Expected a filter of this output"
        )
    swept = {name: _swept_rule(threshold, stage, option, stage_object.rules()) for name, stage_object in filters.items()}
    tagging = [name for name, stage_object in filters.items() if stage_object.mode == "tag"]
    if not tagging:
        raise UserError(_not_tagged(threshold, next(iter(uses.values())), url))
    for name in tagging:
        if not any(step.records for step in output.map_steps(name)[-1:]):
            raise UserError(f"{url}: the run has not cleaned all of '{name}' yet. Complete it with the same command first.")
    tagged = [_TaggedSource(name, swept[name], Tags.beside(swept[name], stage, filters[name].rules())) for name in tagging]
    return tagged, tuple(name for name in filters if name not in tagging)


def _swept_rule(threshold: str, stage: str, option: str, rules: Sequence[Rule]) -> Rule:
    """The rule that has this name, or whose threshold is this option."""
    by_name = [rule for rule in rules if rule.name == option]
    by_option = [rule for rule in rules if option and rule.option == option]
    matching = by_name or [rule for rule in by_option if rule.name != BELOW_SHARE] or by_option
    if not matching:
        known = [name for rule in rules for name in (rule.option, rule.name) if name]
        listed = ", ".join(f"{rule.option} ({rule.name})" if rule.option else rule.name for rule in rules)
        raise UserError(
            f"--sweep {threshold}: {stage} has no threshold '{option}' with its options in the mixture."
            f"{suggest(option, known)} Its thresholds: {listed or '(none)'}"
        )
    if len(matching) > 1:
        names = ", ".join(rule.name for rule in matching)
        raise UserError(f"--sweep {threshold}: '{option}' is the threshold of several rules. Expected one of: {names}")
    rule = matching[0]
    if rule.side == "other":
        sweepable = ", ".join(other.name for other in rules if other.side != "other") or "(none)"
        raise UserError(
            f"--sweep {threshold}: the rule '{rule.name}' compares no value with a threshold. "
            f"Rules of {stage} with a threshold: {sweepable}"
        )
    return rule


def _not_tagged(threshold: str, use: StageUse, output: str) -> str:
    renamed = f", as: {use.alias}" if use.alias != use.name else ""
    return (
        f"--sweep {threshold}: '{use.alias}' dropped the documents that failed, so this output lacks their measured values. "
        f"Set `mode: tag` in the mixture:\n"
        f"    - {use.name}: {{mode: tag{renamed}}}\n"
        f"The stage then keeps every document and writes the value that each rule measured. Run it into another output: "
        f"datapipe run MIXTURE.yaml --output {quote(output + '-tagged')}"
    )


# ------------------------------------------------------------------------------------------------ the grid


def _grid(database: Database, tagged: Sequence[_TaggedSource]) -> list[float]:
    """All measured values, or readable quantiles of them, and the thresholds in force."""
    tags, rule, sources = tagged[0].tags, tagged[0].rule.name, [each.source for each in tagged]
    measured = tags.distinct(database, rule, sources, MAX_DISTINCT)
    if measured is None:
        measured = _readable(tags.quantiles(database, rule, sources, _QUANTILES))
    return sorted({*measured, *(float(each.rule.limit) for each in tagged if math.isfinite(each.rule.limit))})


def _readable(quantiles: Sequence[float]) -> list[float]:
    """The quantiles rounded to the fewest digits that keep them distinct."""
    exact = rounded = set(quantiles)
    for digits in _DIGITS:
        rounded = {float(f"{value:.{digits}g}") for value in exact}
        if len(rounded) == len(exact):
            break
    return sorted(rounded)
