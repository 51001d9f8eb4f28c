"""The steps of a run of another size: numbers of tasks, and sums over the files that they read and write. Pure.

    steps of a run ─▶ each kind adds its steps at the other size (`Task.grow`) ─▶ tasks, files, seconds, requests

What a step writes and computes grows with the text. How many tasks it has follows from sizes, by the functions that plan.
No list is as long as the run: `Files` stands for all files of a kind that a step writes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from datapipe.dataclass import dataclass, field, replace
from datapipe.exchange.files import BLOCK_BYTES, FETCH_BYTES, RUN_BYTES
from datapipe.exchange.tables import HELD_BYTES
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, OutputFile
from datapipe.stage.reader import InputFile
from datapipe.steps.kind import StepKind
from datapipe.steps.pipeline import Pipeline
from datapipe.steps.runs import fan_in
from datapipe.storage.object_store import AHEAD_BYTES, PART_BYTES
from datapipe.storage.root import REQUEST_BYTES, is_remote

if TYPE_CHECKING:
    from datapipe.steps.request import Request

_OF_TASKS = frozenset({"measured", "borderline", "survivors", "findings", "used_ids"})
"""Files of about one size, whatever a task reads."""

_DISJOINT = 0.5  # sorted runs that overlap, of all: fewer where tasks write a range of hashes each


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """Files of one kind. Numbers are sums over all of them, and may be fractions."""

    number: float = 0.0
    bytes: float = 0.0
    row_bytes: float = 0.0
    lanes: float = 0.0  # sets of files that do not overlap: all files that may hold one hash
    runs: float = 0.0  # sorted runs that one hash may be in

    @classmethod
    def of(cls, files: Sequence[OutputFile]) -> Self:
        """Of committed files."""
        sizes = [getattr(file, "row_bytes", 0) for file in files]
        runs = fan_in([file for file in files if isinstance(file, ExchangeFile)])
        lanes = len(files) if runs > _DISJOINT * len(files) else runs
        return cls(number=len(files), bytes=sum(file.bytes for file in files), row_bytes=sum(sizes), lanes=lanes, runs=runs)

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def part(self, share: float) -> Self:
        """The part of a range of hashes, which all files have."""
        return replace(self, bytes=self.bytes * share, row_bytes=self.row_bytes * share)

    def grown(self, factor: float, number: float) -> Self:
        """Of so many times the bytes in `number` files, which overlap as these do."""
        if not self.number:
            return self
        row_bytes, is_disjoint = self.row_bytes * factor, self.lanes < self.number
        lanes = min(self.lanes, number) if is_disjoint else number
        runs = 1 if is_disjoint else max(self.runs / self.number, math.ceil(row_bytes / number / RUN_BYTES) if number else 0)
        return replace(self, number=number, bytes=self.bytes * factor, row_bytes=row_bytes, lanes=lanes, runs=lanes * runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """What the tasks of a step read, with the requests to an object store."""

    bytes: float = 0.0
    gets: float = 0.0
    heads: float = 0.0

    @classmethod
    def whole(cls, files: Files) -> Self:
        """Each file once, and twice where it is too large to be held."""
        if files.bytes <= HELD_BYTES * files.number:
            return cls(bytes=files.bytes, gets=files.number)
        return cls(bytes=2 * files.bytes, gets=files.number + 2 * files.bytes / REQUEST_BYTES, heads=files.number)

    @classmethod
    def by_range(cls, files: Files, num_ranges: float) -> Self:
        """The files of a table, by tasks on ranges of its hashes: of each file the index, and the blocks of each run, of which
        one is about half outside of each range."""
        if not files.number or not num_ranges:
            return cls()
        opened = files.lanes * num_ranges + files.number - files.lanes
        fetched = opened * max(1.0, files.runs / files.lanes)
        beside = fetched * min(BLOCK_BYTES, files.bytes / files.number)
        return cls(bytes=files.bytes + beside, gets=opened + max(fetched, fetched / 2 + files.bytes / FETCH_BYTES))

    @classmethod
    def by_key(cls, files: Files, opened: float, share: float) -> Self:
        """The rows about the documents of tasks, a share of all: of each file that a task opens the index, and blocks."""
        return cls(bytes=share * files.bytes, gets=opened + max(opened, share * files.bytes / BLOCK_BYTES))

    @classmethod
    def of_input(cls, files: Iterable[InputFile], num_bytes: float, num_splits: float) -> Self:
        """Input files, which cost no request of the output's store where they are local. Each is compared when it is read."""
        if not any(is_remote(file.url) for file in files):
            return cls(bytes=num_bytes)
        return cls(bytes=num_bytes, gets=num_splits + num_bytes / AHEAD_BYTES, heads=2 * num_splits)


