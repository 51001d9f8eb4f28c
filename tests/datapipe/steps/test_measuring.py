"""What map tasks measure reaches the files of their tasks, once for each document."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from datapipe.exchange.tables import TableWriter
from datapipe.records.outputs import Outputs
from datapipe.stage.base import FilterResult
from datapipe.stage.documents import DocumentBatch
from datapipe.steps.measuring import MEASUREMENTS, Measured, Measurement
from datapipe.steps.pipeline import BoundStage
from datapipe.storage.root import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium


@dataclass
class _Counted(Measurement):
    """Counts documents wherever a task hands them on."""

    counts: Counter[str] = field(default_factory=Counter)

    def documents(self, part: Literal["read", "kept"], batch: DocumentBatch) -> None:
        self.counts[part] += batch.num_docs

    def decided(self, bound: BoundStage, batch: DocumentBatch, result: FilterResult, *, of_cut: bool = False) -> None:
        self.counts[bound.name] += batch.num_docs

    def dropped(self, stage: str, survivors: pa.Array) -> None:
        self.counts[stage] += len(survivors)

    def finish(self) -> Outputs:
        writer = TableWriter(self.root, f"{self.folder}/counted.arrow")
        names, counts = list(self.counts), list(self.counts.values())
        writer.add(pa.record_batch({"name": names, "documents": counts}))
        return {"counted": writer.finish()}


def test_further_measurement_gets_every_document_and_its_file_is_an_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datapipe.steps.map.MEASUREMENTS", (*MEASUREMENTS, _Counted))
    corpora.write_jsonl(tmp_path / "web/0.jsonl", corpora.documents(1, 60, exact=0.3))
    stages = "stages: [filter.length: {min_words: 1}, dedup.exact]"
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}\n", stages)

    run = runs.run_mixture(mixture, overrides=("tokenizer=none",), make_engine=runs.InProcess)

    steps = run.plan.of_kind("map")
    measured = Measured(root=Root(str(run.mixture.output)), steps=steps, name_of=bytes.hex)
    counts: Counter[str] = Counter()
    for row in (row for rows in measured.rows("counted", steps) for row in rows.to_pylist()):
        counts[row["name"]] += row["documents"]
    documents = run.summary.total.documents
    assert counts["read"] == counts["filter.length"] == documents.read == 60
    assert counts["dedup.exact"] == documents.dropped["dedup.exact:duplicate"] > 0
    assert counts["kept"] == documents.read + documents.kept  # of the step before the exchange, and of the one after it
