"""Gathering decisions: the final tables of a global stage, sorted by document.

exchanges (`reduce.py`) ─▶ drops, cuts, sizes ─▶ gather, one task a range of keys ─▶ decisions, which map tasks apply
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from datapipe.columns import is_first, numbers
from datapipe.exchange.files import TableWriters, sort_words
from datapipe.exchange.ranges import read_slices
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import ExchangeFile, Outputs, Tables
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS
from datapipe.steps.decisions import Decisions
from datapipe.steps.hash_range import RangeTask, by_range, is_reduced_in_one_task
from datapipe.steps.kind import Planning, Step
from datapipe.steps.merge import merged
from datapipe.steps.pipeline import GlobalStep
from datapipe.steps.reduce import exchanged, files_with_rows
from datapipe.storage.root import Root

_KEY_WORDS = 3  # of a final table: hash, and the two halves of the key


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherTask(RangeTask):
    """Sorts the final tables of a global stage by document key, in one range of the first halves of keys."""

    kind, version = "gather", 1

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        """The decisions of a range of documents: one drop a document, its cuts, and the sum of its sizes."""
        metrics = TaskMetrics()
        writers = TableWriters(root, folder, {name: FINAL_SCHEMAS[name] for name in self.tables})
        with metrics.timed(f"{self.stage.name}: decisions") as work:
            for name, files in self.tables.items():
                for rows in read_slices(root, files, (self.start,), (self.stop,), self.limit_bytes, _KEY_WORDS):
                    work.bytes += writers.add({name: _of_each_document(name, rows)}, self.stage.name)
            outputs = writers.finish()
        return outputs, metrics


def _of_each_document(table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The first drop of each document, or one row with the sum of its sizes; all rows of `cuts`."""
    if table == "cuts":
        return rows
    firsts = np.flatnonzero(is_first(*sort_words(rows, _KEY_WORDS)))
    kept = rows.take(pa.array(firsts))
    if table == "drops":
        return kept
    sums = np.add.reduceat(numbers(rows.column("size")), firsts)
    return kept.set_column(rows.schema.get_field_index("size"), rows.schema.field("size"), pa.array(sums))


# ---------------------------------------------------------------------------------------------------- planning


def decisions(planning: Planning, global_step: GlobalStep, emitting: Iterable[Step]) -> Decisions | None:
    """The decisions of a global stage, or None while they are not committed.

    Args:
        emitting: the steps that emit its rows; they are gone through once, while the decisions are not planned.
    """
    step_id = f"{global_step.id}/decisions"
    step = planning.known.get(step_id) or _gather(planning, step_id, global_step, emitting)
    if not step.is_committed:
        return None
    stage = cast(Global, global_step.stage.stage)
    tables = {*stage.emits(), *(name for exchange in stage.exchanges() for name in exchange.outputs)}
    names = tables if stage.size_column is not None else tables - {"sizes"}
    return Decisions(
        name=global_step.id,
        rule=global_step.rule,
        tables={name: step.outputs(name, ExchangeFile) for name in FINAL_SCHEMAS if name in names},
        size_column=stage.size_column,
        cluster_column=stage.cluster_column,
        removed_share=stage.removed_share_limit(),
    )


def _gather(planning: Planning, step_id: str, global_step: GlobalStep, emitting: Iterable[Step]) -> Step:
    """The exchanges of a global stage one after the other, and its decisions by document."""
    stage = cast(Global, global_step.stage.stage)
    tables: Tables | None = None
    emitting = list(emitting)
    if all(step.is_committed for step in emitting):
        reference_rows = planning.request.reference_rows.get((global_step.stage.name, global_step.stage.digest), {})
        tables = {name: files_with_rows(emitting, f"emitted.{name}") + reference_rows.get(name, ()) for name in stage.emits()}
    for exchange in stage.exchanges():
        tables = exchanged(planning, global_step, exchange, tables)
    final = None if tables is None else {name: tables[name] for name in FINAL_SCHEMAS if name in tables}
    if final is not None and not is_reduced_in_one_task(final, 0, planning.bucket_bytes):
        final = merged(planning, step_id, global_step, final)
    ranges = None if final is None else by_range(final, planning.bucket_bytes)
    label = f"{global_step.id}: collect decisions by document"
    common = {"stage": global_step.stage, "limit_bytes": planning.bucket_bytes}
    return planning.add(GatherTask, step_id, label, ranges, [global_step.stage.name], **common)
