"""A finished output as the page shows it: lists, sweeps, searches, redaction, and `datapipe browse`.

Filters, orders, clusters and what a search finds: tests/conformance/test_exploring.py.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from datapipe.explore import search
from datapipe.explore.document import view
from datapipe.explore.documents import Inspector
from datapipe.explore.server import RequestError
from stages.redact.pii import Pii
from tests.support import browsed, corpora
from tests.support.browsed import EMAIL, PLANTED, SECRET, Browsed
from tests.support.cli_processes import COMMAND
from tests.support.command_line import datapipe
from tests.support.finished import finish
from tests.support.object_store import object_store

pytestmark = pytest.mark.medium


def test_kept_documents_come_by_the_values_of_their_tags(finished: Browsed) -> None:
    options = {"fate": "kept", "stage": "filter.gopher_repetition", "rule": "top_2_gram"}
    found = finished.listed(**options, sort="-value")
    values = [row["value"] for row in found]
    assert len(values) == 43 and values == sorted(values, reverse=True)
    top = finished.listed(**options, sort="value", min=values[4])
    assert sorted(row["key"] for row in top) == sorted(row["key"] for row in found if row["value"] >= values[4])
    document = finished.get("document", found[0]["key"])
    assert document["columns"]["filter.gopher_repetition.top_2_gram"] == values[0]


def test_lists_have_the_url_and_the_first_line_of_each_document(finished: Browsed) -> None:
    rows = finished.get("documents", source="web", fate="kept", sort="bytes", limit=3, lines=1)["documents"]
    rows += finished.get("lookup", q="short-0")["documents"]
    rows += [each["survivor"] for each in finished.get("clusters", stage="dedup.exact", limit=1)["clusters"]]
    assert len(rows) == 5
    for row in rows:
        document = finished.get("document", row["key"])
        shown = "".join(part["text"] for part in document["parts"] if part["kind"] != "cut")
        assert row["excerpt"] == shown.lstrip().partition("\n")[0][:300]
        assert row["url"] == document["url"]
        assert finished.get("documents", limit=1)["documents"][0]["excerpt"] is None


@pytest.mark.parametrize(
    "wrong", [{"sort": "x"}, {"fate": "x"}, {"source": "x"}, {"min": "x"}, {"limit": "501"}, {"offset": "-1"}]
)
def test_a_request_that_makes_no_sense_reports_what_is_expected(finished: Browsed, wrong: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"expected|sources of this output") as refused:
        finished.get("documents", **wrong)
    assert refused.value.status == 400


def test_a_sweep_over_tags_counts_exactly_what_each_threshold_keeps(finished: Browsed) -> None:
    named = {"source": "web", "stage": "filter.gopher_repetition", "rule": "top_2_gram"}
    swept = finished.get("sweep", **named)
    rows = finished.listed(fate="kept", **named)
    assert swept["exact"]
    total = swept["total"]
    assert (total["documents"], total["bytes"]) == (len(rows), sum(row["bytes"] for row in rows))
    tokens = next(source["tokens"] for source in finished.get("output")["sources"] if source["name"] == "web")
    assert total["tokens"] == tokens, "all text of the source has all its tokens"
    assert swept["in_force"] in [point["threshold"] for point in swept["points"]]
    for point in swept["points"]:
        kept = [row for row in rows if row["value"] <= point["threshold"]]
        assert (point["documents"], point["bytes"]) == (len(kept), sum(row["bytes"] for row in kept))


def test_a_search_stops_at_its_limit_and_reports_how_far_it_is(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_PROGRESS_EVERY_S", 0.0)
    lines = finished.get("search", q="the", limit=3)["lines"]
    assert lines[-1]["done"]["stopped"]
    assert sum("hit" in line for line in lines) == 3
    progress = [line["progress"] for line in finished.get("search", q="zzz")["lines"] if "progress" in line]
    assert [told["documents"] for told in progress] == sorted(told["documents"] for told in progress)
    assert progress[-1]["documents"] <= progress[-1]["of_documents"]
    for wrong in ({"q": ""}, {"q": "a" * 1001}, {"q": "a", "fate": "x"}, {"q": "a", "source": "x"}, {"q": "a", "limit": 9999}):
        with pytest.raises(RequestError):
            finished.get("search", **wrong)


def answers(finished: Browsed) -> Iterator[dict[str, Any]]:
    """Of all endpoints about the documents of source web, with parts joined as a reader sees them."""
    output = finished.get("output")
    yield output
    for sort in ("key", "value", "distance", "bytes"):
        yield finished.get("documents", source="web", sort=sort, limit=500, lines=1)
    rows = finished.listed(source="web")
    for row in [row for number, row in enumerate(rows) if row["fate"] != "kept" or number % 3 == 0]:  # kept ones are alike
        document = finished.get("document", row["key"])
        yield {**document, "joined": "".join(part["text"] for part in document["parts"])}
        kept = "".join(part["text"] for part in document["parts"] if part["kind"] != "cut")
        yield {"kept": kept}
        yield finished.get("lookup", q=row["key"])
    for rule in output["rules"]:
        if rule["source"] == "web":
            named = {"source": "web", "stage": rule["stage"], "rule": rule["rule"]}
            yield from (finished.get(view, **named) for view in ("borderline", "sweep") if rule["has_sweep"])
    for stage in output["cluster_stages"]:
        clusters = finished.get("clusters", stage=stage)
        yield clusters
        for cluster in clusters["clusters"]:
            yield finished.get("cluster", cluster["survivor"]["key"], stage=stage, members=9)
    for text in (EMAIL, "planted", "nothing else", "the token is", "line that never ends", SECRET[:12], "write to"):
        yield finished.get("search", q=text, source="web")


@pytest.mark.slow
def test_planted_data_is_in_no_answer_of_any_endpoint(finished: Browsed) -> None:
    told = list(answers(finished))
    for answer in told:
        content = json.dumps(answer, ensure_ascii=False)
        for planted in PLANTED:
            assert planted not in content
    everything = json.dumps(told, ensure_ascii=False)
    for replacement in ("<EMAIL>", "<PHONE>", "<SECRET>"):
        assert everything.count(replacement) > 50, "the documents are shown, with their replacements"
    fates = {row["fate"] for answer in told for row in (answer["documents"] if "offset" in answer else ())}
    assert fates == {"kept", "dropped", "quarantined"}
    row = finished.listed(source="web", fate="dropped")[0]  # the text as it was read holds the data
    original = finished.api.output.locator.read(bytes.fromhex(row["key"]))
    assert original.batch is not None and "planted.person@" in original.batch.texts[0].as_py()
    assert finished.api.rows.redactor.redacted_text("plain", EMAIL) == EMAIL


def fails(*anything: object, **options: object) -> Any:
    raise ValueError(f"cannot take {EMAIL}")


def test_a_redaction_that_fails_withholds_the_text_and_reports_it(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [finished.listed(source="web", fate=fate)[0] for fate in ("kept", "dropped", "quarantined")]
    monkeypatch.setattr(Pii, "process", fails)
    for row in rows:
        document = finished.get("document", row["key"])
        assert document["parts"] == []
        assert "redact.pii failed on this document (ValueError)" in document["note"]
    told = [finished.listed(source="web"), finished.get("search", q="write to", source="web")]
    told.append(finished.get("borderline", source="web", stage="filter.length", rule="too_few_words"))
    assert EMAIL not in json.dumps(told)


def test_an_unexpected_error_reports_no_text_neither_to_the_page_nor_to_the_terminal(
    finished: Browsed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finished.api.rows, "listed", fails)
    with pytest.raises(RequestError, match="This is a defect of datapipe: ValueError") as refused:
        finished.get("documents")
    told = capsys.readouterr().err
    assert "endpoints.py" in told
    assert EMAIL not in told + str(refused.value)


def test_what_lies_across_the_end_of_a_long_text_is_not_shown(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MOST_COMPARED_CHARS", 100)
    facts = {"fate": "dropped", "source": "web", "key": b""}

    def shown(text: str) -> str:
        monkeypatch.setattr(finished.api.view, "read_text", lambda source, key: (text, ""))
        return finished.api.view.text(facts)[0]

    for filling in range(40, 120):
        beginning = shown("a " * filling + EMAIL + " b" * 200)
        assert len(beginning) <= 100
        assert not any(beginning.endswith(EMAIL[:length]) for length in range(3, len(EMAIL) + 1)), beginning
    assert shown(f"{EMAIL} is short") == "<EMAIL> is short"


def test_a_class_that_cannot_be_loaded_withholds_texts_and_lists_documents(
    finished: Browsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = finished.listed(source="web", fate="kept")[0]
    monkeypatch.setattr(finished.api.rows.redactor, "_of", finished.api.rows.redactor._load)
    with monkeypatch.context() as patch:
        patch.setattr("datapipe.config.catalogue.stage_class", fails)
        document, listed = finished.get("document", row["key"]), finished.listed(source="web")
    assert document["parts"] == []
    assert "cannot be loaded (ValueError), and it may be a redaction" in document["note"]
    assert len(listed) == 56
    assert not any(planted in json.dumps([document, listed]) for planted in PLANTED)


@pytest.mark.slow
def test_what_is_missing_of_a_whole_run_is_declared_without_the_message_of_its_error(copied: Browsed) -> None:
    copy = copied.folder / "out"
    report = json.loads((copy / "report.json").read_bytes())
    (copy / "report.json").write_text(json.dumps({**report, "status": "failed", "problem": f"cannot take {EMAIL}"}))
    notes = browsed.browse(copy).get("output")["notes"]
    assert len(notes) == 1
    assert notes[0].startswith("The last run failed; `datapipe report` shows why.")
    (copy / "report.json").unlink()
    shutil.rmtree(copy / "snapshots")
    (copy / "snapshot.json").unlink()
    opened = browsed.browse(copy)
    told = opened.get("output")
    assert [note.split(",")[0] for note in told["notes"]] == [
        "No snapshot is published yet. Documents that some step has still to decide about are not shown.",
        "There is no report.json",
    ]
    assert told["documents"] == 67
    assert told["cluster_stages"] == ["dedup.exact", "dedup.minhash"]
    kept = opened.listed(fate="kept", source="web")[0]
    assert opened.get("document", kept["key"])["parts"]
    short = opened.listed(source="plain", stage="filter.length", rule="too_few_words", sort="distance")
    assert [row["value"] for row in short] == [4, 3, 2, 1]


def test_an_output_on_an_object_store_is_browsed(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"id": f"doc-{n}", "text": "word " * n} for n in range(1, 10)])
    with object_store("bucket") as query:
        path = tmp_path / "mixture.yaml"
        stages = "[filter.length: {min_words: 5}]"
        sources = f"sources:\n  web: {{path: '{tmp_path}/a.jsonl', stages: {stages}}}"
        path.write_text(f"name: test\noutput: 's3://bucket/out{query}'\n{sources}\ntokenizer: none\n")
        opened = Browsed(tmp_path, browsed.Api(Inspector.open(finish(path).mixture.output)))
        assert [row["id"] for row in opened.listed(fate="dropped")] == [f"doc-{n}" for n in range(1, 5)]
        [kept] = opened.get("lookup", q="doc-7")["documents"]
        assert "".join(part["text"] for part in opened.get("document", kept["key"])["parts"]) == "word " * 7
        assert [line for line in opened.get("search", q="word word", limit=9)["lines"] if "hit" in line]


_LOADED = """
import sys
from datapipe.explore.endpoints import open_server
from datapipe.explore.server import Request

server = open_server(sys.argv[1], 0)
server.endpoint(Request(path=("output",)))
server.endpoint(Request(path=("documents",), query={"source": "plain", "sort": "bytes"}))
server.server_close()
print(*(name for name in ("numba", "llvmlite", "ray", "torch", "tokenizers", "matplotlib") if name in sys.modules))
"""


@pytest.mark.slow
def test_the_page_starts_and_lists_without_the_compiler_and_other_large_packages(finished: Browsed) -> None:
    command = [sys.executable, "-c", _LOADED, str(finished.folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_the_command_prints_the_address_first_and_ends_with_ctrl_c(finished: Browsed) -> None:
    command = [*COMMAND, "browse", str(finished.folder / "out"), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with urlopen(f"{address}api/output", timeout=120) as answer:
            assert b'"documents":67' in answer.read()
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=120)
    assert (process.returncode, rest) == (130, "")
    assert "Traceback" not in told


def test_a_folder_without_a_run_ends_in_one_sentence(tmp_path: Path) -> None:
    done = datapipe(["browse", str(tmp_path), "--no-open"])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no run has left anything here" in done.stderr
