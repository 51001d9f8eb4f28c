"""Counts the documents that other thresholds of a filter would keep, from the values that it wrote with `mode: tag`.

    documents of the last map step of each source ── two passes over the tag columns ──▶ documents and bytes by threshold

    first pass    NAME.RULE: a keyed sample of fixed size, and the distinct values while they are few  ─▶ the grid
    second pass   NAME.*, text: exact counts for every threshold of the grid, alone and with the other rules as they are set

Memory holds one batch and the sample, whatever the size of the output. The sample is keyed by document: the same output gives
the same grid. The counts cover the documents that the run kept. A later stage that compares documents has compared all tagged
documents; it might have kept other survivors if the filter had dropped some.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from shlex import quote

import numpy as np
import pyarrow as pa

from datapipe import catalogue
from datapipe.columns import key_halves, numbers, text_lengths
from datapipe.config.mixture import Mixture
from datapipe.config.stage_use import StageUse
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import UserError, suggest
from datapipe.exchange.partitions import read_table
from datapipe.plan.outputs import TableFile
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.base import Filter, Rule
from datapipe.stage.ranking import BELOW_SHARE
from datapipe.storage import Root

SAMPLE_DOCS = 8192
"""Values in the sample. The rank of a quantile is right to about half a percent."""

MAX_DISTINCT = 16
"""Up to this many distinct values, such as counts of stop words, the grid is the values themselves."""

_QUANTILES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999)
_DIGITS = range(2, 7)


@dataclass(slots=True)
class Count:
    """Documents, and the UTF-8 bytes of their text."""

    documents: int = 0
    bytes: int = 0

    def add(self, lengths: np.ndarray, mask: np.ndarray) -> None:
        """Adds the documents where a mask is true.

        Args:
            lengths: (num_docs,) bytes of text.
            mask: (num_docs,) bool.
        """
        self.documents += int(np.count_nonzero(mask))
        self.bytes += int(lengths[mask].sum())

    def add_count(self, other: Count) -> None:
        """Adds the documents of another count."""
        self.documents += other.documents
        self.bytes += other.bytes


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


def sweep(output: str, threshold: str, *, source: str = "", thresholds: Sequence[float] = ()) -> Sweep:
    """Counts the documents of an output that other thresholds would keep. Raises UserError.

    Args:
        threshold: "STAGE.OPTION" or "STAGE.RULE".
        source: only this source.
        thresholds: to try, instead of a grid of quantiles of the measured values.
    """
    root = Root(output)
    tagged, dropping = _tagged_sources(root, output, threshold, source)
    rule = tagged[0].rule
    grid = sorted(set(thresholds)) or _grid(root, tagged)
    sources = [tagged_source.count_kept(root, grid) for tagged_source in tagged]
    return Sweep(
        stage=tagged[0].stage,
        rule=rule.name,
        option=rule.option,
        side=rule.side,
        sources=tuple(sources),
        total=_total(sources, grid),
        dropping=dropping,
    )


# ------------------------------------------------------------------------------------------------ sources and rules


@dataclass(frozen=True, kw_only=True, slots=True)
class _TaggedSource:
    """A source whose documents carry the tags of the stage; `swept` is the index of the swept rule in `rules`."""

    source: str
    stage: str
    rules: tuple[Rule, ...]
    swept: int
    files: tuple[TableFile, ...]

    @property
    def rule(self) -> Rule:
        return self.rules[self.swept]

    def column(self, rule: Rule) -> str:
        return f"{self.stage}.{rule.name}"

    def batches(self, root: Root, *names: str) -> Iterator[pa.RecordBatch]:
        """The columns `names` of every document. A file without documents has no tag columns."""
        for output in self.files:
            if output.rows:
                yield from read_table(root, output, names)

    def count_kept(self, root: Root, grid: Sequence[float]) -> SourceSweep:
        """The second pass."""
        tagged, unsure = Count(), Count()
        kept = [Kept(threshold=threshold, alone=Count(), together=Count()) for threshold in grid]
        others = [rule for number, rule in enumerate(self.rules) if number != self.swept]
        names = [self.column(self.rule), *(self.column(rule) for rule in others), f"{self.stage}.rule", "text"]
        for batch in self.batches(root, *names):
            lengths, values = text_lengths(batch.column("text")), _values(batch, self.column(self.rule))
            tagged.add(lengths, np.ones(len(lengths), np.bool_))
            passed, uncertain = self._others_passed(batch, others)
            unsure.add(lengths, passed & uncertain)
            for counts in kept:
                alone = ~replace(self.rule, limit=counts.threshold).failed(values)
                counts.alone.add(lengths, alone)
                counts.together.add(lengths, alone & passed)
        limit = float(self.rule.limit)
        return SourceSweep(name=self.source, limit=limit, tagged=tagged, kept=tuple(kept), unsure=unsure.documents)

    def _others_passed(self, batch: pa.RecordBatch, others: Sequence[Rule]) -> tuple[np.ndarray, np.ndarray]:
        """Which documents pass all other rules, and for which of them the result is uncertain: (num_docs,) bool each.

        A rule of side "other" has no column of values. Only NAME.rule, the first rule that failed, tells its result, so the
        result is uncertain for documents that failed an earlier rule.
        """
        first = _first_failed(batch.column(f"{self.stage}.rule"), self.rules)
        passed, unsure = np.ones(batch.num_rows, np.bool_), np.zeros(batch.num_rows, np.bool_)
        for rule in others:
            if rule.side != "other":
                passed &= ~rule.failed(_values(batch, self.column(rule)))
                continue
            number = self.rules.index(rule)
            passed &= first != number
            unsure |= (first >= 0) & (first < number)
        return passed, unsure


def _values(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return numbers(batch.column(name)).astype(np.float64, copy=False)


def _first_failed(names: pa.Array, rules: Sequence[Rule]) -> np.ndarray:
    """The index of the rule that each document failed first, -1 for none: (num_docs,) int64."""
    encoded = names.dictionary_encode()
    rule_names = [rule.name for rule in rules]
    index = np.array([*(rule_names.index(name) for name in encoded.dictionary.to_pylist()), -1], np.int64)
    return index[encoded.indices.fill_null(len(index) - 1).to_numpy(zero_copy_only=False)]


def _tagged_sources(root: Root, output: str, threshold: str, source: str) -> tuple[list[_TaggedSource], tuple[str, ...]]:
    """The sources that ran the stage in tag mode, with the swept rule, and the names of the sources where it dropped."""
    steps = read_history(root).steps
    stage, _, option = threshold.rpartition(".")
    if threshold in {use.alias for name in read_mixture(root).sources for use in read_mixture(root).stages_of(name)}:
        raise UserError(f"--sweep {threshold}: expected a threshold behind the stage, as --sweep {threshold}.OPTION")
    uses = _uses(read_mixture(root), threshold, stage or threshold, source)
    built = {name: catalogue.build_stage(use) for name, use in uses.items()}
    filters = {name: stage_object for name, stage_object in built.items() if isinstance(stage_object, Filter)}
    if not filters:
        raise UserError(
            f"--sweep {threshold}: '{stage}' is no filter, so it has no thresholds. Expected a filter of this output"
        )
    swept = {name: _swept_rule(threshold, stage, option, stage_object.rules()) for name, stage_object in filters.items()}
    tagging = [name for name, stage_object in filters.items() if stage_object.mode == "tag"]
    if not tagging:
        raise UserError(_not_tagged(threshold, next(iter(uses.values())), output))
    tagged = []
    for name in tagging:
        map_steps = [step for step in steps if step.kind == "map" and step.source == name]
        if not map_steps or not map_steps[-1].records:
            raise UserError(f"{output}: the run has not cleaned all of '{name}' yet. Complete it with the same command first.")
        files = map_steps[-1].outputs("documents", TableFile)
        rules = tuple(filters[name].rules())
        tagged.append(_TaggedSource(source=name, stage=stage, rules=rules, swept=swept[name], files=files))
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


def _grid(root: Root, tagged: Sequence[_TaggedSource]) -> list[float]:
    """The first pass: quantiles of the measured values, and the thresholds in force."""
    seed = seed_for(0, "sweep")
    hashes, sample, distinct = np.zeros(0, np.uint64), np.zeros(0), np.zeros(0)
    for source in tagged:
        name = source.column(source.rule)
        for batch in source.batches(root, "key", name):
            values = _values(batch, name)
            known = ~np.isnan(values)
            if len(distinct) <= MAX_DISTINCT:
                distinct = np.union1d(distinct, values[known])
            hashes = np.concatenate([hashes, keyed_hash(key_halves(batch.column("key")), seed)[known]])
            sample = np.concatenate([sample, values[known]])
            first = np.argsort(hashes, kind="stable")[:SAMPLE_DOCS]
            hashes, sample = hashes[first], sample[first]
    in_force = [float(source.rule.limit) for source in tagged if math.isfinite(source.rule.limit)]
    measured = distinct if len(distinct) <= MAX_DISTINCT else _readable(np.quantile(sample, _QUANTILES, method="nearest"))
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


def _total(sources: Sequence[SourceSweep], grid: Sequence[float]) -> SourceSweep:
    """The sum of the sources."""
    limits = {source.limit for source in sources}
    tagged = Count()
    kept = tuple(Kept(threshold=threshold, alone=Count(), together=Count()) for threshold in grid)
    for source in sources:
        tagged.add_count(source.tagged)
        for total, part in zip(kept, source.kept, strict=True):
            total.alone.add_count(part.alone)
            total.together.add_count(part.together)
    limit = sources[0].limit if len(limits) == 1 else None
    return SourceSweep(name="total", limit=limit, tagged=tagged, kept=kept, unsure=sum(source.unsure for source in sources))
