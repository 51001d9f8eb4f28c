"""Tasks on one hash range of tables, and how tables are cut into ranges. Pure.

Bucket counts come from committed sizes, never from the number of workers, and enter no fingerprint of the tasks that wrote the
rows. Exchange files enter a task's fingerprint by their checksums, so equal content needs no second run even where the tasks
that wrote it differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import pyarrow as pa

from datapipe.exchange.ranges import HASH_SPACE
from datapipe.records.outputs import ExchangeFile, Tables
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, OPEN, OPEN_SCHEMA
from datapipe.steps.costs import EXCHANGED, StepCost, Texts, stage_cost
from datapipe.steps.kind import LEFT_OUT, Fields, Plan, Step, Task, checksums, entering
from datapipe.steps.pipeline import BoundStage


def table_checksums(tables: Tables) -> dict[str, list[str]]:
    return {name: checksums(files) for name, files in sorted(tables.items())}


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTask(Task):
    """What tasks on one hash range of tables have.

    Attributes:
        stage: the global stage whose tables they are. It gives schemas, which the files have too, and the name of the work.
        start, stop: hashes.
        limit_bytes: about the most row bytes that are in memory at once.
    """

    options = ("execution.bucket_bytes",)
    is_exchange = True

    stage: BoundStage = field(metadata=LEFT_OUT)
    tables: Tables = field(metadata=entering(table_checksums))
    start: int
    stop: int
    limit_bytes: int = field(metadata=LEFT_OUT)

    @property
    def input_bytes(self) -> float:
        num_bytes = sum(file.bytes for table in self.tables.values() for file in table)
        return num_bytes * (self.stop - self.start) / HASH_SPACE

    @property
    def stages_run(self) -> tuple[BoundStage, ...]:
        return (self.stage,)

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        """An equal part of the time that all exchanges of a global stage take."""
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


def table_schemas(stage: Global) -> dict[str, pa.Schema]:
    """The schema of every table of a stage; the engine knows those of the final ones and of `open`."""
    schemas = dict(stage.emits())
    for exchange in stage.exchanges():
        schemas.update(exchange.outputs)
    known = {**FINAL_SCHEMAS, OPEN: OPEN_SCHEMA}
    return {name: known.get(name, schema) for name, schema in schemas.items()}


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
