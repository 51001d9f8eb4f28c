"""The tasks of each kind of step, with their fingerprints. Pure.

Bucket counts come from committed sizes, never from the number of workers, and enter no fingerprint of the tasks that wrote the
rows. Exchange files enter a task's fingerprint by their checksums, so equal content needs no second run even where the tasks
that wrote it differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from datapipe.config.mixture import Mixture
from datapipe.plan.outputs import ExchangeFile, TableFile, TokenizerFile
from datapipe.plan.ranking import NarrowTask, RankTask, file_groups
from datapipe.plan.request import PlannedSource
from datapipe.plan.splits import WRITTEN_BYTES, documents_by_part, file_hash
from datapipe.plan.weighting import BYTES_PER_TOKEN, sample_fractions, shares_of
from datapipe.plan.work import (
    HASH_SPACE,
    BoundStage,
    Decisions,
    GatherTask,
    InputSplit,
    MapTask,
    PackTask,
    RangeTask,
    Record,
    ReduceTask,
    SampleTask,
    T,
    Tables,
    TokenizeTask,
    TrainTask,
    WriteTask,
    fingerprinted,
)
from datapipe.stage.global_stage import Global
from datapipe.stage.ranking import Interval, KeptShare
from datapipe.stage.reader import Split
from datapipe.stage.tables import Exchange

R = TypeVar("R", bound=RangeTask)

Part = tuple[Literal["train", "validation"], int | None]
"""Split and stratum: rows that are packed together."""


def hash_ranges(total_bytes: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """Half-open ranges that cut the space of 64-bit hashes into buckets of about `bucket_bytes` each; none for nothing."""
    count = math.ceil(total_bytes / bucket_bytes)
    borders = [HASH_SPACE * number // count for number in range(count)] + [HASH_SPACE]
    return list(zip(borders[:-1], borders[1:])) if count else []


def fits_one_call(tables: Tables, at_once_bytes: int | None, bucket_bytes: int) -> bool:
    """Whether an exchange is done in one call; see `Exchange.at_once_bytes`."""
    budget = bucket_bytes // 2 if at_once_bytes is None else at_once_bytes
    return 0 < _row_bytes(tables) <= budget


def _row_bytes(tables: Tables) -> int:
    return sum(file.row_bytes for files in tables.values() for file in files)


def _by_range(tables: Tables, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, Tables]]:
    """Ascending hash ranges, each with the files that may have rows in it, in the order of their checksums.

    Ranges without a file are left out. One sweep opens each file where it begins and closes it where it ends, because there
    are as many ranges as files.
    """
    ahead = {name: sorted((file for file in files if file.rows), key=_first, reverse=True) for name, files in tables.items()}
    overlapping: dict[str, list[ExchangeFile]] = {name: [] for name in tables}
    for start, stop in ranges:
        for name, files in ahead.items():
            while files and files[-1].first < stop:
                overlapping[name].append(files.pop())
            overlapping[name] = [file for file in overlapping[name] if file.last >= start]
        if any(overlapping.values()):
            yield start, stop, {name: tuple(sorted(files, key=_checksum)) for name, files in overlapping.items()}


def _first(file: ExchangeFile) -> int:
    return file.first


def _checksum(file: ExchangeFile) -> str:
    return file.checksum


class Expander:
    """Makes the tasks of one mixture."""

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture

    def task(self, kind: type[T], step: str, runs: Sequence[str] = (), **own: Any) -> T:
        """A task with its fingerprint.

        Args:
            runs: names of what it runs, by which the mixture gives resources.
            own: its fields.
        """
        resources = self.mixture.execution.resources_for(runs)
        return fingerprinted(kind(step=step, seed=self.mixture.seed, resources=resources, **own))

    # -------------------------------------------------------------------------------------------------- cleaning

    def read_tasks(
        self,
        step: str,
        name: str,
        planned: PlannedSource,
        stages: tuple[BoundStage, ...],
        emit: BoundStage | None,
        limit: int | None,
    ) -> list[MapTask]:
        """One task per group of splits; a limited run reads everything in one task."""
        readers, digests = planned.readers, planned.reader_digests
        fields = planned.field_names(self.mixture.sources[name])

        def inputs(splits: Sequence[Split]) -> tuple[InputSplit, ...]:
            paths = ((split, split.file.path) for split in splits)
            return tuple(InputSplit(split=split, reader=readers[path], reader_digest=digests[path]) for split, path in paths)

        groups = planned.groups if limit is None else (planned.splits,)
        return [self.map_task(step, name, stages, emit, inputs=inputs(group), fields=fields, limit=limit) for group in groups]

    def later_tasks(
        self,
        step: str,
        name: str,
        planned: PlannedSource,
        before: Sequence[Record],
        known: Decisions | BoundStage,
        stages: tuple[BoundStage, ...],
        emit: BoundStage | None,
    ) -> list[MapTask]:
        """One task per task of the step before, with the decisions on documents of its own input files alone, or with a filter
        whose cut is known."""
        groups = planned.groups if len(before) == len(planned.groups) else (planned.splits,)  # a limited run has one task
        tasks: list[MapTask] = []
        for splits, record in zip(groups, before, strict=True):
            hashes = {file_hash(name, split.file.path) for split in splits}
            decisions = replace(known, tables=_of_files(known.tables, hashes)) if isinstance(known, Decisions) else None
            cut = known if isinstance(known, BoundStage) else None
            tasks.append(self.map_task(step, name, stages, emit, **_documents(record), decisions=decisions, cut=cut))
        return tasks

    def map_task(self, step: str, name: str, stages: tuple[BoundStage, ...], emit: BoundStage | None, **own: Any) -> MapTask:
        runs = [stage.name for stage in (*stages, *([emit] if emit else []))]
        position = self.source_position(name, emit)
        return self.task(MapTask, step, runs, source=name, stages=stages, emit=emit, source_position=position, **own)

    def source_position(self, name: str, emit: BoundStage | None) -> int | None:
        """The position of a source in the order of the global stage, past its end where the order does not name it."""
        order = cast(Global, emit.stage).source_order() if emit is not None else None
        if order is None:
            return None
        order = order or tuple(self.mixture.sources)
        return order.index(name) if name in order else len(order)

    # -------------------------------------------------------------------------------------------------- global stages

    def range_tasks(self, kind: type[R], step: str, stage: BoundStage, tables: Tables, **own: Any) -> list[R]:
        """One task per hash range of some tables of a global stage, of about `bucket_bytes`."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        ranges = hash_ranges(_row_bytes(tables), _row_bytes(tables) if own.get("at_once") else bucket_bytes)
        own["limit_bytes"] = bucket_bytes if kind is GatherTask else bucket_bytes + bucket_bytes // 4
        return [
            self.task(kind, step, [stage.name], stage=stage, tables=files, start=start, stop=stop, **own)
            for start, stop, files in _by_range(tables, ranges)
        ]

    def reduce_tasks(self, step: str, stage: BoundStage, exchange: Exchange, tables: Tables) -> list[ReduceTask]:
        """One task per hash range of a round, or one for everything where that fits."""
        at_once = fits_one_call(tables, exchange.at_once_bytes, self.mixture.execution.bucket_bytes)
        return self.range_tasks(ReduceTask, step, stage, tables, exchange=exchange.name, at_once=at_once)

    def is_reduced_in_one_task(self, tables: Tables, exchange: Exchange | None = None) -> bool:
        """Whether one task reads all rows of an exchange, or of the final tables (None), so that no block is read twice."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        at_once_bytes = 0 if exchange is None else exchange.at_once_bytes
        return _row_bytes(tables) <= bucket_bytes or fits_one_call(tables, at_once_bytes, bucket_bytes)

    # -------------------------------------------------------------------------------------------------- shares

    def rank_tasks(self, step: str, source: str, stage: str, scores: Sequence[TableFile], interval: Interval) -> list[RankTask]:
        """One task for about a quarter of a bucket of scores."""
        groups = file_groups(scores, self.mixture.execution.bucket_bytes // 4)
        return [self.task(RankTask, step, source=source, stage=stage, scores=files, interval=interval) for files in groups]

    def narrow_tasks(
        self, step: str, source: str, stage: str, summaries: tuple[TableFile, ...], interval: Interval, share: KeptShare
    ) -> list[NarrowTask]:
        own = {"source": source, "stage": stage, "summaries": summaries, "interval": interval, "share": share}
        return [self.task(NarrowTask, step, **own)]

    # -------------------------------------------------------------------------------------------------- tokens

    def sample_fractions(self, kept_bytes: Mapping[str, int]) -> dict[str, float]:
        train = self.mixture.tokenizer.train
        assert train is not None
        shares = shares_of(self.mixture, {name: math.ceil(size / BYTES_PER_TOKEN) for name, size in kept_bytes.items()})
        return sample_fractions(kept_bytes, shares, train.sample_bytes, self.mixture.validation)

    def sample_tasks(self, step: str, name: str, cleaned: Sequence[Record], fraction: float) -> list[SampleTask]:
        train = self.mixture.tokenizer.train
        assert train is not None
        return [
            self.task(
                SampleTask,
                step,
                source=name,
                fraction=fraction,
                validation=self.mixture.validation,
                pattern=train.pattern,
                **_documents(record),
            )
            for record in cleaned
        ]

    def train_tasks(self, step: str, samples: Sequence[TableFile]) -> list[TrainTask]:
        train = self.mixture.tokenizer.train
        assert train is not None
        options = {"vocab_size": train.vocab_size, "pattern": train.pattern, "eos": train.eos}
        return [self.task(TrainTask, step, [step], samples=tuple(samples), **options)]

    def load_tasks(self, step: str, content: bytes) -> list[TrainTask]:
        spec = self.mixture.tokenizer
        return [self.task(TrainTask, step, content=content, eos=spec.eos, bos=spec.bos)]

    def tokenize_tasks(self, step: str, name: str, cleaned: Sequence[Record], tokenizer: TokenizerFile) -> list[TokenizeTask]:
        source = self.mixture.sources[name]
        return [
            self.task(
                TokenizeTask,
                step,
                ["tokenize"],
                source=name,
                tokenizer=tokenizer,
                validation=self.mixture.validation,
                strata=source.strata and (source.strata.by, source.strata.bounds),
                license_column=source.license_field,
                **_documents(record),
            )
            for record in cleaned
        ]

    def pack_tasks(
        self, step: str, name: str, rows: Mapping[Part, Sequence[ExchangeFile]], tokenizer: TokenizerFile, sequence_length: int
    ) -> list[PackTask]:
        """One task per hash range of each part; a range is about one shard of `target_bytes`."""
        pack, shards = self.mixture.pack, self.mixture.shards
        return [
            self.task(
                PackTask,
                step,
                ["pack"],
                source=name,
                files=tuple(files),
                start=start,
                stop=stop,
                bucket=bucket,
                split=split,
                stratum=stratum,
                tokenizer_fingerprint=tokenizer.fingerprint,
                vocab_size=tokenizer.vocab_size,
                eos_id=tokenizer.eos_id,
                sequence_length=sequence_length,
                method=pack.method,
                pool_documents=pack.pool_documents,
                max_padding=pack.max_padding,
                min_piece=pack.min_piece,
                format=shards.format,
                target_bytes=shards.target_bytes,
            )
            for (split, stratum), files in rows.items()
            for bucket, (start, stop) in enumerate(hash_ranges(sum(file.row_bytes for file in files), shards.target_bytes))
        ]

    def write_tasks(self, step: str, name: str, cleaned: Sequence[Record]) -> list[WriteTask]:
        """One task per part of about `WRITTEN_BYTES`, and at least one file."""
        spec = self.mixture.documents
        parts = documents_by_part(cleaned, spec.target_bytes * math.ceil(WRITTEN_BYTES / spec.target_bytes))
        return [
            self.task(
                WriteTask,
                step,
                ["write"],
                source=name,
                documents=part.documents,
                begin=part.begin,
                start=part.start,
                stop=part.stop,
                like=parts[0].documents[0],
                format=spec.format,
                target_bytes=spec.target_bytes,
                license_column=self.mixture.sources[name].license_field,
            )
            for part in parts
        ]


def _documents(record: Record) -> dict[str, Any]:
    """The fields of a task that reads what the task of a record wrote."""
    return {"before": record.fingerprint, "documents": record.of("documents", TableFile)}


def _of_files(tables: Tables, hashes: Collection[int]) -> Tables:
    """The files that may have rows about documents of these input files."""
    listed = sorted(hashes)

    def overlaps(file: ExchangeFile) -> bool:
        number = bisect_left(listed, file.first)
        return number < len(listed) and listed[number] <= file.last

    return {name: tuple(file for file in files if file.rows and overlaps(file)) for name, files in tables.items()}
