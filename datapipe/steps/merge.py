"""Hash ranges of tables of rows, and the merging of tables that lie in too many sorted runs for the tasks that read ranges.

    files of tables ─▶ more runs than a task should read? ─▶ groups of files, one task a hash range of each ─▶ files of one run
                                                           └▶ still more? ─▶ groups of these ─▶ …

A task on a range reads at least one block of every run, so without merging the reads of all tasks
grow with the square of the rows. Merged, every row is read once a level, and up to four million
files have two levels at most (`runs.MOST_RUNS` ** 3 / 4). `runs.py` chooses the groups.

The number of ranges follows from committed sizes, never from the number of workers, and enters no
fingerprint of the tasks that wrote the rows. Exchange files enter fingerprints by their checksums,
so equal content needs no second run.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.dataclass import dataclass, field, replace
from datapipe.exchange.files import TableWriters
from datapipe.exchange.ranges import HASH_SPACE, read_slices
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, Outputs, Tables, typed
from datapipe.steps import runs
from datapipe.steps.costs import EXCHANGED, StepCost, Texts, seconds_of, stage_cost
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import LEFT_OUT, Fields, Plan, Planning, Step, Task, entering, table_checksums
from datapipe.steps.pipeline import BoundStage
from datapipe.storage.root import Root

_TOKENS_MB_PER_S = 150.0  # of text, whose token rows are merged
_ROWS_MB_PER_S = 100.0  # of rows in memory: read at 230 MB/s at least, and written at 150 (`exchange/files.py`)


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTask(Task):
    """Reads the rows that tables have in one hash range."""

    options = ("execution.bucket_bytes",)
    is_exchange = True

    tables: Tables = field(metadata=entering(table_checksums))
    # start, stop: hashes
    start: int
    stop: int
    limit_bytes: int = field(metadata=LEFT_OUT)  # about the most row bytes in memory at once

    @property
    def input_bytes(self) -> float:
        num_bytes = sum(file.bytes for file in self.read_files)
        return num_bytes * (self.stop - self.start) / HASH_SPACE

    def slices(self, root: Root, table: str, prefix: int | None = None) -> Iterator[pa.RecordBatch]:
        return read_slices(root, self.tables[table], (self.start,), (self.stop,), self.limit_bytes, prefix)

    def rewritten(
        self, work_name: str, writers: TableWriters, tables: Mapping[str, Iterator[pa.RecordBatch]]
    ) -> tuple[Outputs, TaskMetrics]:
        metrics = TaskMetrics()
        with metrics.timed(work_name) as work:
            work.bytes = sum(writers.add({name: rows}) for name, slices in tables.items() for rows in slices)
            return writers.finish(), metrics

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        """Of a global stage, an equal part of the time that all its exchanges take; of token rows, that of copying them."""
        if step.source:
            text = texts.cleaned[step.source]
            yield StepCost(text * texts.token_bytes, seconds_of(text, _TOKENS_MB_PER_S))
        name = step.id.partition("/")[0]
        number = sum(other.work.is_exchange and other.id.partition("/")[0] == name for other in plan.steps)
        for following in plan.pipeline.global_steps:
            if following.id == name:
                emitted = sum(texts.of_steps[plan.pipeline.map_step(*segment)][1] for segment in following.sources)
                yield stage_cost(following.stage.stage, EXCHANGED * emitted / number)

    @classmethod
    def stages_of(cls, plan: Plan, step: Step, source: str) -> Iterable[BoundStage]:
        group = step.id.partition("/")[0]
        return [each.stage for each in plan.pipeline.global_steps if each.id == group and source in dict(each.sources)]


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeTask(RangeTask):
    """Writes the rows that some files of each table have in one hash range as one sorted run."""

    kind, version = "merge", 2

    work_name: str = field(default="merge", metadata=LEFT_OUT)  # by which its time is counted: "dedup.minhash: merge"

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        """Reading clears the bit of new documents in ranks of reference rows. The merged file belongs to this run, so no reader
        clears ranks in it again, and it may hold rows of both kinds."""
        tables = {table: self.slices(root, table) for table in self.tables}
        return self.rewritten(self.work_name, TableWriters(root, folder, None, self.limit_bytes), tables)


def merged(
    planning: Planning,
    before: str,
    label: str,
    tables: Tables,
    num_buckets: Mapping[str, int],
    bucket_bytes: int,
    uses: str,
    ranges: Mapping[str, Sequence[tuple[int, int]]] | None = None,
    stops: Mapping[str, int] = {},
    **common: Any,
) -> Tables | None:
    """The tables in so few sorted runs that the tasks of the step `before` read little more than their rows, or None while
    they are not merged. `num_buckets`: how many of these tasks read each table. `bucket_bytes`: of rows in a merge task.
    `ranges`: of tables whose rows are spread unevenly, ranges of about equal sizes. `stops`: hashes, by table, from which on no
    task reads its rows. `common`: fields of all merge tasks."""
    merged, level = {name: runs.with_group_keys(files) for name, files in tables.items()}, 1
    most_runs = {name: runs.most_runs(sum(file.bytes for file in files), num_buckets[name]) for name, files in tables.items()}
    while wide := [name for name in tables if runs.fan_in([keyed.file for keyed in merged[name]]) > most_runs[name]]:
        own: list[Fields] = []
        group_keys: list[int] = []  # of the group of each task
        for name in wide:
            groups, merged[name] = runs.merge_groups(merged[name], most_runs[name])
            for group in groups:
                of_table = (ranges or {}).get(name), stops.get(name, HASH_SPACE)
                own += by_range({name: group.files}, bucket_bytes, *of_table)
                group_keys += [group.group_key] * (len(own) - len(group_keys))
        step_id, limit_bytes = f"{before}.merge-{level}", bucket_bytes * 5 // 4
        step = planning.add(MergeTask, step_id, label, own, [uses], limit_bytes=limit_bytes, **common)
        if not step.is_committed:
            return None
        for record, group_key in zip(step.records, group_keys, strict=True):
            for name, written in record.outputs.items():
                files = (file for file in typed(written, ExchangeFile) if file.rows)
                merged[name] += [runs.KeyedFile(group_key=group_key, file=file) for file in files]
        level += 1
    return {name: tuple(keyed.file for keyed in files) for name, files in merged.items()}


def grow_merged(
    growth: Growth, step: StepSize, tables: Mapping[str, Files], num_buckets: Mapping[str, int], bucket_bytes: int
) -> dict[str, Files]:
    """The tables of a run of another size as `merged` leaves them for a step. Adds the steps that merge them."""
    merged, level = dict(tables), 1
    most_runs = {name: runs.most_runs(round(files.bytes), num_buckets[name]) for name, files in tables.items()}
    while wide := [name for name in tables if merged[name].runs > most_runs[name]]:
        reads: list[Reads] = []
        num_tasks = dict.fromkeys(wide, 0)
        for name in wide:
            files = merged[name]
            sizes, copies = runs.group_sizes(files.lanes, files.runs, most_runs[name])
            stays = (sizes == 1) & (files.runs <= files.lanes)  # (num_groups,) a single file of one run
            ranges = np.where(stays, 0, np.ceil(sizes * (files.row_bytes / files.lanes / bucket_bytes)))
            num_tasks[name], lanes = round(ranges.sum() * copies), len(sizes) * copies
            reads.append(Reads.by_range(files, num_tasks[name] / lanes))
            merged[name] = replace(files, number=num_tasks[name] + int(stays.sum()) * copies, lanes=lanes, runs=lanes)
        writes, step_id = {name: merged[name] for name in wide}, f"{step.id}.merge-{level}"
        seconds = seconds_of(sum(files.row_bytes for files in writes.values()), _ROWS_MB_PER_S)
        about = {"id": step_id, "work": MergeTask, "source": step.source, "tasks": sum(num_tasks.values())}
        growth.steps[step_id] = StepSize(**about, seconds=seconds, reads=reads, writes=writes)
        level += 1
    return merged


def num_ranges(total_bytes: float, bucket_bytes: int) -> int:
    return math.ceil(total_bytes / bucket_bytes)


def hash_ranges(total_bytes: int, bucket_bytes: int, stop: int = HASH_SPACE) -> list[tuple[int, int]]:
    """Half-open ranges that cut the space of 64-bit hashes, up to `stop`, into buckets of about `bucket_bytes` each; none for
    nothing. `total_bytes`: of the whole space."""
    count = num_ranges(total_bytes * stop // HASH_SPACE, bucket_bytes)
    borders = [stop * number // count for number in range(count)] + [stop]
    return list(zip(borders[:-1], borders[1:])) if count else []


def row_bytes(tables: Tables) -> int:
    return sum(file.row_bytes for files in tables.values() for file in files)


def by_range(
    tables: Tables, bucket_bytes: int | None, even: Sequence[tuple[int, int]] | None = None, stop: int = HASH_SPACE
) -> Iterator[Fields]:
    """The fields of a task for each hash range of about `bucket_bytes` (None: one range) up to `stop`: the files
    that may have rows in it, by checksum; none for a range without any. `even`: ranges with about
    as many rows each; None where equal ranges have."""
    total = row_bytes(tables)
    ranges = hash_ranges(total, bucket_bytes or total, stop)
    if even is not None:
        borders = sorted({even[len(even) * number // len(ranges)][0] for number in range(len(ranges))} - {0})
        ranges = list(zip([0, *borders], [*borders, HASH_SPACE])) if ranges else []
    for (begin, end), of_range in zip(ranges, overlapping(tables, ranges)):
        if any(of_range.values()):
            yield {"tables": of_range, "start": begin, "stop": end}


def overlapping(tables: Tables, ranges: Iterable[tuple[int, int]]) -> Iterator[Tables]:
    """The files of each table that may have rows in each of the adjoining ranges, by checksum. One sweep opens each file
    where it begins and closes it where it ends, because there are as many ranges as files."""
    by_first, by_checksum = attrgetter("first"), attrgetter("checksum")
    ahead = {name: sorted((file for file in files if file.rows), key=by_first, reverse=True) for name, files in tables.items()}
    found: dict[str, tuple[ExchangeFile, ...]] = dict.fromkeys(tables, ())
    for start, stop in ranges:
        for name, files in ahead.items():
            begun: list[ExchangeFile] = []
            while files and files[-1].first < stop:
                begun.append(files.pop())
            if begun or any(file.last < start for file in found[name]):  # else ranges share the files
                found[name] = tuple(sorted((file for file in (*found[name], *begun) if file.last >= start), key=by_checksum))
        yield dict(found)
