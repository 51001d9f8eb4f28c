"""Dropped documents as the stage that dropped them got them, for `datapipe inspect`.

    key ─▶ read again ─▶ the stages before the deciding one, again ─▶ its text and columns ─▶ what the deciding stage writes

The text of a page is the extracted one where the stage judged that; other texts stay as they were read. So does what cannot be
read or run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from datapipe import catalogue
from datapipe.errors import DatapipeError
from datapipe.explore.document.originals import Originals
from datapipe.explore.document.replay import Replayed, Replayer
from datapipe.explore.documents import InspectedDocument, columns_of, stage_alias, stage_of
from datapipe.explore.output import Output
from datapipe.explore.redaction import Redactor
from datapipe.stage.base import Filter, StageContext
from datapipe.tasks.contract.results import checked_filter

_WRITES = "write"
"""The option of a filter that makes it write what it detects, such as the language."""


def as_judged(output: Output, documents: Sequence[InspectedDocument]) -> list[InspectedDocument]:
    """The documents, those that were dropped with the text and the columns that the deciding stage got."""
    judged = _Judged(output)
    return [judged.of(each) if each.outcome == "dropped" else each for each in documents]


class _Judged:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._originals, self._replayer = Originals(output), Replayer(output, Redactor(output))

    def of(self, document: InspectedDocument) -> InspectedDocument:
        original = self._originals.read(bytes.fromhex(document.key))
        if original.batch is None or document.source not in self._output.sources:
            return document
        stage, _, rule = document.reason.rpartition(":")
        decided = {"source": document.source, "fate": "dropped", "stage": stage, "rule": rule}
        try:
            replayed = self._replayer.run({**decided, "value": document.value, "threshold": document.threshold}, original.batch)
        except DatapipeError:
            return document
        if not replayed.path or replayed.path[-1]["step"] != stage_alias(document.reason):
            return document
        [row] = replayed.batch.record.drop_columns(["text"] if replayed.batch.has_text else ["html"]).to_pylist()
        columns = columns_of(row) | self._written(document, replayed)
        if original.batch.has_text or not replayed.batch.has_text:
            return replace(document, columns=columns)
        return replace(document, columns=columns, text=replayed.batch.texts[0].as_py(), is_as_judged=True)

    def _written(self, document: InspectedDocument, replayed: Replayed) -> dict[str, Any]:
        """What the deciding filter detects and would write."""
        use = self._output.use_of(document.source, stage_of(document.reason))
        if use is None:
            return {}
        try:
            if _WRITES in catalogue.stage_class(use.name).model_fields:
                use = use.model_copy(update={"options": {**use.options, _WRITES: True}})
            stage = catalogue.build_stage(use)
            if not isinstance(stage, Filter) or stage.extracts:
                return {}
            stage.open(StageContext(name=use.alias, seed=self._output.mixture.seed))
            result = checked_filter(stage, replayed.batch)
        except Exception:  # of a stage: any; the columns are only looked at
            return {}
        return columns_of({name: column[0].as_py() for name, column in result.columns.items() if name not in stage.counts})
