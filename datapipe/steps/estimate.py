"""The bytes and the computing time of the steps that are not committed. Pure.

bytes of text in the input ─▶ text that enters each step ─▶ bytes that it writes, seconds of one core
                                      │
                what its tasks kept, else what it kept in the last run of the output, else everything"""

import math
from collections.abc import Mapping
from itertools import chain
from typing import cast

from datapipe.dataclass import dataclass
from datapipe.shards.schemas import token_type
from datapipe.stage.global_stage import Global
from datapipe.steps.costs import DOCUMENTS, StepCost, Texts, extracted, passed_on
from datapipe.steps.growth import Files, StepSize
from datapipe.steps.kind import Plan, Step
from datapipe.steps.pipeline import GlobalStep
from datapipe.steps.request import Request
from datapipe.steps.tokenize import training_parts
from datapipe.steps.unread import DOCUMENTS as DOCUMENT_FILES
from datapipe.steps.weighting import BYTES_PER_TOKEN

KeptText = Mapping[str, float]
"""The share of the text that each step of documents kept, by the step's id."""

_START_S, _STEP_S = 4.0, 0.25
"""Seconds until workers have imported their modules and loaded the compiled kernels, and of each step. Chosen so that a run of
15 steps over a small corpus, which took 8 s, is estimated at 8 s."""

_BYTES_PER_LIMITED = 4_000  # bytes of text in a document of a limited run
_UNPACKED = 1.5  # bytes of rows in memory for a byte in a file: 46 to 88 % are left of them (`exchange/files.py`)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    bytes: int  # that they write
    core_seconds: float  # of computing, on one core
    unknown: tuple[str, ...]  # stages of unknown speed, which `core_seconds` leaves out
    is_all_kept: bool  # whether some step is taken to keep everything, because it never ran
    start_seconds: float = 0.0  # of starting workers and steps, on any number of cores


def estimate(request: Request, plan: Plan, kept: KeptText) -> Estimate:
    """The estimate of a plan. `kept` are the shares of the last run of the output."""
    costs = step_costs(request, plan, kept)
    shares = ((step, len(step.pending()) / len(step.tasks) if step.tasks else float(step.tasks is None)) for step in plan.steps)
    pending = [(share, costs[step.id]) for step, share in shares if share]
    return Estimate(
        bytes=round(sum(share * cost.bytes for share, cost in pending)),
        core_seconds=sum(share * cost.seconds for share, cost in pending),
        unknown=tuple(dict.fromkeys(name for _, cost in pending for name in cost.unknown)),
        is_all_kept=len(kept_text(plan, kept)) < len(plan.of_kind("map")),
        start_seconds=_START_S + _STEP_S * len(pending) if pending else 0.0,
    )


def step_costs(request: Request, plan: Plan, kept: KeptText) -> dict[str, StepCost]:
    """The estimated cost of every step by its id, whether it is committed or not."""
    texts = _texts(request, plan, kept_text(plan, kept))
    costs: dict[str, StepCost] = {}
    for step in plan.steps:
        parts = list(step.work.cost(plan, step, texts))
        unknown = tuple(name for part in parts for name in part.unknown)
        costs[step.id] = StepCost(sum(part.bytes for part in parts), sum(part.seconds for part in parts), unknown)
    return costs


def estimated_sizes(request: Request, plan: Plan, kept: KeptText) -> list[StepSize]:
    """What each step of a plan would measure."""
    texts, costs = _texts(request, plan, kept_text(plan, kept)), step_costs(request, plan, kept)
    return [_estimated(request, plan, step, costs, texts) for step in plan.steps]


def _estimated(request: Request, plan: Plan, step: Step, costs: Mapping[str, StepCost], texts: Texts) -> StepSize:
    entering, leaving = texts.of_steps.get(step.id, (0.0, 0.0))
    written = _written(request, plan, step, costs, texts).items()
    files = {kind: Files(number=1, bytes=size, row_bytes=size * _UNPACKED, lanes=1, runs=1) for kind, size in written if size}
    return StepSize(
        id=step.id,
        work=step.work,
        source=step.source,
        seconds=costs[step.id].seconds,
        writes=files,
        read=entering / _BYTES_PER_LIMITED,
        kept=leaving / _BYTES_PER_LIMITED,
        kept_bytes=leaving,
        tokens=texts.cleaned[step.source] / BYTES_PER_TOKEN if step.kind == "tokenize" else 0.0,
    )


def _written(request: Request, plan: Plan, step: Step, costs: Mapping[str, StepCost], texts: Texts) -> dict[str, float]:
    """Bytes by kind of file. All rows of a global stage count as emitted ones."""
    if step.kind == "map":
        ending = plan.pipeline.after[step.source][plan.of_kind("map", step.source).index(step)]
        documents = texts.of_steps[step.id][1] * DOCUMENTS
        tables = cast(Global, ending.stage.stage).emits() if isinstance(ending, GlobalStep) else ()
        emitted = {f"emitted.{table}": (costs[step.id].bytes - documents) / len(tables) for table in tables}
        return {DOCUMENT_FILES: documents, **emitted}
    if step.kind == "tokenize":
        strata = request.mixture.sources[step.source].strata
        parts = training_parts(strata and strata.bounds).values()
        return {part: costs[step.id].bytes / len(parts) for part in parts}
    return {{"pack": "shards", "write": "files"}.get(step.kind, step.kind): costs[step.id].bytes}


def kept_text(plan: Plan, before: KeptText | None = None) -> dict[str, float]:
    """The shares of the steps of which tasks are committed, and those before of other steps."""
    steps = plan.of_kind("map")
    shares = {step.id: before[step.id] for step in steps if before is not None and step.id in before}
    for step in steps:
        counts = step.totals.documents
        if counts.read_bytes:
            shares[step.id] = counts.kept_bytes / counts.read_bytes
    return shares


def _texts(request: Request, plan: Plan, kept: KeptText) -> Texts:
    of_steps: dict[str, tuple[float, float]] = {}
    cleaned: dict[str, float] = {}
    read: dict[str, float] = {}
    for name, source in request.sources.items():
        sampled = 1.0 if source.sample is None else source.sample.share
        leaving = sampled * sum(file.text_bytes for file in source.files.values())
        shares = [math.prod(map(passed_on, segment)) for segment in plan.pipeline.segments[name]]
        if request.limit is not None:
            pages = math.prod(map(extracted, chain(*plan.pipeline.segments[name])))
            leaving = min(leaving, request.limit * _BYTES_PER_LIMITED / pages)
        read[name] = leaving / sampled
        for step, assumed in zip(plan.of_kind("map", name), shares):
            of_steps[step.id] = leaving, leaving * kept.get(step.id, assumed)
            _, leaving = of_steps[step.id]
        cleaned[name] = leaving
    training, total = request.mixture.tokenizer.train, sum(cleaned.values())
    share = min(1.0, training.sample_bytes / total) if training is not None and total else 0.0
    training_texts = {name: text * share for name, text in cleaned.items()}
    known = plan.tokenizer or training
    id_bytes = 4 if known is None else token_type(known.vocab_size).bit_width // 8  # the wider ones where neither is known
    budgets = {name: request.mixture.sources[name].max_tokens or math.inf for name in cleaned}
    packed = {name: min(text, budgets[name] * BYTES_PER_TOKEN) for name, text in cleaned.items()}
    of_tokens = {"packed": packed, "sampled": training_texts, "token_bytes": id_bytes / BYTES_PER_TOKEN}
    return Texts(input=read, of_steps=of_steps, cleaned=cleaned, **of_tokens)
