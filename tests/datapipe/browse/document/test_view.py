"""The view of one document: its text in parts, its path, and what is said where the text cannot be shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datapipe.browse.output import BrowsedOutput
from datapipe.errors import UserError
from datapipe.loader.trace import trace_step
from tests.support import browsed, corpora, runs
from tests.support.browsed import Browsed
from tests.support.finished import finish


@pytest.mark.medium
def test_the_parts_of_kept_documents_are_the_text_that_the_run_stored(finished: Browsed) -> None:
    num_cut = num_replaced = 0
    for row in finished.listed(fate="kept"):
        document = finished.get("document", row["key"])
        stored = finished.api.stored.row(finished.api.lookup.rows_of_key(bytes.fromhex(row["key"]))[0])
        assert "".join(part["text"] for part in document["parts"] if part["kind"] != "cut") == stored["text"]
        assert document["note"] == ""
        cut = [part for part in document["parts"] if part["kind"] == "cut"]
        assert all(part["stage"] == "dedup.lines" for part in cut)
        num_cut += bool(cut)
        outcomes = [step["outcome"] for step in document["path"]]
        assert outcomes[0] == "read"
        assert outcomes[-2:] == ["tokenized", "packed"]
        replaced = [part for part in document["parts"] if part["kind"] == "replacement"]
        assert bool(replaced) == ("redacted" in outcomes)
        assert {part["stage"] for part in replaced} <= {"redact.pii", "redact.secrets"}
        num_replaced += bool(replaced)
    frames = [row for row in finished.listed(fate="kept") if "stands in every page" in _cut_of(finished, row["key"])]
    assert len(frames) == 9, "one of the ten pages keeps the line"
    assert num_cut >= 9
    assert num_replaced > 5


def _cut_of(finished: Browsed, key: str) -> str:
    return "".join(part["text"] for part in finished.get("document", key)["parts"] if part["kind"] == "cut")


@pytest.mark.medium
def test_the_path_of_a_dropped_document_ends_with_the_rule_and_what_it_measured(finished: Browsed) -> None:
    [row] = finished.listed(rule="too_many_words")
    document = finished.get("document", row["key"])
    last = document["path"][-1]
    assert (last["step"], last["outcome"], last["detail"]) == ("filter.length", "dropped", "too_many_words")
    assert last["values"][0] == {"rule": "too_many_words", "value": row["value"], "threshold": 400.0}
    assert document["shards"] == []
    [raised] = finished.listed(fate="quarantined", stage=f"functions_of_{finished.folder.name.replace('-', '_')}:picky")
    document = finished.get("document", raised["key"])
    assert document["path"][-1]["outcome"] == "quarantined"
    assert "ValueError: cannot take raise an error over" in document["columns"]["error"]
    assert document["parts"]


@pytest.mark.medium
def test_duplicates_name_their_cluster_and_its_survivor(finished: Browsed) -> None:
    for row in finished.listed(stage="dedup.exact"):
        cluster = finished.get("document", row["key"])["cluster"]
        survivor = finished.get("document", cluster["survivor"])
        assert cluster == {"stage": "dedup.exact", "survivor": survivor["row"]["key"], "size": 3}
        assert survivor["row"]["id"].startswith("copy-")
        assert survivor["cluster"] == cluster


@pytest.mark.medium
def test_shards_and_steps_are_those_of_the_loader(finished: Browsed) -> None:
    output = str(finished.folder / "out")
    pieces = trace_step(output, 0, global_batch_size=4)
    assert pieces
    for piece in pieces:
        shards = finished.get("document", piece.key)["shards"]
        assert (piece.shard, piece.shard_row, piece.token_start, piece.num_tokens) in [
            (shard["path"], shard["row"], shard["start"], shard["tokens"]) for shard in shards
        ]
        steps = finished.get("document", piece.key, "steps", global_batch_size=4)
        assert (0, piece.rank, piece.row) in [(step["step"], step["rank"], step["row"]) for step in steps["steps"]]


@pytest.mark.medium
def test_an_input_that_changed_or_is_gone_is_told_and_no_other_text_is_shown(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "plain.jsonl", [{"id": f"plain-{n}", "text": "word " * n} for n in range(1, 12)])
    path = tmp_path / "plain.jsonl"
    stages = "stages: [filter.length: {min_words: 5}]"
    opened = browsed.browse(run(runs.write_mixture(tmp_path, f"  plain: {{path: {path}}}\n", stages, "tokenizer: none")))
    [dropped, *_], [kept, *_] = opened.listed(fate="dropped"), opened.listed(fate="kept")
    text = "".join(part["text"] for part in opened.get("document", kept["key"])["parts"])
    assert opened.get("document", dropped["key"])["note"] == ""
    path.write_bytes(path.read_bytes().replace(b"word", b"evil"))
    for expected in ("has changed since the run", "is gone since the run"):
        document = opened.get("document", dropped["key"])
        assert document["parts"] == []
        assert expected in document["note"]
        shown = opened.get("document", kept["key"])
        assert "".join(part["text"] for part in shown["parts"]) == text
        problems = opened.get("search", q="evil")["lines"][-1]["done"]
        assert problems["hits"] == 0
        assert expected in problems["problems"][0]
        path.unlink(missing_ok=True)


def run(mixture: Path) -> Path:
    """The output of a mixture that is run in this process."""
    return Path(finish(mixture).mixture.output)


@pytest.mark.medium
def test_a_stage_that_raises_now_is_told_without_what_it_says(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.filter.length import Length

    def fails(self: Length, batch: object) -> None:
        raise SystemError(browsed.EMAIL)

    monkeypatch.setattr(Length, "process", fails)
    row = finished.listed(fate="kept", source="web")[0]
    document = finished.get("document", row["key"])
    assert "filter.length raised SystemError now" in document["note"]
    assert "".join(part["text"] for part in document["parts"])
    assert browsed.EMAIL not in str(document)


@pytest.mark.medium
def test_without_its_files_under_work_an_output_says_so(copied: Browsed) -> None:
    output = copied.folder / "out"
    for gone, told in (("work/attempts", "files under work/ were deleted"), ("work", "no run has left anything here")):
        shutil.rmtree(output / gone)
        with pytest.raises(UserError, match=told):
            BrowsedOutput.open(str(output))
