"""What other thresholds of a filter would keep, from what it measured while it ran with `mode: tag`.

    documents of the last step of each source ── two passes over the tag columns ──▶ per threshold: documents and bytes kept

    first pass    NAME.RULE: a keyed sample of fixed size, and the distinct values while they are few  ─▶ the grid
    second pass   NAME.*, text: exact counts for every threshold of the grid, alone and with the other rules as they are set

Memory is one batch and the sample, whatever the size of the output. The sample is keyed by document, so the same output gives
the same grid. What is counted are the documents that the run kept; a stage behind the filter that compares documents has seen
all of the tagged ones, and might have chosen other survivors had the filter dropped some.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
from datapipe.storage import Root

SAMPLE_DOCS = 8192
"""Values that the grid is taken from: the rank of a quantile is right to about half a percent."""

MAX_DISTINCT = 16
"""Up to this many different values are the grid themselves: counts of stop words, say."""

_QUANTILES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999)
_DIGITS = range(2, 7)


@dataclass(slots=True)
class Count:
    """Documents, and the UTF-8 bytes of their text."""

    documents: int = 0
    bytes: int = 0

    def add(self, lengths: np.ndarray, mask: np.ndarray) -> None:
        """Adds the documents where `mask` (num_docs,) bool is true; `lengths` (num_docs,) are their bytes."""
        self.documents += int(np.count_nonzero(mask))
        self.bytes += int(lengths[mask].sum())

    def join(self, other: Count) -> None:
        self.documents += other.documents
        self.bytes += other.bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What one threshold keeps.

    Attributes:
        alone: by this rule and no other.
        together: with the other rules of the stage as they are set.
    """

    threshold: float
    alone: Count
    together: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSweep:
    """One source, or the total.

    Attributes:
        limit: the threshold in force; None in a total of sources that differ.
        tagged: the documents that were judged.
        kept: in the order of the thresholds.
        unsure: documents counted under `together` that a rule which cannot be tried again might drop.
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
        sources: in the mixture's order; total: their sum.
        dropping: sources that are left out, since the stage dropped there instead of tagging.
    """

    stage: str
    rule: str
    option: str
    side: str
    sources: tuple[SourceSweep, ...]
    total: SourceSweep
    dropping: tuple[str, ...] = ()


def sweep(output: str, threshold: str, *, source: str = "", at: Sequence[float] = ()) -> Sweep:
    """What the output of a run would keep under other thresholds. Raises UserError.

    Args:
        threshold: "STAGE.OPTION" or "STAGE.RULE".
        source: only this one.
        at: the thresholds to try, instead of a grid of quantiles of what was measured.
    """
    root = Root(output)
    tagged, dropping = _tagged_sources(root, output, threshold, source)
    rule = tagged[0].rule
    grid = sorted(set(at)) or _grid(root, tagged)
    counted = [one.counted(root, grid) for one in tagged]
    return Sweep(
        stage=tagged[0].stage,
        rule=rule.name,
        option=rule.option,
        side=rule.side,
        sources=tuple(counted),
        total=_total(counted, grid),
        dropping=dropping,
    )


