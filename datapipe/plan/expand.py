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
from typing import Literal, cast

from datapipe.config.mixture import Mixture
from datapipe.plan.outputs import ExchangeFile, TableFile, TokenizerFile
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
    MergeTask,
    PackTask,
    Record,
    ReduceTask,
    SampleTask,
    Tables,
    TokenizeTask,
    TrainTask,
    WriteTask,
    fingerprinted,
)
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import Exchange

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

    def resources(self, *names: str) -> tuple[tuple[str, float], ...]:
        """What a task asks for that runs the stages of these names."""
        return self.mixture.execution.resources_for(names)

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
        source = self.mixture.sources[name]
        return [
            fingerprinted(
                MapTask(
                    step=step,
                    source=name,
                    seed=self.mixture.seed,
                    resources=self.resources(*_names(stages, emit)),
                    inputs=tuple(
                        InputSplit(
                            split=split,
                            reader=planned.readers[split.file.path],
                            reader_digest=planned.reader_digests[split.file.path],
                        )
                        for split in group
                    ),
                    fields=planned.field_names(source),
                    limit=limit,
                    stages=stages,
                    emit=emit,
                    source_position=self.source_position(name, emit),
                )
            )
            for group in (planned.groups if limit is None else (planned.splits,))
        ]

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
            task = MapTask(
                step=step,
                source=name,
                seed=self.mixture.seed,
                resources=self.resources(*_names(stages, emit)),
                before=record.fingerprint,
                documents=record.of("documents", TableFile),
                decisions=replace(known, tables=_of_files(known.tables, hashes)) if isinstance(known, Decisions) else None,
                cut=known if isinstance(known, BoundStage) else None,
                stages=stages,
                emit=emit,
                source_position=self.source_position(name, emit),
            )
            tasks.append(fingerprinted(task))
        return tasks

    def source_position(self, name: str, emit: BoundStage | None) -> int | None:
        """The position of a source in the order of the global stage, past its end where the order does not name it."""
        order = cast(Global, emit.stage).source_order() if emit is not None else None
        if order is None:
            return None
        order = order or tuple(self.mixture.sources)
        return order.index(name) if name in order else len(order)

    # -------------------------------------------------------------------------------------------------- global stages

    def reduce_tasks(self, step: str, stage: BoundStage, exchange: Exchange, tables: Tables) -> list[ReduceTask]:
        """One task per hash range of a round, or one for everything where that fits."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        at_once = fits_one_call(tables, exchange.at_once_bytes, bucket_bytes)
        ranges = hash_ranges(_row_bytes(tables), _row_bytes(tables) if at_once else bucket_bytes)
        return [
            fingerprinted(
                ReduceTask(
                    step=step,
                    seed=self.mixture.seed,
                    resources=self.resources(stage.name),
                    stage=stage,
                    exchange=exchange.name,
                    tables=own,
                    start=start,
                    stop=stop,
                    limit_bytes=bucket_bytes + bucket_bytes // 4,
                    at_once=at_once,
                )
            )
            for start, stop, own in _by_range(tables, ranges)
        ]

    def is_reduced_in_one_task(self, tables: Tables, exchange: Exchange | None = None) -> bool:
        """Whether one task reads all rows of an exchange, or of the final tables (None), so that no block is read twice."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        at_once_bytes = 0 if exchange is None else exchange.at_once_bytes
        return _row_bytes(tables) <= bucket_bytes or fits_one_call(tables, at_once_bytes, bucket_bytes)

    def merge_tasks(self, step: str, stage: BoundStage, table: str, files: Sequence[ExchangeFile]) -> list[MergeTask]:
        """One task per hash range of files that are merged with each other."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        tables = {table: tuple(files)}
        return [
            fingerprinted(
                MergeTask(
                    step=step,
                    seed=self.mixture.seed,
                    resources=self.resources(stage.name),
                    stage=stage,
                    table=table,
                    files=own[table],
                    start=start,
                    stop=stop,
                    limit_bytes=bucket_bytes + bucket_bytes // 4,
                )
            )
            for start, stop, own in _by_range(tables, hash_ranges(_row_bytes(tables), bucket_bytes))
        ]

    def gather_tasks(self, step: str, stage: BoundStage, tables: Tables) -> list[GatherTask]:
        """The decisions sorted by document; one task per range of the first halves of keys."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        return [
            fingerprinted(
                GatherTask(
                    step=step,
                    seed=self.mixture.seed,
                    resources=self.resources(stage.name),
                    stage=stage,
                    tables=own,
                    start=start,
                    stop=stop,
                    limit_bytes=bucket_bytes,
                )
            )
            for start, stop, own in _by_range(tables, hash_ranges(_row_bytes(tables), bucket_bytes))
        ]

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
            fingerprinted(
                SampleTask(
                    step=step,
                    source=name,
                    seed=self.mixture.seed,
                    resources=self.resources(),
                    before=record.fingerprint,
                    documents=record.of("documents", TableFile),
                    fraction=fraction,
                    validation=self.mixture.validation,
                    pattern=train.pattern,
                )
            )
            for record in cleaned
        ]

    def train_tasks(self, step: str, samples: Sequence[TableFile]) -> list[TrainTask]:
        train = self.mixture.tokenizer.train
        assert train is not None
        task = TrainTask(
            step=step,
            seed=self.mixture.seed,
            resources=self.resources(step),
            samples=tuple(samples),
            vocab_size=train.vocab_size,
            pattern=train.pattern,
            eos=train.eos,
        )
        return [fingerprinted(task)]

    def load_tasks(self, step: str, content: bytes) -> list[TrainTask]:
        spec, seed = self.mixture.tokenizer, self.mixture.seed
        task = TrainTask(step=step, seed=seed, resources=self.resources(), content=content, eos=spec.eos, bos=spec.bos)
        return [fingerprinted(task)]

    def tokenize_tasks(self, step: str, name: str, cleaned: Sequence[Record], tokenizer: TokenizerFile) -> list[TokenizeTask]:
        strata = self.mixture.sources[name].strata
        return [
            fingerprinted(
                TokenizeTask(
                    step=step,
                    source=name,
                    seed=self.mixture.seed,
                    resources=self.resources("tokenize"),
                    before=record.fingerprint,
                    documents=record.of("documents", TableFile),
                    tokenizer=tokenizer,
                    eos=tokenizer.eos_token,
                    bos=tokenizer.bos_token,
                    validation=self.mixture.validation,
                    strata=None if strata is None else (strata.by, strata.bounds),
                    license_column=self.mixture.sources[name].license_field,
                )
            )
            for record in cleaned
        ]

    def pack_tasks(
        self, step: str, name: str, rows: Mapping[Part, Sequence[ExchangeFile]], tokenizer: TokenizerFile, sequence_length: int
    ) -> list[PackTask]:
        """One task per hash range of each part; a range is about one shard of `target_bytes`."""
        mixture = self.mixture
        return [
            fingerprinted(
                PackTask(
                    step=step,
                    source=name,
                    seed=mixture.seed,
                    resources=self.resources("pack"),
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
                    method=mixture.pack.method,
                    pool_documents=mixture.pack.pool_documents,
                    max_padding=mixture.pack.max_padding,
                    min_piece=mixture.pack.min_piece,
                    format=mixture.shards.format,
                    target_bytes=mixture.shards.target_bytes,
                )
            )
            for (split, stratum), files in rows.items()
            for bucket, (start, stop) in enumerate(
                hash_ranges(sum(file.row_bytes for file in files), mixture.shards.target_bytes)
            )
        ]

    def write_tasks(self, step: str, name: str, cleaned: Sequence[Record]) -> list[WriteTask]:
        """One task per part of about `WRITTEN_BYTES`, and at least one file."""
        spec = self.mixture.documents
        parts = documents_by_part(cleaned, spec.target_bytes * math.ceil(WRITTEN_BYTES / spec.target_bytes))
        return [
            fingerprinted(
                WriteTask(
                    step=step,
                    source=name,
                    seed=self.mixture.seed,
                    resources=self.resources("write"),
                    documents=part.documents,
                    begin=part.begin,
                    start=part.start,
                    stop=part.stop,
                    like=parts[0].documents[0],
                    format=spec.format,
                    target_bytes=spec.target_bytes,
                    license_column=self.mixture.sources[name].license_field,
                )
            )
            for part in parts
        ]


def _of_files(tables: Tables, hashes: Collection[int]) -> Tables:
    """The files that may have rows about documents of these input files."""
    listed = sorted(hashes)

    def overlaps(file: ExchangeFile) -> bool:
        number = bisect_left(listed, file.first)
        return number < len(listed) and listed[number] <= file.last

    return {name: tuple(file for file in files if file.rows and overlaps(file)) for name, files in tables.items()}


def _names(stages: Sequence[BoundStage], emit: BoundStage | None) -> list[str]:
    return [stage.name for stage in (*stages, *([emit] if emit else []))]
