"""Counts the documents that other thresholds of a filter would keep, from the values that it wrote with `mode: tag`.

    report ─▶ sources that tag, the swept rule ─▶ grid of thresholds ─▶ facts of kept documents ─▶ documents and bytes at each
           └▶ for the page, of a rule without tags: the histogram ─▶ documents at the bounds of its bins

The counts cover the documents that the run kept. A later stage that compares documents has compared all tagged documents; it
might have kept other survivors if the filter had dropped some. A column `STAGE.RULE` holds the value that a rule measured,
`STAGE.rule` the first rule that failed. A document without a value passes every threshold.

The command sweeps quantiles, or the thresholds that it is given. The page sweeps up to
`MOST_POINTS` numbers that the option takes. A bin holds the values from one bound to below the
other, so the greatest threshold that drops the bin above is the number just below its bound.
"""

import json
import math
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import numpy as np
from pydantic import ValidationError, create_model

from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.dataclass import dataclass
from datapipe.errors import DatapipeError, UserError, suggest
from datapipe.explore.database import Database, quoted, quoted_text
from datapipe.explore.documents import Inspector
from datapipe.report.distributions import Rule
from datapipe.stage.base import BELOW_SHARE

MAX_DISTINCT = 16
"""Up to this many distinct values, such as counts of stop words, the grid is the values themselves."""

_QUANTILES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999)
MOST_POINTS = 2_000

_BY_TAGS = "Of the documents that this run kept. A later stage that compares documents may keep others."
_BY_HISTOGRAM = (
    "By this rule alone, from the histogram of the report: other rules may drop some of these. `mode: tag` gives exact counts."
)

Tags = Mapping[str, tuple[str, str]]
"""By source, in SQL: whether a document passes the other rules of the stage, and whether that is unsure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleOf:
    """A rule of the filters of some sources: what the report knows of it, by source, and the same
    of the first source, with threshold None where those of the sources differ."""

    stage: str
    rule: str
    of_sources: Mapping[str, Rule]
    facts: Rule

    @property
    def tagging(self) -> tuple[str, ...]:
        return tuple(source for source, facts in self.of_sources.items() if facts.mode == "tag")


def sweep(output: Inspector, threshold: str, *, source: str = "", thresholds: Sequence[float] = ()) -> dict[str, Any]:
    """Counts the documents of an output that other thresholds would keep, as plain data. Raises UserError.

    stage, rule   that are swept
    option, side  of the rule, as the report has them: the side is "min" or "max"
    sources       in the order of the mixture, as `counted` returns them, each with `limit`: the threshold in force
    total         the sum of the sources; its limit is None where theirs differ
    dropping      sources that are left out because the stage dropped documents there instead of tagging them

    Args:
        threshold: "STAGE.OPTION" or "STAGE.RULE".
        source: only this source.
        thresholds: to try, instead of a grid of quantiles of the measured values.
    """
    rule = _named_rule(output, threshold, source)
    tags, _ = tags_of(output, rule)
    if not tags:
        raise UserError(_not_tagged(output, threshold, rule))
    limits = {name: rule.of_sources[name].threshold for name in tags}
    in_force = {limit for limit in limits.values() if limit is not None}
    grid = set(thresholds)
    if not grid:
        values, is_all = tagged_values(output.database, rule, list(tags), MAX_DISTINCT, _QUANTILES)
        grid = {*(values if is_all else _readable(values)), *filter(math.isfinite, in_force)}
    *sources, total = counted(output.database, rule, tags, sorted(grid))
    return {
        "stage": rule.stage,
        "rule": rule.rule,
        "option": rule.facts.option,
        "side": rule.facts.side,
        "sources": [{**each, "limit": limits[each["name"]]} for each in sources],
        "total": {**total, "limit": min(in_force) if len(set(limits.values())) == len(in_force) == 1 else None},
        "dropping": [name for name in rule.of_sources if name not in tags],
    }


def _readable(quantiles: Sequence[float]) -> set[float]:
    exact = rounded = set(quantiles)
    for digits in range(2, 7):
        rounded = {float(f"{value:.{digits}g}") for value in exact}
        if len(rounded) == len(exact):
            break
    return rounded


_COUNTS = """
with thresholds as (select unnest($grid::double[]) as threshold),
measured as (
    select source, bytes, case when isnan({column}) then $always else {column} end as value,
        case source {passes} end as passes, case source {unsure} end as unsure
    from facts where fate = 'kept' and source in $sources
),
edges as (
    select source, threshold as edge, count(*) as documents, sum(bytes) as bytes, count(*) filter (passes) as passing,
        coalesce(sum(bytes) filter (passes), 0) as passing_bytes, count(*) filter (passes and unsure) as unsure
    from measured asof join thresholds on value {compared} threshold group by all
)
select source, threshold, {{'documents': sum(documents), 'bytes': sum(bytes)}} as alone,
    {{'documents': sum(passing), 'bytes': sum(passing_bytes)}} as together, sum(unsure) as unsure
