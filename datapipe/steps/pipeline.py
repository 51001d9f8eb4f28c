"""The logical steps of a run: each source's stages, cut at the global ones into segments that run fused.

    web:   normalize.unicode  filter.language │ dedup.exact │  │ dedup.minhash │ redact.pii
           └── segment 0 ───────────────────┘               1                  └ segment 2
    code:                                     │ dedup.exact │  redact.pii
           segment 0 (only reads)                             segment 1

A filter that keeps a share of a source ends a segment, too: it scores the documents, the cut is
found, and the next segment drops those below it.

A global stage runs once over all sources that name it with equal options. All sources must name
their common global stages in the same order; otherwise each would wait for the other."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from typing import cast

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.records.option_files import OptionFile
from datapipe.stage.base import Filter, KeptShare, Map
from datapipe.stage.global_stage import Global
from datapipe.stage.when import When
from datapipe.steps.cut import Cut


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundStage:
    """A stage under its name in this run, with the digest of its code and options, and the libraries that count with them."""

    name: str
    stage: Filter | Map | Global
    digest: str
    emit_digest: str = ""  # of a global stage: without the options that `emit` does not read
    libraries: tuple[str, ...] = ()  # whose versions decide what it does
    cut: Cut | None = None  # of a filter that keeps a share, once it is known
    files: tuple[OptionFile, ...] = ()  # that its options name, on the machine that planned
    when: When | None = None  # the documents that it sees; None: all

    @property
    def share(self) -> KeptShare | None:
        """How much of a source it keeps by scores; None where its rules decide alone."""
        return self.stage.kept_share() if isinstance(self.stage, Filter) else None

    @property
    def asked_share(self) -> Fraction:
        """The share of documents or bytes that its options ask for; 1 where they ask for none."""
        if not isinstance(self.stage, Filter):
            return Fraction(1)
        return Fraction(repr(self.stage.sampled_share())) if self.share is None else self.share.share

    @property
    def is_scored(self) -> bool:
        """Whether it keeps a share whose cut is not known yet. Such a filter is the last stage of its segment."""
        return self.cut is None and self.share is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalStep:
    """A global stage and the sources whose documents it compares."""

    # its name in the run; with the first digits of its digest where two have the same name and other options
    id: str
    stage: BoundStage
    # each with the number of the segment that emits into it, in the mixture's order
    sources: tuple[tuple[str, int], ...]

    @property
    def rule(self) -> str:
        return cast(Global, self.stage.stage).rule


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingStep:
    """A filter that keeps a share of one source, the last stage of a segment: its cut is found before the next segment."""

    id: str
    stage: BoundStage


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    # by source; segment i ends before global stage i of that source, or with a filter that keeps a share
    segments: Mapping[str, tuple[tuple[BoundStage, ...], ...]]
    global_steps: tuple[GlobalStep, ...]  # each after the global steps that it needs
    # by source, what must be known of all documents after each segment; None for the last
    after: Mapping[str, tuple[GlobalStep | RankingStep | None, ...]]
    # by source, in order, with the limits that the source sets itself
    global_stages: Mapping[str, tuple[Global, ...]]

    def map_step(self, source: str, number: int) -> str:
        """The id of the step that runs a segment: `web/read` for the first, `web/apply-dedup.exact`
        for one that applies the decisions of a global stage, or a cut."""
        if number == 0:
            return f"{source}/read"
        before = self.after[source][number - 1]
        assert before is not None
        return f"{source}/apply-{before.id}"


def lay_out(stages: Mapping[str, Sequence[BoundStage]]) -> Pipeline:
    """The pipeline of the sources' stage lists. Raises UserError where their global stages are in conflicting orders."""
    segments = {source: _segments(listed) for source, listed in stages.items()}
    endings = {source: [bound for bound in listed if _ends_segment(bound)] for source, listed in stages.items()}
    global_steps = _global_steps(endings)
    after: dict[str, tuple[GlobalStep | RankingStep | None, ...]] = {}
    for source, listed in endings.items():
        steps = [global_steps.get((bound.name, bound.digest)) or RankingStep(id=bound.name, stage=bound) for bound in listed]
        after[source] = (*steps, None)
    by_id = {step.id: step for step in global_steps.values()}
    orders = {source: [step.id for step in steps if isinstance(step, GlobalStep)] for source, steps in after.items()}
    ordered = tuple(by_id[step_id] for step_id in _order(orders))
    global_stages = {
        source: tuple(bound.stage for bound in listed if isinstance(bound.stage, Global)) for source, listed in endings.items()
    }
    return Pipeline(segments=segments, global_steps=ordered, after=after, global_stages=global_stages)


def _ends_segment(bound: BoundStage) -> bool:
    return isinstance(bound.stage, Global) or bound.is_scored


def _segments(listed: Sequence[BoundStage]) -> tuple[tuple[BoundStage, ...], ...]:
    segments: list[list[BoundStage]] = [[]]
    for bound in listed:
        if not isinstance(bound.stage, Global):
            segments[-1].append(bound)
        if _ends_segment(bound):
            segments.append([])
    return tuple(tuple(segment) for segment in segments)


def _global_steps(endings: Mapping[str, Sequence[BoundStage]]) -> dict[tuple[str, str], GlobalStep]:
    members: dict[tuple[str, str], list[tuple[str, int]]] = {}
    stages: dict[tuple[str, str], BoundStage] = {}
    for source, listed in endings.items():
        for number, bound in enumerate(listed):
            if isinstance(bound.stage, Global):
                members.setdefault((bound.name, bound.digest), []).append((source, number))
                stages[bound.name, bound.digest] = bound
    names = [name for name, _ in members]
    steps: dict[tuple[str, str], GlobalStep] = {}
    for (name, digest), sources in members.items():
        step_id = name if names.count(name) == 1 else f"{name}@{digest[:8]}"
        steps[name, digest] = GlobalStep(id=step_id, stage=stages[name, digest], sources=tuple(sources))
    return steps


def _order(orders: Mapping[str, Sequence[str]]) -> list[str]:
    graph: TopologicalSorter[str] = TopologicalSorter()
    for order in orders.values():
        for before, step_id in zip([None, *order], order):
            graph.add(step_id, *([before] if before is not None else []))
    try:
        return list(graph.static_order())
    except CycleError as error:
        circle = " → ".join(dict.fromkeys(error.args[1]))
        raise UserError(
            f"sources name the global stages {circle} in conflicting orders, so each would wait for the other. "
            f"Put them in the same order in every source's list, or set `scope: source` and different `as:` names."
        ) from error
