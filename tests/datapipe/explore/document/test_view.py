"""The view of one document: its text in parts, its path, and what is reported where the text cannot be shown."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import UserError
from datapipe.explore.document.parts import Part, after_redaction, after_stage, display_of, edits, text_of, with_cuts
from datapipe.explore.documents import Inspector
from datapipe.loader.trace import trace_step
from stages.filter.length import Length
from tests.support import browsed, corpora, runs
from tests.support.browsed import Browsed
from tests.support.command_line import datapipe
from tests.support.finished import finish
from tests.support.pages import article
from tests.support.web_archives import packed, response


@pytest.mark.slow
def test_the_parts_of_kept_documents_are_the_text_that_the_run_stored(finished: Browsed) -> None:
    num_cut = num_replaced = num_frames = 0
    for row in finished.listed(fate="kept"):
        document = finished.get("document", row["key"])
        [facts] = finished.api.output.facts_of([bytes.fromhex(row["key"])]).values()
        stored = finished.api.output.kept_row(facts)
        assert "".join(part["text"] for part in document["parts"] if part["kind"] != "cut") == stored["text"]
        assert document["note"] == ""
        cut = [part for part in document["parts"] if part["kind"] == "cut"]
        assert all(part["stage"] == "dedup.lines" for part in cut)
        num_cut += bool(cut)
        num_frames += "stands in every page" in "".join(part["text"] for part in cut)
        outcomes = [step["outcome"] for step in document["path"]]
        assert outcomes[0] == "read"
        assert outcomes[-2:] == ["tokenized", "packed"]
        replaced = [part for part in document["parts"] if part["kind"] == "replacement"]
        assert bool(replaced) == ("redacted" in outcomes)
        assert {part["stage"] for part in replaced} <= {"redact.pii", "redact.secrets"}
        num_replaced += bool(replaced)
    assert num_cut >= num_frames == 9, "one of the ten pages keeps the line"
    assert num_replaced > 5


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
def test_an_input_that_changed_or_is_gone_is_reported_and_no_other_text_is_shown(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "plain.jsonl", [{"id": f"plain-{n}", "text": "word " * n} for n in range(1, 12)])
    path = tmp_path / "plain.jsonl"
    stages = "stages: [filter.length: {min_words: 5}]"
    finish(runs.write_mixture(tmp_path, f"  plain: {{path: {path}}}\n", stages, "tokenizer: none"))
    opened = browsed.browse(tmp_path / "out")
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


@pytest.mark.medium
def test_a_stage_that_raises_now_is_reported_without_its_message(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Length, batch: object) -> None:
        raise SystemError(browsed.EMAIL)

    monkeypatch.setattr(Length, "process", fails)
    row = finished.listed(fate="kept", source="web")[0]
    document = finished.get("document", row["key"])
    assert "filter.length raised SystemError now" in document["note"]
    assert "".join(part["text"] for part in document["parts"])
    assert browsed.EMAIL not in str(document)


@pytest.mark.medium
def test_without_its_files_under_work_an_output_reports_it(copied: Browsed) -> None:
    output = copied.folder / "out"
    for gone, told in (("work/attempts", "files under work/ were deleted"), ("work", "no run has left anything here")):
        shutil.rmtree(output / gone)
        with pytest.raises(UserError, match=told):
            _ = Inspector.open(str(output)).database


TEXTS = st.text(st.sampled_from("ab@. \né\u202e"), max_size=40)


@given(TEXTS, TEXTS)
def test_edits_turn_one_text_into_the_other(before: str, after: str) -> None:
    out, position = [], 0
    for start, stop, new in edits(before, after):
        assert position <= start <= stop <= len(before)
        out += [before[position:start], new]
        position = stop
    assert "".join([*out, before[position:]]) == after


@given(TEXTS, st.lists(st.tuples(TEXTS, st.booleans()), max_size=3), st.integers(0, 40), st.integers(0, 40), TEXTS)
def test_parts_follow_the_text_of_every_stage_and_end_as_the_redacted_display(
    text: str, stages: list[tuple[str, bool]], first: int, second: int, display: str
) -> None:
    parts = [Part(text=text)]
    for after, redacts in stages:
        parts = after_stage(parts, after, "a stage", redacts=redacts)
        assert text_of(parts) == after
    before = text_of(parts)
    start, stop = sorted((min(first, len(before)), min(second, len(before))))
    parts = with_cuts(parts, [(start, stop)], "a cut") if start < stop else parts
    assert text_of(parts) == before[:start] + before[stop:]
    assert display_of(after_redaction(parts, display)) == display


def test_a_cut_stays_in_its_place_and_an_address_half_in_it_is_replaced_as_a_whole() -> None:
    parts = with_cuts([Part(text="Call me. Ann: a@b.org now")], [(0, 9), (16, 21)], "dedup.lines")
    assert [(part.text, part.kind) for part in parts] == [
        ("Call me. ", "cut"),
        ("Ann: a@", "kept"),
        ("b.org", "cut"),
        (" now", "kept"),
    ]
    shown = after_redaction(parts, "Call me. Ann: <EMAIL> now")
    assert [(part.text, part.kind) for part in shown if part.text] == [
        ("Call me. ", "cut"),
        ("Ann: ", "kept"),
        ("<EMAIL>", "replacement"),
        (" now", "kept"),
    ]
    [inside] = after_redaction([Part(text="Ann: a@b.org now", kind="cut", stage="dedup.lines")], "Ann: <EMAIL> now")
    assert inside == Part(text="Ann: <EMAIL> now", kind="cut", stage="dedup.lines")


@pytest.mark.medium
def test_page_is_shown_with_the_text_and_the_columns_that_the_filter_judged(tmp_path: Path) -> None:
    german = "Der Zug fährt heute nicht, weil es in der Nacht zu viel geschneit hat und niemand die Gleise räumt. " * 8
    english = "The train does not run today, because it snowed too much in the night and nobody cleared the tracks. " * 8
    records = [response(article(f"<p>{text}</p>").encode(), n) for n, text in enumerate((english, german, "Too short."))]
    (tmp_path / "a.warc.gz").write_bytes(packed(records))
    stages = "stages:\n  - extract.html\n  - filter.length: {min_words: 20}\n  - filter.language: {keep: [en]}\n"
    finish(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/*.warc.gz, keep: [url]}}\n", stages, "tokenizer: none"))
    asked = ["inspect", str(tmp_path / "out"), "--dropped", "all"]
    printed = datapipe(asked).stdout
    shown = {each["reason"]: each for each in json.loads(datapipe([*asked, "--json"]).stdout)["documents"]}
    other, short = shown["filter.language:language"], shown["filter.length:too_few_words"]
    assert "geschneit" in other["text"] and "Too short." in short["text"]
    assert "<" not in other["text"] + short["text"]
    assert (other["columns"]["url"], other["columns"]["language"]) == ("http://e.org/1", "de")
    assert "(as the stage got it)" in printed and "<article>" not in printed


@pytest.mark.medium
def test_a_document_outside_of_the_when_of_a_stage_passes_it_in_its_path(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": "too short", "kind": kind} for kind in ("page", "title")])
    stages = "stages: [filter.length: {min_words: 20, when: {kind: page}}]"
    finish(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl, keep: [kind]}}", stages, "tokenizer: none"))
    opened = browsed.browse(tmp_path / "out")
    paths = [opened.get("document", row["key"])["path"] for row in opened.listed(fate="kept")]
    steps = [[(step["step"], step["outcome"], step["detail"]) for step in path] for path in paths]
    assert [("filter.length", "kept", "outside of `when`") in path for path in steps] == [True]