# ------------------------------------------------------------------------------------------------ what is asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tagged:
    """A source whose documents carry the tags of the stage."""

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
        """The columns `names` of every document; a file without documents has no tags."""
        for output in self.files:
            if output.rows:
                yield from read_table(root, output, names)

    def counted(self, root: Root, grid: Sequence[float]) -> SourceSweep:
        """The second pass."""
        tagged, unsure = Count(), Count()
        kept = [Kept(threshold=one, alone=Count(), together=Count()) for one in grid]
        others = [rule for number, rule in enumerate(self.rules) if number != self.swept]
        names = [self.column(self.rule), *(self.column(rule) for rule in others), f"{self.stage}.rule", "text"]
        for batch in self.batches(root, *names):
            lengths, values = text_lengths(batch.column("text")), _values(batch, self.column(self.rule))
            tagged.add(lengths, np.ones(len(lengths), np.bool_))
            passed, open_ = self._others_passed(batch, others)
            unsure.add(lengths, passed & open_)
            for one in kept:
                alone = ~replace(self.rule, limit=one.threshold).failed(values)
                one.alone.add(lengths, alone)
                one.together.add(lengths, alone & passed)
        limit = float(self.rule.limit)
        return SourceSweep(name=self.source, limit=limit, tagged=tagged, kept=tuple(kept), unsure=unsure.documents)

    def _others_passed(self, batch: pa.RecordBatch, others: Sequence[Rule]) -> tuple[np.ndarray, np.ndarray]:
        """Which documents pass all other rules, and of which that is not sure: (num_docs,) bool each.

        A rule that decides in a way of its own is known by NAME.rule alone, which says no more than the first that failed.
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
    known = [rule.name for rule in rules]
    index = np.array([*(known.index(one) for one in encoded.dictionary.to_pylist()), -1], np.int64)
    return index[encoded.indices.fill_null(len(index) - 1).to_numpy(zero_copy_only=False)]


def _tagged_sources(root: Root, output: str, threshold: str, source: str) -> tuple[list[_Tagged], tuple[str, ...]]:
    """The sources that ran the stage in tag mode, with the rule that is asked for, and those where it dropped."""
    steps = read_history(root).steps
    stage, _, wanted = threshold.rpartition(".")
    if threshold in {use.alias for name in read_mixture(root).sources for use in read_mixture(root).stages_of(name)}:
        raise UserError(f"--sweep {threshold}: expected a threshold behind the stage, as --sweep {threshold}.OPTION")
    uses = _uses(read_mixture(root), threshold, stage or threshold, source)
    built = {name: catalogue.build_stage(use) for name, use in uses.items()}
    filters = {name: one for name, one in built.items() if isinstance(one, Filter)}
    if not filters:
        raise UserError(f"--sweep {threshold}: '{stage}' is no filter, so it has no thresholds that documents pass or fail")
    swept = {name: _swept(threshold, stage, wanted, one.rules()) for name, one in filters.items()}
    tagging = [name for name, one in filters.items() if one.mode == "tag"]
    if not tagging:
        raise UserError(_not_tagged(threshold, next(iter(uses.values())), output))
    found = []
    for name in tagging:
        cleaned = [step for step in steps if step.kind == "map" and step.source == name]
        if not cleaned or not cleaned[-1].records:
            raise UserError(f"{output}: the run has not cleaned all of '{name}' yet. Run the same command again first")
        files = cleaned[-1].outputs("documents", TableFile)
        rules = tuple(filters[name].rules())
        found.append(_Tagged(source=name, stage=stage, rules=rules, swept=swept[name], files=files))
    return found, tuple(name for name in filters if name not in tagging)


def _uses(mixture: Mixture, threshold: str, stage: str, source: str) -> dict[str, StageUse]:
    """The sources that use the stage of that name, and how."""
    if source and source not in mixture.sources:
        known = ", ".join(mixture.sources)
        raise UserError(f"no source '{source}' in this output.{suggest(source, mixture.sources)} There are: {known}")
    chosen = [source] if source else list(mixture.sources)
    named = {name: {use.alias: use for use in mixture.stages_of(name)} for name in chosen}
    found = {name: stages[stage] for name, stages in named.items() if stage in stages}
    if not found:
        known = list(dict.fromkeys(alias for stages in named.values() for alias in stages))
        whose = f"source '{source}'" if source else "this run"
        raise UserError(
            f"--sweep {threshold}: {whose} has no stage '{stage}'.{suggest(stage, known)} "
            f"Expected STAGE.THRESHOLD, the stage one of: {', '.join(known) or '(there is none)'}"
        )
    return found


def _swept(threshold: str, stage: str, wanted: str, rules: Sequence[Rule]) -> int:
    """The index of the rule that is asked for, by its name or its option."""
    by_name = [number for number, rule in enumerate(rules) if rule.name == wanted]
    matching = by_name or [number for number, rule in enumerate(rules) if wanted and rule.option == wanted]
    if not matching:
        known = [name for rule in rules for name in (rule.option, rule.name) if name]
        listed = ", ".join(f"{rule.option} ({rule.name})" if rule.option else rule.name for rule in rules)
        raise UserError(
            f"--sweep {threshold}: {stage} has no threshold '{wanted}' as it is set.{suggest(wanted, known)} "
            f"It has: {listed or '(none)'}"
        )
    if len(matching) > 1:
        names = ", ".join(rules[number].name for number in matching)
        raise UserError(f"--sweep {threshold}: '{wanted}' is the limit of several rules. Expected one of: {names}")
    rule = rules[matching[0]]
    if rule.side == "other":
        sweepable = ", ".join(one.name for one in rules if one.side != "other") or "(none)"
        raise UserError(
            f"--sweep {threshold}: the rule '{rule.name}' has no threshold, it decides in a way of its own. "
            f"Rules of {stage} that have one: {sweepable}"
        )
    return matching[0]


def _not_tagged(threshold: str, use: StageUse, output: str) -> str:
    renamed = f", as: {use.alias}" if use.alias != use.name else ""
    return (
        f"--sweep {threshold}: '{use.alias}' dropped the documents that failed, so what it measured of them is not here. "
        f"Set `mode: tag` on it in the mixture, as in\n"
        f"    - {use.name}: {{mode: tag{renamed}}}\n"
        f"which keeps every document and writes down what each rule measured, and run it into an output of its own: "
        f"datapipe run MIXTURE.yaml --output {output}-tagged"
    )


# ------------------------------------------------------------------------------------------------ the grid


def _grid(root: Root, tagged: Sequence[_Tagged]) -> list[float]:
    """The first pass: thresholds worth a look, from what was measured, and those in force."""
    seed = seed_for(0, "sweep")
    hashes, sample, distinct = np.zeros(0, np.uint64), np.zeros(0), np.zeros(0)
    for one in tagged:
        name = one.column(one.rule)
        for batch in one.batches(root, "key", name):
            values = _values(batch, name)
            known = ~np.isnan(values)
            if len(distinct) <= MAX_DISTINCT:
                distinct = np.union1d(distinct, values[known])
            hashes = np.concatenate([hashes, keyed_hash(key_halves(batch.column("key")), seed)[known]])
            sample = np.concatenate([sample, values[known]])
            chosen = np.argsort(hashes, kind="stable")[:SAMPLE_DOCS]
            hashes, sample = hashes[chosen], sample[chosen]
    in_force = [float(one.rule.limit) for one in tagged]
    measured = distinct if len(distinct) <= MAX_DISTINCT else _readable(np.quantile(sample, _QUANTILES, method="nearest"))
    return sorted({*measured.tolist(), *in_force})


def _readable(quantiles: np.ndarray) -> np.ndarray:
    """Numbers of few digits, but of enough to tell them apart."""
    wanted = np.unique(quantiles)
    rounded = wanted
    for digits in _DIGITS:
        rounded = np.unique([_rounded(one, digits) for one in wanted.tolist()])
        if len(rounded) == len(wanted):
            break
    return rounded


def _rounded(value: float, digits: int) -> float:
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.{digits}g}")


def _total(sources: Sequence[SourceSweep], grid: Sequence[float]) -> SourceSweep:
    """The sum of the sources."""
    limits = {one.limit for one in sources}
    tagged = Count()
    kept = tuple(Kept(threshold=one, alone=Count(), together=Count()) for one in grid)
    for one in sources:
        tagged.join(one.tagged)
        for into, part in zip(kept, one.kept, strict=True):
            into.alone.join(part.alone)
            into.together.join(part.together)
    limit = sources[0].limit if len(limits) == 1 else None
    return SourceSweep(name="total", limit=limit, tagged=tagged, kept=kept, unsure=sum(one.unsure for one in sources))
