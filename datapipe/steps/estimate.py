"""What the steps that are not committed would write, and how long they would compute. Pure.

    bytes of text in the input ─▶ text that enters each step ─▶ bytes that it writes, seconds of one core
                                          │
                    what its tasks kept, else what it kept in the last run of the output, else everything

Both are rough. Bytes follow from the formats: where the kept shares are known, they were within a third. Seconds are those of
one core of the machine that `tests/benchmarks/README.md` names, on web pages of 2 kB; allow a factor of three elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from datapipe.metrics import total_counts
from datapipe.shards.schemas import token_type
from datapipe.stage.base import Filter, Stage
from datapipe.steps.request import Request
from datapipe.steps.steps import EXCHANGES, GlobalStep, Plan, Step
from datapipe.steps.weighting import BYTES_PER_TOKEN
from datapipe.steps.work import BoundStage

KeptShares = Mapping[str, float]
"""The share of the text that each step of documents kept, by the step's id."""

_DOCUMENTS = 0.5
"""Bytes of a file of documents per byte of text: compressed, with ids."""

_ROWS: Mapping[str, float] = {"dedup.exact": 0.02, "dedup.minhash": 0.45, "dedup.lines": 0.4, "dedup.substring": 0.8}
"""Bytes of the rows that a global stage exchanges, in all its steps, per byte of text."""

_OTHER_ROWS = 0.5

_MB_PER_S: Mapping[str, float] = {
    "extract.html": 33.0,
    "normalize.*": 60.0,
    "filter.url": 500.0,
    "filter.gopher_*": 50.0,
    "filter.language": 50.0,
    "filter.classifier": 50.0,
    "filter.*": 100.0,
    "decontaminate.*": 80.0,
    "redact.*": 150.0,
    "dedup.exact": 500.0,
    "dedup.lines": 30.0,
    "dedup.*": 60.0,
}
"""Megabytes of text a second on one core, by the first pattern that fits the name of a stage. Exchanges are included."""

_EXCHANGED = 0.25
"""Share of the time of a global stage that its exchanges take, after its rows were emitted: 0.18 (dedup.substring) to 0.31
(dedup.minhash) on 120 MB of synthetic documents, two cores, 2026-11-23."""

_READ, _PASS_ON, _TOKENIZE, _PACK, _WRITE = 80.0, 90.0, 50.0, 150.0, 100.0
"""The same for reading input, for writing documents and reading them again, and for the steps behind the stages."""

_SAMPLE, _COUNT, _TRAIN = 300.0, 60.0, 40.0
"""The same for the tokenizer: for reading all text; of the sample, for counting its words, and for joining pairs. The last two
take a sixth of the 35 s that the trainer of `tokenizers` takes for 140 MB (DECISIONS.md)."""

_START_S, _STEP_S = 4.0, 0.25
"""Seconds until workers have imported what they need and loaded the compiled kernels, and of a step however little it does.
Chosen so that a run of 15 steps over a small corpus, which took 8 s and was estimated at 1 s, is estimated at 8 s; not measured
by themselves."""

EXTRACTED = 0.1
"""Bytes of text per byte of pages: 0.03 to 0.05 in news and articles, 0.05 to 0.24 in three archives."""

_BYTES_PER_LIMITED = 4_000
"""Bytes of text in a document of a limited run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What the steps that are not committed would take.

    Attributes:
        bytes: that they write.
        core_seconds: of computing, on one core.
        unknown: stages whose time is not known, so that `core_seconds` leaves them out.
        is_all_kept: whether some step is taken to keep everything, because it never ran.
        start_seconds: of starting workers, and of beginning and ending steps, one after another on any number of cores.
    """

    bytes: int
    core_seconds: float
    unknown: tuple[str, ...]
    is_all_kept: bool
    start_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """What all tasks of a step take, or what a part of the step takes.

    Attributes:
        bytes: that they write.
        seconds: of one core.
        unknown: stages whose time is not known, so that `seconds` leaves them out.
    """

    bytes: float = 0.0
    seconds: float = 0.0
    unknown: tuple[str, ...] = ()


def estimate(request: Request, plan: Plan, kept: KeptShares) -> Estimate:
    """The estimate of a plan. `kept` are the shares of the last run of the output."""
    costs = step_costs(request, plan, kept)
    pending = [(share, costs[step.id]) for step in plan.steps if (share := _pending_share(step))]
    return Estimate(
        bytes=round(sum(share * cost.bytes for share, cost in pending)),
        core_seconds=sum(share * cost.seconds for share, cost in pending),
        unknown=tuple(dict.fromkeys(name for _, cost in pending for name in cost.unknown)),
        is_all_kept=len(kept_shares(plan, kept)) < len(plan.of_kind("map")),
        start_seconds=_START_S + _STEP_S * len(pending) if pending else 0.0,
    )


def step_costs(request: Request, plan: Plan, kept: KeptShares) -> dict[str, StepCost]:
    """The cost of every step by the same estimate, by its id, whether it is committed or not."""
    texts = _texts(request, plan, kept_shares(plan, kept))
    costs: dict[str, StepCost] = {}
    for step in plan.steps:
        parts = list(_parts(request, plan, texts, step))
        unknown = tuple(name for part in parts for name in part.unknown)
        costs[step.id] = StepCost(sum(part.bytes for part in parts), sum(part.seconds for part in parts), unknown)
    return costs


