"""What steps write and how long they compute, for estimates: the costs of parts of steps, and the speeds of stages.

Bytes follow from the formats and were within a third of the measured ones. Seconds are those of one core of the machine in
`tests/benchmarks/README.md`, on web pages of 2 kB, and may be three times as many elsewhere."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from datapipe.dataclass import dataclass
from datapipe.stage.base import Filter, Stage
from datapipe.steps.pipeline import BoundStage

DOCUMENTS = 0.5  # bytes of a file of documents per byte of text: compressed, with ids
_ROWS: Mapping[str, float] = {
    "dedup.exact": 0.02,
    "dedup.minhash": 0.45,
    "dedup.lines": 0.4,
    "dedup.substring": 0.8,
    "join.repository": 1.0,
}
"""Bytes of the rows that a global stage exchanges, in all its steps, per byte of text."""

_OTHER_ROWS = 0.5

_MB_PER_S: Mapping[str, float] = {
    "extract.html": 33.0,
    "extract.chat": 60.0,
    "normalize.*": 60.0,
    "filter.url": 500.0,
    "filter.sample": 2000.0,
    "filter.gopher_*": 50.0,
    "filter.language": 50.0,
    "filter.classifier": 50.0,
    "filter.*": 100.0,
    "decontaminate.*": 80.0,
    "redact.*": 150.0,
    "dedup.exact": 500.0,
    "dedup.lines": 30.0,
    "dedup.*": 60.0,
    "join.*": 40.0,
}
"""Megabytes of text a second on one core, by the first pattern that fits the name of a stage. Exchanges are included."""

EXCHANGED = 0.25
"""Share of the time of a global stage that its exchanges take, after its rows were emitted: 0.18 (dedup.substring) to 0.31
(dedup.minhash) on 120 MB of synthetic documents, two cores, 2026-11-23."""

EXTRACTED = 0.1
"""Bytes of text per byte of pages: 0.03 to 0.05 in news and articles, 0.05 to 0.24 in three archives."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step, or of a part of it: bytes written, seconds of one core, and stages of
    unknown speed, which `seconds` leaves out."""

    bytes: float = 0.0
    seconds: float = 0.0
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """Bytes of text in the steps of a run."""

    input: Mapping[str, float]  # in the files of each source
    of_steps: Mapping[str, tuple[float, float]]  # that enter each step of documents and leave it
    cleaned: Mapping[str, float]  # that leave the last segment of each source
    packed: Mapping[str, float]  # of each source, within its budget of tokens
    sampled: Mapping[str, float]  # of each source, that train the tokenizer
    token_bytes: float  # bytes of token ids for a byte of text


def seconds_of(num_bytes: float, mb_per_s: float) -> float:
    return num_bytes / 1e6 / mb_per_s


def stage_cost(stage: Stage, text: float) -> StepCost:
    name = _name(stage)
    speed = next((speed for pattern, speed in _MB_PER_S.items() if fnmatchcase(name, pattern)), None)
    return StepCost(unknown=(name,)) if speed is None else StepCost(seconds=seconds_of(text, speed))


def rows_cost(stage: Stage, text: float) -> StepCost:
    return StepCost(text * _ROWS.get(_name(stage), _OTHER_ROWS))


def extracted(bound: BoundStage) -> float:
    """Bytes of text that a stage makes of a byte."""
    return EXTRACTED if isinstance(bound.stage, Filter) and bound.stage.extracts else 1.0


def passed_on(bound: BoundStage) -> float:
    """The share of the bytes that a stage passes on which drops no more than its options ask for."""
    return float(bound.asked_share) * extracted(bound)


def _name(stage: Stage) -> str:
    module = type(stage).__module__
    return module.removeprefix("stages.") if module.startswith("stages.") else f"{module}:{type(stage).__qualname__}"
