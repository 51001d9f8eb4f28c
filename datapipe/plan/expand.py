"""The tasks of each kind of step, with their fingerprints. Pure.

Bucket counts come from committed sizes, never from the number of workers, and are in no fingerprint of the tasks that made
the rows. A task's inputs enter its fingerprint by their checksums, so equal content needs no second run even where the
tasks that made it differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import xxhash

from datapipe.config.mixture import Mixture
from datapipe.plan.fingerprint import fingerprint
from datapipe.plan.request import PlannedSource
from datapipe.plan.sampling import sample_fractions
from datapipe.plan.splits import file_hash
from datapipe.plan.weighting import BYTES_PER_TOKEN, shares_of
from datapipe.plan.work import (
    HASH_SPACE,
    BoundStage,
    Decisions,
    GatherTask,
    MapTask,
    MergeTask,
    OutputRef,
    PackTask,
    Record,
    ReduceTask,
    SampleTask,
    Tables,
    Task,
    TokenizeTask,
    TrainTask,
)
from datapipe.stage.base import FieldNames, Split
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import Exchange

Part = tuple[Literal["train", "validation"], int | None]
"""Split and stratum: rows that are packed together."""


def hash_ranges(total_bytes: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """Half-open ranges that cut the space of 64-bit hashes into buckets of about `bucket_bytes` each; none for nothing."""
    count = math.ceil(total_bytes / bucket_bytes)
    borders = [HASH_SPACE * number // count for number in range(count)] + [HASH_SPACE]
    return list(zip(borders[:-1], borders[1:])) if count else []


def fits_one_task(tables: Tables, at_once_bytes: int | None, bucket_bytes: int) -> bool:
    """Whether an exchange is done in one call, as `Exchange.at_once_bytes` has it."""
    budget = bucket_bytes if at_once_bytes is None else at_once_bytes
    return 0 < _weight(tables) <= budget


def _weight(tables: Tables) -> int:
    return sum(output.weight for files in tables.values() for output in files)


def _by_range(tables: Tables, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, dict[str, tuple[OutputRef, ...]]]]:
    """Ranges of hashes, ascending, each with the files that may have rows of it, in an order that their content gives.

    Ranges that no file has rows of are left out. Every file is looked at where it begins, ends and lies between, and not in
    all ranges, of which there are as many as there are files.
    """
    ahead = {name: sorted((one for one in files if one.rows), key=_first, reverse=True) for name, files in tables.items()}
    here: dict[str, list[OutputRef]] = {name: [] for name in tables}
    for start, stop in ranges:
        for name, files in ahead.items():
            while files and _first(files[-1]) < stop:
                here[name].append(files.pop())
            here[name] = [one for one in here[name] if _last(one) >= start]
        if any(here.values()):
            yield start, stop, {name: tuple(sorted(files, key=lambda one: one.checksum)) for name, files in here.items()}


def _first(output: OutputRef) -> int:
    return int((output.facts or {})["first"])


def _last(output: OutputRef) -> int:
    return int((output.facts or {})["last"])


def _table_checksums(tables: Tables) -> dict[str, list[str]]:
    return {name: _checksums(files) for name, files in sorted(tables.items())}


def _checksums(outputs: Iterable[OutputRef]) -> list[str]:
    """What identifies a set of exchanged files: reducers sort, so the order of the files is no part of it."""
    return sorted(output.checksum + (" settled" if output.is_reference else "") for output in outputs)


class Expander:
    """Makes the tasks of one mixture."""

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture

    def common(self, step: str, source: str, kind: str, uses: Sequence[str], **parts: Any) -> dict[str, Any]:
        """The fields every task has. `uses` names what runs in it, for the resources it asks for."""
        return {
            "step": step,
            "source": source,
            "seed": self.mixture.seed,
            "fingerprint": fingerprint(kind, seed=self.mixture.seed, source=source, **parts),
            "resources": self.mixture.execution.resources_for(uses),
        }

    # -------------------------------------------------------------------------------------------------- cleaning

    def read_tasks(
        self,
        step: str,
        name: str,
        planned: PlannedSource,
        stages: tuple[BoundStage, ...],
        emit: BoundStage | None,
        limit: int | None,
    ) -> Sequence[Task]:
        source = self.mixture.sources[name]
        fields = FieldNames(text=source.text, id=source.id, keep=source.keep)
        groups = planned.groups
        if limit is not None:
            groups = (tuple(split for group in groups for split in group),)
        options: dict[str, Any] = {"fields": [fields.text, fields.id, list(fields.keep)], "limit": limit} | _stage_parts(
            stages, emit
        )
        place = self.source_place(name, emit)
        if place is not None:
            options["source_place"] = place
        uses = _names(stages, emit)
        return [
            MapTask(
                **self.common(step, name, "map", uses, splits=[_split_parts(split, planned) for split in group], **options),
                splits=group,
                readers=tuple(planned.readers[split.file.path] for split in group),
                fields=fields,
                limit=limit,
                stages=stages,
                emit=emit,
                source_place=place,
            )
            for group in groups
        ]

    def later_tasks(
        self,
        step: str,
        name: str,
        planned: PlannedSource,
        before: Sequence[Record],
        decisions: Decisions,
        stages: tuple[BoundStage, ...],
        emit: BoundStage | None,
    ) -> Sequence[Task]:
        """One task for each of the step before; it is given the verdicts on documents of its own input files alone."""
        groups = planned.groups if len(before) == len(planned.groups) else (planned.splits,)  # with a limit one task reads all
        place = self.source_place(name, emit)
        placed = {} if place is None else {"source_place": place}
        tasks: list[Task] = []
        for splits, record in zip(groups, before, strict=True):
            hashes = {file_hash(name, split.file.path) for split in splits}
            own = replace(decisions, tables=_of_files(decisions.tables, hashes))
            judged: dict[str, Any] = {
                "name": own.name,
                "rule": own.rule,
                "tables": _table_checksums(own.tables),
                "size_column": own.size_column,
                "cluster_column": own.cluster_column,
                "removed_share": own.removed_share,
            }
            options: dict[str, Any] = {"decisions": judged} | _stage_parts(stages, emit) | placed
            tasks.append(
                MapTask(
                    **self.common(step, name, "map", _names(stages, emit), before=record.fingerprint, **options),
                    documents=record.of("documents"),
                    decisions=own,
                    stages=stages,
                    emit=emit,
                    source_place=place,
                )
            )
        return tasks

    def source_place(self, name: str, emit: BoundStage | None) -> int | None:
        """The place of a source in the order that the global stage goes by, past its end where it is not named."""
        order = cast(Global, emit.stage).source_order() if emit is not None else None
        if order is None:
            return None
        order = order or tuple(self.mixture.sources)
        return order.index(name) if name in order else len(order)

    def reduce_tasks(self, step: str, stage: BoundStage, exchange: Exchange, tables: Tables) -> Sequence[Task]:
        """One task per range of hashes of a round, or one for everything where that fits."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        at_once = fits_one_task(tables, exchange.at_once_bytes, bucket_bytes)
        ranges = hash_ranges(_weight(tables), _weight(tables) if at_once else bucket_bytes)
        tasks: list[Task] = []
        for start, stop, own in _by_range(tables, ranges):
            parts: dict[str, Any] = {"stage": stage.digest, "exchange": exchange.name, "tables": _table_checksums(own)}
            tasks.append(
                ReduceTask(
                    **self.common(step, "", "reduce", [stage.name], **parts, range=[start, stop], at_once=at_once),
                    stage=stage,
                    exchange=exchange.name,
                    tables=own,
                    start=start,
                    stop=stop,
                    limit_bytes=bucket_bytes + bucket_bytes // 4,
                    at_once=at_once,
                )
            )
        return tasks

    def is_met_in_one_task(self, tables: Tables, exchange: Exchange | None = None) -> bool:
        """Whether an exchange, or the gathering of verdicts, reads all rows in one task, so that no block is read twice."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        at_once_bytes = 0 if exchange is None else exchange.at_once_bytes
        return _weight(tables) <= bucket_bytes or fits_one_task(tables, at_once_bytes, bucket_bytes)

    def merge_tasks(self, step: str, stage: BoundStage, table: str, files: Sequence[OutputRef]) -> Sequence[Task]:
        """One task per range of hashes of files that are merged with each other."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        tables = {table: tuple(files)}
        return [
            MergeTask(
                **self.common(step, "", "merge", [stage.name], tables=_table_checksums(own), range=[start, stop]),
                stage=stage,
                table=table,
                files=own[table],
                start=start,
                stop=stop,
                limit_bytes=bucket_bytes + bucket_bytes // 4,
            )
            for start, stop, own in _by_range(tables, hash_ranges(_weight(tables), bucket_bytes))
        ]

    def gather_tasks(self, step: str, stage: BoundStage, tables: Tables) -> Sequence[Task]:
        """The verdicts by document; one task per range of the first halves of keys."""
        bucket_bytes = self.mixture.execution.bucket_bytes
        tasks: list[Task] = []
        for start, stop, own in _by_range(tables, hash_ranges(_weight(tables), bucket_bytes)):
            tasks.append(
                GatherTask(
                    **self.common(step, "", "gather", [stage.name], tables=_table_checksums(own), range=[start, stop]),
                    stage=stage,
                    tables=own,
                    start=start,
                    stop=stop,
                    limit_bytes=bucket_bytes,
                )
            )
        return tasks

    # -------------------------------------------------------------------------------------------------- tokens

    def sample_fractions(self, kept_bytes: Mapping[str, int]) -> dict[str, float]:
        train = self.mixture.tokenizer.train
        assert train is not None
        shares = shares_of(self.mixture, {name: math.ceil(size / BYTES_PER_TOKEN) for name, size in kept_bytes.items()})
        return sample_fractions(kept_bytes, shares, train.sample_bytes, self.mixture.validation)

    def sample_tasks(self, step: str, name: str, cleaned: Sequence[Record], fraction: float) -> Sequence[Task]:
        options: dict[str, Any] = {"fraction": fraction, "validation": self.mixture.validation}
        return [
            SampleTask(
                **self.common(step, name, "sample", [], before=record.fingerprint, **options),
                documents=record.of("documents"),
                **options,
            )
            for record in cleaned
        ]

    def train_task(self, step: str, samples: Sequence[OutputRef]) -> Sequence[Task]:
        train = self.mixture.tokenizer.train
        assert train is not None
        options: dict[str, Any] = {"vocab_size": train.vocab_size, "pattern": train.pattern, "eos": train.eos}
        inputs = [output.checksum for output in samples]
        return [
            TrainTask(**self.common(step, "", "train", [step], samples=inputs, **options), samples=tuple(samples), **options)
        ]

    def load_task(self, step: str, content: bytes) -> Sequence[Task]:
        eos = self.mixture.tokenizer.eos
        digest = xxhash.xxh3_128_hexdigest(content)
        return [TrainTask(**self.common(step, "", "train", [], content=digest, eos=eos), content=content, eos=eos)]

    def tokenize_tasks(self, step: str, name: str, cleaned: Sequence[Record], tokenizer: OutputRef) -> Sequence[Task]:
        strata = self.mixture.sources[name].strata
        cut = None if strata is None else (strata.by, strata.bounds)
        options: dict[str, Any] = {"validation": self.mixture.validation, "strata": cut}
        eos = cast("str | None", (tokenizer.facts or {}).get("eos_token"))
        known: dict[str, Any] = {**options, "tokenizer": tokenizer.checksum}
        return [
            TokenizeTask(
                **self.common(step, name, "tokenize", ["tokenize"], before=record.fingerprint, **known),
                documents=record.of("documents"),
                tokenizer=tokenizer,
                eos=eos,
                **options,
            )
            for record in cleaned
        ]

    def pack_tasks(
        self, step: str, name: str, rows: Mapping[Part, Sequence[OutputRef]], tokenizer: OutputRef, sequence_length: int
    ) -> Sequence[Task]:
        """One task per range of hashes of each part; a range is about one shard of `target_bytes`."""
        mixture, facts = self.mixture, tokenizer.facts or {}
        options: dict[str, Any] = {
            "tokenizer_fingerprint": str(facts["fingerprint"]),
            "vocab_size": int(facts["vocab_size"]),
            "eos_id": int(facts["eos_id"]),
            "sequence_length": sequence_length,
            "method": mixture.pack.method,
            "pool_documents": mixture.pack.pool_documents,
            "min_piece": mixture.pack.min_piece,
            "format": mixture.shards.format,
            "target_bytes": mixture.shards.target_bytes,
        }
        tasks: list[PackTask] = []
        for (split, stratum), outputs in rows.items():
            files, inputs = tuple(outputs), _checksums(outputs)
            ranges = hash_ranges(sum(output.weight for output in files), mixture.shards.target_bytes)
            tasks += [
                PackTask(
                    **self.common(
                        step, name, "pack", ["pack"], files=inputs, range=[start, stop], split=split, stratum=stratum, **options
                    ),
                    files=files,
                    start=start,
                    stop=stop,
                    bucket=bucket,
                    split=split,
                    stratum=stratum,
                    **options,
                )
                for bucket, (start, stop) in enumerate(ranges)
            ]
        return tasks


def _of_files(tables: Tables, hashes: Collection[int]) -> Tables:
    """The files that may have rows about documents of these input files."""
    listed = sorted(hashes)

    def is_own(output: OutputRef) -> bool:
        at = bisect_left(listed, _first(output))
        return at < len(listed) and listed[at] <= _last(output)

    return {name: tuple(output for output in files if output.rows and is_own(output)) for name, files in tables.items()}


def _names(stages: Sequence[BoundStage], emit: BoundStage | None) -> list[str]:
    return [stage.name for stage in (*stages, *([emit] if emit else []))]


def _stage_parts(stages: Sequence[BoundStage], emit: BoundStage | None) -> dict[str, Any]:
    return {
        "stages": [[stage.name, stage.digest] for stage in stages],
        "emit": None if emit is None else [emit.name, emit.emit_digest],
    }


def _split_parts(split: Split, planned: PlannedSource) -> list[Any]:
    file = split.file
    return [planned.reader_digests[file.path], file.path, file.num_bytes, file.stamp, split.start, split.stop]
