"""What filters find in the documents of a task, with the documents and what became of them; see `stage/findings.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers
from datapipe.exchange.facts import FactWriter
from datapipe.records.outputs import Outputs
from datapipe.stage.base import Filter, FilterResult
from datapipe.stage.clusters import first_of_group
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.findings import FINDINGS, MOST_OF_DOCUMENT
from datapipe.steps.pipeline import BoundStage
from datapipe.storage.root import Root


def searched(stages: Iterable[BoundStage]) -> dict[str, dict[str, list[int]]]:
    """By stage and list, the number of entries, and of those that cannot be found."""
    lists = {bound.name: bound.stage.searched_lists() for bound in stages if isinstance(bound.stage, Filter)}
    return {
        stage: {searched_list.name: [searched_list.entries, len(searched_list.undetectable)] for searched_list in of_stage}
        for stage, of_stage in lists.items()
        if of_stage
    }


class FindingsWriter:
    """The findings of one task: at most `MOST_OF_DOCUMENT` of a document, and beyond those the first of each entry."""

    def __init__(self, root: Root, folder: str, source: str) -> None:
        self._writer = FactWriter(root, f"{folder}/findings.parquet", source=source)
        self._known: set[tuple[str, str, str]] = set()

    def add(self, bound: BoundStage, batch: DocumentBatch, result: FilterResult) -> None:
        """Adds the findings of a filter in the documents that it decided about."""
        name, is_tag, found = bound.name, cast(Filter, bound.stage).mode == "tag", result.findings
        if found is None or not found.num_rows:
            return
        rows = numbers(found.column("row"))
        ranks = np.arange(len(rows)) - first_of_group(rows)
        entries = zip(found.column("list").to_pylist(), found.column("entry").to_pylist())
        is_new = np.array([self._is_new(name, *entry) for entry in entries])
        chosen = np.flatnonzero((ranks < MOST_OF_DOCUMENT) | is_new)
        documents, found = pa.array(rows[chosen]), found.take(pa.array(chosen))
        kept = "tagged" if is_tag else "cut" if "text" in result.columns else "kept"
        outcomes = np.where(result.keep[rows[chosen]] | is_tag, kept, "dropped")
        about = [batch.keys.take(documents), batch.record.column("id").take(documents), pa.array([name] * len(chosen))]
        arrays = [*about, pa.array(outcomes.tolist(), pa.string()), *found.columns[1:]]
        self._writer.add(pa.RecordBatch.from_arrays(arrays, schema=FINDINGS))

    def _is_new(self, stage: str, name: str, listed: str) -> bool:
        """Whether the task has not found this entry of a list yet."""
        entry = (stage, name, listed)
        is_new = entry not in self._known
        self._known.add(entry)
        return is_new

    def finish(self) -> Outputs:
        return {"findings": self._writer.finish()}
