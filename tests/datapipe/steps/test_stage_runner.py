"""Documents that a stage cannot process: those that it names, and those that make it raise."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import DatapipeError
from datapipe.explore.documents import Inspector
from datapipe.stage import DocumentBatch, Filter, FilterResult, Map, Rule
from datapipe.stage.segments import SEGMENTS, SEGMENTS_TYPE, text_and_segments
from tests.support import corpora, runs

pytestmark = pytest.mark.medium


class Picky(Filter):
    """Drops texts that begin with d, names those that begin with f as failed, and raises for those that begin with r."""

    writes = ()

    def rules(self) -> list[Rule]:
        return [Rule(name="begins_with_d", limit=0)]

    def process(self, batch: DocumentBatch) -> FilterResult:
        texts = batch.texts.to_pylist()
        if any(text.startswith("r") for text in texts):
            raise ValueError("found an r")
        drops = np.array([text.startswith("d") for text in texts], np.bool_)
        result = FilterResult.first_failing(
            batch.num_docs, [(drops.astype(float), drops)], {"text": pa.array(map(str.upper, texts))}
        )
        failed = {row: f"found {text}\nan f" for row, text in enumerate(texts) if text.startswith("f")}
        return FilterResult(keep=result.keep, rule=result.rule, value=result.value, failed=failed, columns=result.columns)


def test_named_and_raising_documents_are_quarantined_in_order_and_the_others_go_on(tmp_path: Path) -> None:
    texts = [f"{letter}{number}" for number in range(20) for letter in "kfdrkf"]
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"id": text, "text": text} for text in texts])
    tail = "tokenizer: none\nmax_quarantined: 60%\n"
    path = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl}}", f"stages: ['{__name__}:Picky']", tail)
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    counts = done.summary.total.documents
    assert (counts.read, counts.kept, counts.quarantined, sum(counts.dropped.values())) == (120, 40, 60, 20)
    reasons = {reason.partition(": ")[2].partition(" (")[0]: number for reason, number in counts.quarantine_reasons.items()}
    assert reasons == {"an f": 40, "ValueError: found an r": 20}
    output = Inspector.open(str(tmp_path / "out"))
    assert {each["text"] for each in output.find("kept", count=99)} == {text.upper() for text in texts if text[0] == "k"}
    rows = output.database.rows("select id, error from facts where fate = 'quarantined' order by filename, file_row_number")
    assert [row["id"] for row in rows] == [text for text in texts if text[0] in "fr"]
    assert {row["error"] for row in rows if row["id"] == "f7"} == {"found f7\nan f"}


def test_too_many_named_documents_fail_the_run_with_their_reason(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": "f"}, {"text": "k"}])
    path = runs.write_mixture(
        tmp_path, f"  web: {{path: {tmp_path}/a.jsonl}}", f"stages: ['{__name__}:Picky']", "tokenizer: none"
    )
    with pytest.raises(DatapipeError, match="an f"):
        runs.run_mixture(path, make_engine=runs.InProcess)


class Turns(Map):
    """Makes a segment of each part of a text between bars."""

    writes = (SEGMENTS,)

    def process(self, batch: DocumentBatch) -> dict[str, pa.Array]:
        pairs = [text_and_segments([{"text": part} for part in text.split("|")]) for text in batch.texts.to_pylist()]
        texts, rows = (list(column) for column in zip(*pairs))
        return {"text": pa.array(texts, pa.large_string()), SEGMENTS: pa.array(rows, SEGMENTS_TYPE)}


class LongOnes(Filter):
    """Drops texts of less than 20 characters, and removes exclamation marks of the others; those that it drops are emptied."""

    writes = ()

    def rules(self) -> list[Rule]:
        return [Rule(name="too_short", limit=20, side="min")]

    def process(self, batch: DocumentBatch) -> FilterResult:
        texts = batch.texts.to_pylist()
        result = FilterResult.from_rules(self.rules(), [np.array([len(text) for text in texts])])
        edited = [text.replace("!", "") if keep else "" for text, keep in zip(texts, result.keep)]
        return FilterResult(keep=result.keep, rule=result.rule, value=result.value, columns={"text": pa.array(edited)})


class Borders(Map):
    """Writes before each text where its segments begin."""

    writes = (SEGMENTS,)

    def process(self, batch: DocumentBatch) -> dict[str, pa.Array]:
        starts = [[row["start"] for row in rows] for rows in batch.record.column(SEGMENTS).to_pylist()]
        texts = [f"{of_doc} {text}" for of_doc, text in zip(starts, batch.texts.to_pylist())]
        return {"text": pa.array(texts, pa.large_string()), SEGMENTS: pa.array([[]] * len(texts), SEGMENTS_TYPE)}


def test_segments_that_a_filter_drops_alone_have_their_border_by_the_others_or_fail(tmp_path: Path) -> None:
    texts = {
        "by_the_other": "A question!|And an answer which is long!",
        "unknown": "A question!|An answer!",
        "dropped": "Short|!",
        "unchanged": "A question|and an answer",
    }
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"id": name, "text": text} for name, text in texts.items()])
    stages = ", ".join(f"'{__name__}:{stage.__name__}'" for stage in (Turns, LongOnes, Borders))
    tail = "tokenizer: none\nmax_quarantined: 60%\n"
    path = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl}}", f"stages: [{stages}]", tail)
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    counts = done.summary.total.documents
    assert (counts.kept, sum(counts.dropped.values()), counts.quarantined) == (2, 1, 1)
    [reason] = counts.quarantine_reasons
    assert "the edit reaches over a border between segments" in reason
    rows = Inspector.open(str(tmp_path / "out")).find("kept", count=9)
    expected = {"[0, 10] A questionAnd an answer which is long", "[0, 10] A questionand an answer"}
    assert {row["text"] for row in rows} == expected
