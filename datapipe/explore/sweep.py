"""Counts the documents that other thresholds of a filter would keep, from the values that it wrote with `mode: tag`.

    mixture ─▶ sources that tag, the swept rule ─▶ grid of thresholds ─▶ documents and bytes at each (tags.py)

The counts cover the documents that the run kept. A later stage that compares documents has compared all tagged documents; it
might have kept other survivors if the filter had dropped some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

import numpy as np

from datapipe import catalogue
from datapipe.config.mixture import Mixture
from datapipe.config.stage_use import StageUse
from datapipe.errors import UserError, suggest
from datapipe.explore.output import Output
from datapipe.explore.tags import Swept, TaggedRule, Tags
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
    rule = tagged[0].rule
    grid = sorted(set(thresholds)) or _grid(output, tagged)
    swept = [each.swept(output, grid) for each in tagged]
    limits = {float(each.rule.limit) for each in tagged}
    total = Swept(
        counts=sum((each.counts for each in swept), np.zeros((len(grid), 4), np.int64)),
        total=sum((each.total for each in swept), np.zeros(2, np.int64)),
        unsure=sum(each.unsure for each in swept),
    )
    return Sweep(
        stage=tagged[0].stage,
        rule=rule.name,
        option=rule.option,
        side=rule.side,
        sources=tuple(_source_sweep(each.source, float(each.rule.limit), found, grid) for each, found in zip(tagged, swept)),
        total=_source_sweep("total", limits.pop() if len(limits) == 1 else None, total, grid),
        dropping=dropping,
    )


def _source_sweep(name: str, limit: float | None, found: Swept, grid: Sequence[float]) -> SourceSweep:
    kept = tuple(
        Kept(threshold=threshold, alone=Count(*counts[:2]), together=Count(*counts[2:]))
        for threshold, counts in zip(grid, found.counts.tolist())
    )
    return SourceSweep(name=name, limit=limit, tagged=Count(*found.total.tolist()), kept=kept, unsure=found.unsure)


# ------------------------------------------------------------------------------------------------ sources and rules


@dataclass(frozen=True, kw_only=True, slots=True)
class _TaggedSource:
    """A source whose documents carry the tags of the stage; `swept_rule` is the index of the swept rule in `rules`."""

    source: str
    stage: str
    rules: tuple[Rule, ...]
    swept_rule: int

    @property
    def rule(self) -> Rule:
        return self.rules[self.swept_rule]

    def swept(self, output: Output, grid: Sequence[float]) -> Swept:
        others = [
            TaggedRule(rule.name, rule.side, None if rule.side == "other" else float(rule.limit))
            for number, rule in enumerate(self.rules)
            if number != self.swept_rule
        ]
        order = [rule.name for rule in self.rules]
        tags = Tags(output.database, self.stage, [self.source])
        return tags.swept(self.rule.name, self.rule.side == "min", others, order, np.array(grid))


def _tagged_sources(output: Output, threshold: str, source: str) -> tuple[list[_TaggedSource], tuple[str, ...]]:
    """The sources that ran the stage in tag mode, with the swept rule, and the names of the sources where it dropped."""
    stage, _, option = threshold.rpartition(".")
    mixture, url = output.mixture, output.root.url
    if threshold in {use.alias for name in mixture.sources for use in mixture.stages_of(name)}:
        raise UserError(f"--sweep {threshold}: expected a threshold behind the stage, as --sweep {threshold}.OPTION")
    uses = _uses(mixture, threshold, stage or threshold, source)
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
    tagged = [
        _TaggedSource(source=name, stage=stage, rules=tuple(filters[name].rules()), swept_rule=swept[name]) for name in tagging
    ]
    return tagged, tuple(name for name in filters if name not in tagging)


def _uses(mixture: Mixture, threshold: str, stage: str, source: str) -> dict[str, StageUse]:
    """How each source that has a stage of that name uses it."""
    if source and source not in mixture.sources:
        known = ", ".join(mixture.sources)
        raise UserError(
            f"no source '{source}' in this output.{suggest(source, mixture.sources)} The sources of this output: {known}"
        )
    chosen = [source] if source else list(mixture.sources)
    named = {name: {use.alias: use for use in mixture.stages_of(name)} for name in chosen}
    uses = {name: stages[stage] for name, stages in named.items() if stage in stages}
    if not uses:
        known = list(dict.fromkeys(alias for stages in named.values() for alias in stages))
        whose = f"source '{source}'" if source else "this run"
        raise UserError(
            f"--sweep {threshold}: {whose} has no stage '{stage}'.{suggest(stage, known)} "
            f"Expected STAGE.THRESHOLD with a stage of: {', '.join(known) or '(none)'}"
        )
    return uses


def _swept_rule(threshold: str, stage: str, option: str, rules: Sequence[Rule]) -> int:
    """The index of the rule that has this name, or whose threshold is this option."""
    by_name = [number for number, rule in enumerate(rules) if rule.name == option]
    by_option = [number for number, rule in enumerate(rules) if option and rule.option == option]
    matching = by_name or [number for number in by_option if rules[number].name != BELOW_SHARE] or by_option
    if not matching:
        known = [name for rule in rules for name in (rule.option, rule.name) if name]
        listed = ", ".join(f"{rule.option} ({rule.name})" if rule.option else rule.name for rule in rules)
        raise UserError(
            f"--sweep {threshold}: {stage} has no threshold '{option}' with its options in the mixture."
            f"{suggest(option, known)} Its thresholds: {listed or '(none)'}"
        )
    if len(matching) > 1:
        names = ", ".join(rules[number].name for number in matching)
        raise UserError(f"--sweep {threshold}: '{option}' is the threshold of several rules. Expected one of: {names}")
    rule = rules[matching[0]]
    if rule.side == "other":
        sweepable = ", ".join(other.name for other in rules if other.side != "other") or "(none)"
        raise UserError(
            f"--sweep {threshold}: the rule '{rule.name}' compares no value with a threshold. "
            f"Rules of {stage} with a threshold: {sweepable}"
        )
    return matching[0]


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


def _grid(output: Output, tagged: Sequence[_TaggedSource]) -> list[float]:
    """All measured values, or readable quantiles of them, and the thresholds in force."""
    tags, rule = Tags(output.database, tagged[0].stage, [each.source for each in tagged]), tagged[0].rule.name
    measured = tags.distinct(rule, MAX_DISTINCT)
    if measured is None:
        measured = _readable(tags.quantiles(rule, _QUANTILES))
    in_force = [float(each.rule.limit) for each in tagged if math.isfinite(each.rule.limit)]
    return sorted({*measured.tolist(), *in_force})


def _readable(quantiles: np.ndarray) -> np.ndarray:
    """The quantiles rounded to the fewest digits that keep them distinct."""
    exact = np.unique(quantiles)
    rounded = exact
    for digits in _DIGITS:
        rounded = np.unique([_rounded(value, digits) for value in exact.tolist()])
        if len(rounded) == len(exact):
            break
    return rounded


def _rounded(value: float, digits: int) -> float:
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.{digits}g}")