def kept_shares(plan: Plan, before: KeptShares | None = None) -> dict[str, float]:
    """The shares of the steps of which tasks are committed, and those before of other steps."""
    steps = plan.of_kind("map")
    shares = {step.id: before[step.id] for step in steps if before is not None and step.id in before}
    for step in steps:
        counts = total_counts(record.metrics.document_counts for record in step.records)
        if counts.read_bytes:
            shares[step.id] = counts.kept_bytes / counts.read_bytes
    return shares


def _pending_share(step: Step) -> float:
    if step.tasks is None:
        return 1.0
    return len(step.pending()) / len(step.tasks) if step.tasks else 0.0


def _texts(request: Request, plan: Plan, kept: KeptShares) -> dict[str, tuple[float, float]]:
    """Bytes of text that enter each step of documents and leave it, by its id; and that enter and leave a source, by name."""
    texts: dict[str, tuple[float, float]] = {}
    for name, source in request.sources.items():
        entering = float(sum(file.text_bytes for file in source.files.values()))
        shares = [math.prod(map(_share, segment)) for segment in plan.pipeline.segments[name]]
        if request.limit is not None:
            entering = min(entering, request.limit * _BYTES_PER_LIMITED / math.prod(shares))
        leaving = entering
        for step, assumed in zip(plan.of_kind("map", name), shares):
            texts[step.id] = leaving, leaving * kept.get(step.id, assumed)
            _, leaving = texts[step.id]
        texts[name] = entering, leaving
    return texts


def _parts(request: Request, plan: Plan, texts: Mapping[str, tuple[float, float]], step: Step) -> Iterator[StepCost]:
    """The parts of a step. The step of documents before an exchange has its bytes, and the time to emit its rows."""
    _, cleaned = texts.get(step.source, (0.0, 0.0))
    if step.kind == "map":
        yield from _map(plan, step, *texts[step.id])
    elif step.kind in EXCHANGES:
        yield from _exchange(plan, texts, step)
    elif step.kind == "sample":
        sampled = _sampled(request, texts, step.source)
        yield StepCost(sampled * _DOCUMENTS, _seconds(cleaned, _SAMPLE) + _seconds(sampled, _COUNT))
    elif step.kind == "train":
        yield StepCost(0.0, _seconds(sum(_sampled(request, texts, name) for name in request.sources), _TRAIN))
    elif step.kind in ("tokenize", "pack"):
        speed = _TOKENIZE if step.kind == "tokenize" else _PACK
        yield StepCost(_token_bytes(request, plan, cleaned), _seconds(cleaned, speed))
    elif step.kind == "write":
        yield StepCost(cleaned * _DOCUMENTS, _seconds(cleaned, _WRITE))


def _map(plan: Plan, step: Step, entering: float, leaving: float) -> Iterator[StepCost]:
    pipeline, source = plan.pipeline, step.source
    number = plan.of_kind("map", source).index(step)
    following = pipeline.after[source][number]
    following = following if isinstance(following, GlobalStep) else None
    yield StepCost(leaving * _DOCUMENTS, _seconds(leaving, _PASS_ON) + (_seconds(entering, _READ) if number == 0 else 0.0))
    for bound in pipeline.segments[source][number]:
        yield _stage(bound.stage, entering)
        entering *= _share(bound)
    if following is not None:
        name = _name(following.stage.stage)
        yield StepCost(leaving * _ROWS.get(name, _OTHER_ROWS))
        yield _stage(following.stage.stage, (1 - _EXCHANGED) * leaving)


def _exchange(plan: Plan, texts: Mapping[str, tuple[float, float]], step: Step) -> Iterator[StepCost]:
    """An equal part of the time that all exchanges of a global stage take."""
    name = step.id.partition("/")[0]
    number = sum(other.kind in EXCHANGES and other.id.partition("/")[0] == name for other in plan.steps)
    for following in plan.pipeline.global_steps:
        if following.id == name:
            emitted = sum(texts[plan.pipeline.map_step(*segment)][1] for segment in following.sources)
            yield _stage(following.stage.stage, _EXCHANGED * emitted / number)


def _stage(stage: Stage, text: float) -> StepCost:
    name = _name(stage)
    speed = next((speed for pattern, speed in _MB_PER_S.items() if fnmatchcase(name, pattern)), None)
    return StepCost(unknown=(name,)) if speed is None else StepCost(seconds=_seconds(text, speed))


def _share(bound: BoundStage) -> float:
    """The share of the bytes that a stage passes on if it drops nothing."""
    return EXTRACTED if isinstance(bound.stage, Filter) and bound.stage.extracts else 1.0


def _name(stage: Stage) -> str:
    """The name of a stage in `stages/`; the module of another one, and with it no name of a stage in `stages/`."""
    module = type(stage).__module__
    return module.removeprefix("stages.") if module.startswith("stages.") else f"{module}:{type(stage).__qualname__}"


def _sampled(request: Request, texts: Mapping[str, tuple[float, float]], source: str) -> float:
    """Bytes of a source's text that the tokenizer is trained on, in proportion to its text."""
    training = request.mixture.tokenizer.train
    total = sum(texts[name][1] for name in request.sources)
    return texts[source][1] * min(1.0, training.sample_bytes / total) if training is not None and total else 0.0


def _token_bytes(request: Request, plan: Plan, text: float) -> float:
    """Bytes of the ids of a text's tokens, where the vocabulary is not known of the wider kind."""
    known = plan.tokenizer or request.mixture.tokenizer.train
    return text / BYTES_PER_TOKEN * (4 if known is None else token_type(known.vocab_size).bit_width // 8)


def _seconds(num_bytes: float, mb_per_s: float) -> float:
    return num_bytes / 1e6 / mb_per_s
