"""What each task of a step has of its own: its inputs, its hash range, its part. Pure.

Bucket counts come from committed sizes, never from the number of workers, and enter no fingerprint of the tasks that wrote the
rows. Exchange files enter a task's fingerprint by their checksums, so equal content needs no second run even where the tasks
that wrote it differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal, cast

from datapipe.config.mixture import Mixture
from datapipe.records.outputs import ExchangeFile, TableFile, Tables
from datapipe.records.record import Record
from datapipe.stage.global_stage import Global
from datapipe.steps.request import PlannedSource
from datapipe.steps.splits import WRITTEN_BYTES, documents_by_part, file_hash
from datapipe.steps.work import HASH_SPACE, BoundStage, Decisions, InputSplit

Fields = dict[str, Any]
"""Fields of a task."""

Part = tuple[Literal["train", "validation"], int | None]
"""Split and stratum: rows that are packed together."""

# ---------------------------------------------------------------------------------------------------- cleaning


def of_inputs(planned: PlannedSource, limit: int | None) -> Iterator[Fields]:
    """One task per group of splits; a limited run reads everything in one task."""
    for group in planned.groups if limit is None else (planned.splits,):
        paths = [(split, split.file.path) for split in group]
        inputs = (
            InputSplit(split=split, reader=planned.readers[path], reader_digest=planned.reader_digests[path])
            for split, path in paths
        )
        yield {"inputs": tuple(inputs)}


def of_later_segment(
    name: str, planned: PlannedSource, before: Sequence[Record], known: Decisions | BoundStage
) -> Iterator[Fields]:
    """One task per task of the step before, with the decisions on documents of its own input files alone, or with a filter
    whose cut is known."""
    groups = planned.groups if len(before) == len(planned.groups) else (planned.splits,)  # a limited run has one task
    for splits, record in zip(groups, before, strict=True):
        if isinstance(known, BoundStage):
            yield {**documents_of(record), "cut": known}
        else:
            hashes = {file_hash(name, split.file.path) for split in splits}
            yield {**documents_of(record), "decisions": replace(known, tables=_of_files(known.tables, hashes))}


def documents_of(record: Record) -> Fields:
    """The fields of a task that reads what the task of a record wrote."""
    return {"before": record.fingerprint, "documents": record.of("documents", TableFile)}


def source_position(mixture: Mixture, name: str, emit: BoundStage | None) -> int | None:
    """The position of a source in the order of the global stage, past its end where the order does not name it."""
    order = cast(Global, emit.stage).source_order() if emit is not None else None
    if order is None:
        return None
    order = order or tuple(mixture.sources)
    return order.index(name) if name in order else len(order)


def _of_files(tables: Tables, hashes: Collection[int]) -> Tables:
    """The files that may have rows about documents of these input files."""
    listed = sorted(hashes)

    def overlaps(file: ExchangeFile) -> bool:
        number = bisect_left(listed, file.first)
        return number < len(listed) and listed[number] <= file.last

    return {name: tuple(file for file in files if file.rows and overlaps(file)) for name, files in tables.items()}


# ---------------------------------------------------------------------------------------------------- hash ranges


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


def is_reduced_in_one_task(tables: Tables, at_once_bytes: int | None, bucket_bytes: int) -> bool:
    """Whether one task reads all rows of an exchange, so that no block is read twice."""
    return _row_bytes(tables) <= bucket_bytes or fits_one_call(tables, at_once_bytes, bucket_bytes)


def by_range(tables: Tables, bucket_bytes: int | None) -> Iterator[Fields]:
    """One task per hash range of about `bucket_bytes` (None: of all) with the files that may have rows in it, in the order of
    their checksums.

    Ranges without a file are left out. One sweep opens each file where it begins and closes it where it ends, because there
    are as many ranges as files.
    """
    total = _row_bytes(tables)
    by_first, by_checksum = attrgetter("first"), attrgetter("checksum")
    ahead = {name: sorted((file for file in files if file.rows), key=by_first, reverse=True) for name, files in tables.items()}
    overlapping: dict[str, list[ExchangeFile]] = {name: [] for name in tables}
    for start, stop in hash_ranges(total, bucket_bytes or total):
        for name, files in ahead.items():
            while files and files[-1].first < stop:
                overlapping[name].append(files.pop())
            overlapping[name] = [file for file in overlapping[name] if file.last >= start]
        if any(overlapping.values()):
            of_range = {name: tuple(sorted(files, key=by_checksum)) for name, files in overlapping.items()}
            yield {"tables": of_range, "start": start, "stop": stop}


def of_rows(rows: Mapping[Part, Sequence[ExchangeFile]], target_bytes: int) -> Iterator[Fields]:
    """One task per hash range of each part; a range is about one shard of `target_bytes`."""
    for (split, stratum), files in rows.items():
        of_part = {"files": tuple(files), "split": split, "stratum": stratum}
        for bucket, (start, stop) in enumerate(hash_ranges(sum(file.row_bytes for file in files), target_bytes)):
            yield {**of_part, "start": start, "stop": stop, "bucket": bucket}


def of_documents(cleaned: Sequence[Record], target_bytes: int) -> Iterator[Fields]:
    """One task per part of about `WRITTEN_BYTES`, and at least one file."""
    parts = documents_by_part(cleaned, target_bytes * math.ceil(WRITTEN_BYTES / target_bytes))
    yield from ({**part, "like": parts[0]["documents"][0]} for part in parts)
