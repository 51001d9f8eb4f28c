"""Merging sorted runs: the tables of a global stage in which a bucket would read too many.

tables ─▶ more runs at a hash than `MOST_RUNS`? ─▶ groups of files (`runs.py`) ─▶ merge, one task a hash range ─▶ one run each
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from datapipe.exchange.files import TableWriters
from datapipe.exchange.ranges import read_slices
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, Outputs, Tables
from datapipe.stage.global_stage import Global
from datapipe.steps import runs
from datapipe.steps.hash_range import RangeTask, by_range, table_schemas
from datapipe.steps.kind import Fields, Planning
from datapipe.steps.pipeline import GlobalStep
from datapipe.storage.root import Root


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeTask(RangeTask):
    """Writes the rows that some files of each table have in one hash range as one sorted run."""

    kind, version = "merge", 1

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        """The rows are written portion after portion. Ranks of reference rows lose the bit that marks new documents as they are
        read. The merged file belongs to this run, so no reader clears ranks in it again, and it may hold rows of both kinds."""
        metrics, schemas = TaskMetrics(), table_schemas(cast(Global, self.stage.stage))
        writers = TableWriters(root, folder, {table: schemas[table] for table in self.tables}, self.limit_bytes)
        name = f"{self.stage.name}: merge"
        with metrics.timed(name) as work:
            for table, files in self.tables.items():
                for rows in read_slices(root, files, (self.start,), (self.stop,), self.limit_bytes):
                    work.bytes += writers.add({table: rows}, name)
            outputs = writers.finish()
        return outputs, metrics


def merged(planning: Planning, before: str, global_step: GlobalStep, tables: Tables) -> Tables | None:
    """The tables with no hash in more sorted runs than a bucket should read, or None while they are not merged."""
    merged, level = {name: runs.with_group_keys(files) for name, files in tables.items()}, 1
    while wide := [name for name in tables if runs.fan_in([keyed.file for keyed in merged[name]]) > runs.MOST_RUNS]:
        ranges: list[Fields] = []
        group_keys: list[int] = []  # of the group of each task
        for name in wide:
            groups, merged[name] = runs.merge_groups(merged[name])
            for group in groups:
                ranges += by_range({name: group.files}, planning.bucket_bytes)
                group_keys += [group.group_key] * (len(ranges) - len(group_keys))
        step_id, label = f"{before}.merge-{level}", f"{global_step.id}: merge sorted runs of {', '.join(wide)}"
        common = {"stage": global_step.stage, "limit_bytes": planning.bucket_bytes * 5 // 4}
        step = planning.add(MergeTask, step_id, label, ranges, [global_step.stage.name], **common)
        if not step.is_committed:
            return None
        for record, group_key in zip(step.records, group_keys, strict=True):
            for name in record.outputs:
                files = (file for file in record.of(name, ExchangeFile) if file.rows)
                merged[name] += [runs.KeyedFile(group_key=group_key, file=file) for file in files]
        level += 1
    return {name: tuple(keyed.file for keyed in files) for name, files in merged.items()}