@dataclass(frozen=True, kw_only=True, slots=True)
class GrownSource:
    """A source at the other size."""

    factor: float  # how many times the text
    tasks: int  # that read it
    reads: Reads
    files_a_task: float  # input files, at least one


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSize:
    """A step of the run that is measured or estimated, or the same at the other size."""

    id: str
    work: StepKind
    source: str = ""
    tasks: int = 1
    seconds: float = 0.0  # of one core
    writes: Mapping[str, Files] = field(default_factory=dict)  # by kind
    reads: Sequence[Reads] = ()  # at the other size
    # read, kept: documents; kept_bytes: of their text; tokens: that it wrote
    read: float = 0.0
    kept: float = 0.0
    kept_bytes: float = 0.0
    tokens: float = 0.0
    metrics: TaskMetrics | None = None  # of a step of one task that has run

    @property
    def kind(self) -> str:
        return self.work.kind

    @property
    def bytes_written(self) -> float:
        return sum(files.bytes for files in self.writes.values())

    @property
    def bytes_read(self) -> float:
        """With shards, which the tasks that write them read back."""
        return sum(reads.bytes for reads in self.reads) + self.writes.get("shards", Files()).bytes

    @property
    def requests(self) -> Counter[str]:
        """Requests to an object store, by class. Parts of large files count as PUT; so do copies of shards to their names."""
        puts = sum(files.number + _parts(files) for files in self.writes.values())
        shards = self.writes.get("shards", Files())
        checked = shards.number + shards.bytes / REQUEST_BYTES
        gets, heads = (sum(getattr(each, name) for each in self.reads) for name in ("gets", "heads"))
        return Counter({"PUT": round(puts + shards.number), "GET": round(gets + checked), "HEAD": round(heads + shards.number)})


def _parts(files: Files) -> float:
    """Requests beyond one for each file."""
    return files.number + files.bytes / PART_BYTES if files.bytes > PART_BYTES * files.number else 0.0


class Growth:
    """A run of another size in the making: `steps` of it by id, from the measured ones (`sizes`). `tables`: by global step, or
    step that packs, its tables so far. `sampled`: the share of text that trains the tokenizer, before and at the other size."""

    def __init__(
        self, request: Request, pipeline: Pipeline, sizes: Iterable[StepSize], sources: Mapping[str, GrownSource]
    ) -> None:
        self.request, self.mixture, self.pipeline, self.sources = request, request.mixture, pipeline, sources
        self.bucket_bytes = request.mixture.execution.bucket_bytes
        self.steps: dict[str, StepSize] = {}
        self.tables: dict[str, dict[str, Files]] = {}
        by_id = {step.id: step for step in sizes}
        kept = {source: by_id[self.cleaned(source)].kept_bytes for source in sources}
        self.factor = sum(sources[name].factor * size for name, size in kept.items()) / (sum(kept.values()) or 1.0)
        self.sampled = tuple(self._sampled(size) for size in (sum(kept.values()), self.factor * sum(kept.values())))

    def cleaned(self, source: str) -> str:
        """The step that leaves the cleaned documents of a source."""
        return self.pipeline.map_step(source, len(self.pipeline.segments[source]) - 1)

    def _sampled(self, kept_bytes: float) -> float:
        """The share of the text that trains the tokenizer."""
        training = self.mixture.tokenizer.train
        return 0.0 if training is None or not kept_bytes else min(1.0, training.sample_bytes / kept_bytes)

    @property
    def sample_factor(self) -> float:
        """How many times the text of the sample; 1 where a run takes a tokenizer as it is."""
        before, after = self.sampled
        return 1.0 if self.request.tokenizer_content or not before else self.factor * after / before

    def whole(self, files: Files) -> Reads:
        """Each file once; on a disk twice, first for its checksum."""
        return Reads.whole(files) if is_remote(self.mixture.output) else Reads(bytes=2 * files.bytes)

    def documents(self, source: str) -> Reads:
        """The cleaned documents of a source."""
        return self.whole(self.steps[self.cleaned(source)].writes.get("documents", Files()))

    def add(self, step: StepSize, tasks: int, *reads: Reads, factor: float | None = None) -> StepSize:
        """Adds a step. `factor`: how many times what it computes and writes; None for that of its text."""
        if factor is None:
            factor = self.sources[step.source].factor if step.source else self.factor
        more_tasks = tasks / max(1, step.tasks)
        writes = {
            kind: files.grown(more_tasks if kind.removeprefix("folded.") in _OF_TASKS else factor, files.number * more_tasks)
            for kind, files in step.writes.items()
        }
        factor = factor if tasks else 0.0
        numbers = {name: getattr(step, name) * factor for name in ("seconds", "read", "kept", "kept_bytes", "tokens")}
        self.steps[step.id] = replace(step, tasks=tasks, writes=writes, reads=reads, **numbers)
        return self.steps[step.id]