from thresholds join edges on edge {compared} threshold group by grouping sets ((source, threshold), (threshold))
"""
"""An edge is the last threshold that keeps a document, so a threshold keeps the documents at its edge and at those beyond."""

_VALUES = "(select {0} as value from facts where fate = 'kept' and source in $sources and isfinite({0}))"
_AT_RANKS = """
with ranked as (select value, row_number() over (order by value) - 1 as rank from {values}),
wanted as (select distinct floor(unnest($ranks::double[]) * (select max(rank) from ranked)) as rank)
select value from ranked join wanted using (rank) order by rank
"""
"""A seventh of the time of quantile_disc, which selects once for each rank."""


def counted(database: Database, rule: RuleOf, tags: Tags, grid: Sequence[float]) -> list[dict[str, Any]]:
    """What each threshold of a grid, ascending, keeps of each source, and of all of them at the end.

    name    of the source, or "total"
    tagged  {documents, bytes} that the filter measured
    kept    {threshold, alone, together} in the order of the grid, both {documents, bytes}: alone, documents pass the rule;
            together, they pass the rule and the other rules of the stage as they are set
    unsure  documents counted under `together` that might fail a rule without a measured value
    """
    is_min = rule.facts.side == "min"
    passes, unsure = (" ".join(f"when {quoted_text(name)} then {sql[each]}" for name, sql in tags.items()) for each in (0, 1))
    compared, all_pass = (">=", -math.inf) if is_min else ("<=", math.inf)
    query = _COUNTS.format(column=_column(rule.stage, rule.rule), passes=passes, unsure=unsure, compared=compared)
    options = {"grid": sorted({all_pass, *grid}), "always": -all_pass, "sources": list(tags)}
    none = {"documents": 0, "bytes": 0}
    counts = {(row["source"], row["threshold"]): row for row in database.rows(query, options)}
    listed = []
    for source in (*tags, None):
        tagged, *kept = (
            counts.get((source, threshold), {"threshold": threshold, "alone": none, "together": none, "unsure": 0})
            for threshold in (all_pass, *grid)
        )
        rows = [{name: row[name] for name in ("threshold", "alone", "together")} for row in kept]
        listed.append({"name": source or "total", "tagged": tagged["alone"], "kept": rows, "unsure": tagged["unsure"]})
    return listed


def tagged_values(
    database: Database, rule: RuleOf, sources: Sequence[str], most: int, ranks: Sequence[float]
) -> tuple[list[float], bool]:
    """The values of a rule, ascending, or more than `most` at some ranks; whether these are all."""
    values, options = _VALUES.format(_column(rule.stage, rule.rule)), {"sources": list(sources)}
    rows = database.rows(f"select distinct value from {values} order by value limit {most + 1}", options)
    is_all = len(rows) <= most
    if not is_all:
        rows = database.rows(_AT_RANKS.format(values=values), {**options, "ranks": list(ranks)})
    return [row["value"] for row in rows], is_all


def _column(stage: str, rule: str) -> str:
    return f"coalesce({quoted(f'{stage}.{rule}')}::double, 'nan'::double)"


def rule_of(output: Inspector, stage: str, rule: str, source: str = "") -> RuleOf:
    """A rule of one source, or of all for "". Raises UserError where none has measured it."""
    matching = [
        each for each in output.rules(source) if each.name == rule and stage in (each.stage, each.stage.partition("@")[0])
    ]
    if not matching:
        raise UserError(f"No filter has measured {stage}:{rule} in this output. Choose a rule of api/output.")
    first = matching[0].rule
    has_one = len({each.rule.threshold for each in matching}) == 1
    facts = first if has_one else first.model_copy(update={"threshold": None})
    return RuleOf(stage=matching[0].stage, rule=rule, of_sources={each.source: each.rule for each in matching}, facts=facts)


def tags_of(output: Inspector, rule: RuleOf) -> tuple[Tags, bool]:
    """The tags of a rule's stage, by source, and whether they decide which documents pass
    its other rules: where a filter keeps a share, its cut moves with the threshold."""
    columns = [row["column_name"] for row in output.database.rows("describe facts")]
    if not rule.tagging or f"{rule.stage}.{rule.rule}" not in columns:
        return {}, False
    measured = {
        source: {each.name: each.rule for each in output.rules(source) if each.stage == rule.stage} for source in rule.tagging
    }
    is_certain = rule.rule == BELOW_SHARE or not any(BELOW_SHARE in rules for rules in measured.values())
    return {source: _others(rules, rule) if is_certain else ("true", "false") for source, rules in measured.items()}, is_certain


def _others(rules: Mapping[str, Rule], rule: RuleOf) -> tuple[str, str]:
    """In SQL, whether a document passes the other rules of the stage, and whether it might fail one without a measured value:
    of a rule without a threshold, only the first rule that failed is known."""
    first, passes, unsure = quoted(f"{rule.stage}.rule"), ["true"], ["false"]
    replaced = rule.facts.option if rule.rule == BELOW_SHARE else None
    for index, (name, facts) in enumerate(rules.items()):
        if name in (rule.rule, BELOW_SHARE) or not facts.failed or facts.option == replaced:
            continue
        column, limit = _column(rule.stage, name), facts.threshold
        if limit is None or facts.side == "other":
            passes.append(f"{first} is distinct from {quoted_text(name)}")
            earlier = ", ".join(map(quoted_text, list(rules)[:index]))
            unsure += [f"coalesce({first} in ({earlier}), false)"] if earlier else []
        elif facts.side == "min":
            passes.append(f"{column} >= '{float(limit)!r}'::double")  # NaN is greater than all numbers
        else:
            passes.append(f"({column} <= '{float(limit)!r}'::double or isnan({column}))")
    return " and ".join(passes), " or ".join(unsure)


def _named_rule(output: Inspector, threshold: str, source: str) -> RuleOf:
    """The rule that "STAGE.RULE" names, or of which "STAGE.OPTION" is the threshold. Raises UserError."""
    rules = [(each.stage, each.name, each.rule) for each in output.rules(source)]
    named = {rule: stage for stage, rule, _ in rules if threshold == f"{stage}.{rule}"}
    by_option = {rule: stage for stage, rule, facts in rules if facts.option and threshold == f"{stage}.{facts.option}"}
    candidates = named or {rule: stage for rule, stage in by_option.items() if rule != BELOW_SHARE} or by_option
    known = dict.fromkeys(f"{stage}.{facts.option or rule}" for stage, rule, facts in rules if facts.side != "other")
    listed = f"{suggest(threshold, known)} Expected one of: {', '.join(known) or '(none)'}. {' '.join(output.notes)}".rstrip()
    if not candidates:
        raise UserError(f"--sweep {threshold}: no filter of this output has measured this threshold.{listed}")
    if len(candidates) > 1:
        names = ", ".join(f"{stage}.{rule}" for rule, stage in candidates.items())
        raise UserError(f"--sweep {threshold}: this is the threshold of several rules. Expected one of: {names}")
    [(rule, stage)] = candidates.items()
    chosen = rule_of(output, stage, rule, source)
    if chosen.facts.side == "other":
        raise UserError(f"--sweep {threshold}: the rule '{rule}' compares no value with a threshold.{listed}")
    return chosen


def _not_tagged(output: Inspector, threshold: str, rule: RuleOf) -> str:
    use = output.use_of(next(iter(rule.of_sources)), rule.stage)
    name = rule.stage if use is None else use.name
    renamed = f", as: {rule.stage}" if rule.stage != name else ""
    return (
        f"--sweep {threshold}: '{rule.stage}' dropped the documents that failed, so this output lacks their measured values. "
        f"Set `mode: tag` in the mixture:\n"
        f"    - {name}: {{mode: tag{renamed}}}\n"
        f"The stage then keeps every document and writes the value that each rule measured. Run it into another output: "
        f"datapipe run MIXTURE.yaml --output {quote(output.root.url + '-tagged')}"
    )


class Accepted:
    """Which thresholds an option of a stage takes; any number where there is no such option."""

    def __init__(self, use: StageUse | None, option: str) -> None:
        try:
            field = None if use is None else catalogue.stage_class(use.name).model_fields.get(option)
        except DatapipeError:
            field = None
        threshold: Any = None if field is None else (field.annotation, field)
        self.model = None if field is None else create_model("Threshold", threshold=threshold)
        self.is_whole = not any(map(self.takes, (-0.5, 0.5, 1.5, 1000.5)))

    def takes(self, threshold: float) -> bool:
        if not math.isfinite(threshold) or self.model is None:
            return math.isfinite(threshold)
        number = int(threshold) if float(threshold).is_integer() else threshold  # as the page writes it
        try:
            self.model.model_validate_json(json.dumps({"threshold": number}), strict=True)
        except ValidationError:
            return False
        return True

    def of_value(self, value: float, is_min: bool) -> float:
        """The threshold next to a value, inwards where the option takes whole numbers alone."""
        return value if not self.is_whole else math.ceil(value) if is_min else math.floor(value)

    def of_bin(self, low: float, high: float, is_min: bool) -> float:
        """The threshold that all values of a bin pass, and as few others as possible."""
        if is_min:
            return low if high > 0 else math.nextafter(low, math.inf)
        return self.of_value(math.nextafter(high, -math.inf) if high > 0 else high, is_min)


def swept_tags(output: Inspector, rule: RuleOf, accepted: Accepted) -> dict[str, Any] | None:
    """Up to `MOST_POINTS` thresholds over the tags of a rule in the kept documents of its sources, with their total: all
    values, or quantiles of them, and the one in force. None where there are no tags."""
    tags, is_certain = tags_of(output, rule)
    ranks, in_force = np.linspace(0, 1, MOST_POINTS - 1).tolist(), rule.facts.threshold
    values = tagged_values(output.database, rule, list(tags), MOST_POINTS, ranks)[0] if tags else []
    if not values:
        return None
    bounds = {accepted.of_value(value, rule.facts.side == "min") for value in values}
    grid = sorted(filter(accepted.takes, bounds | ({in_force} if in_force is not None else set())))
    total = counted(output.database, rule, tags, grid)[-1]
    is_certain &= not total["unsure"]
    points = [
        {"threshold": each["threshold"], **each["alone"], "together": each["together"]["documents"] if is_certain else None}
        for each in total["kept"]
    ]
    return {"exact": True, "note": _BY_TAGS, "points": points, "total": total["tagged"]} if grid else None


def swept_histograms(rule: RuleOf, accepted: Accepted) -> dict[str, Any]:
    is_min, in_force = rule.facts.side == "min", rule.facts.threshold
    entries = list(rule.of_sources.values())
    bins = [(accepted.of_bin(low, high, is_min), good + bad) for entry in entries for low, high, good, bad in entry.bins]
    without = sum(entry.not_a_number for entry in entries)
    bounds = sorted({bound for bound, _ in bins if accepted.takes(bound)})
    points = {
        bound: without + sum(count for edge, count in bins if (edge >= bound if is_min else edge <= bound))
        for bound in bounds[:: max(1, len(bounds) // MOST_POINTS)]
    }
    if in_force is not None:
        points[in_force] = without + sum(entry.passed for entry in entries)
    unknown = {"bytes": None, "tokens": None, "together": None}
    listed = [{"threshold": bound, "documents": count, **unknown} for bound, count in sorted(points.items())]
    total = {"documents": sum(entry.documents for entry in entries), "bytes": None, "tokens": None}
    return {"exact": False, "note": _BY_HISTOGRAM, "points": listed, "total": total}
