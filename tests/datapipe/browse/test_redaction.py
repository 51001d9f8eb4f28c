"""No endpoint tells personal data that a redaction of the source replaces, of a document of any fate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from datapipe.browse import redaction
from datapipe.browse.server import RequestError
from stages.redact.pii import Pii
from tests.support.browsed import EMAIL, PLANTED, SECRET, Browsed


def answers(finished: Browsed) -> Iterator[dict[str, Any]]:
    """The answers of all endpoints about all documents of source web, with parts joined as a reader sees them."""
    output = finished.get("output")
    yield output
    for sort in ("key", "value", "distance", "bytes"):
        yield finished.get("documents", source="web", sort=sort, limit=500)
    for row in finished.listed(source="web"):
        document = finished.get("document", row["key"])
        yield {**document, "joined": "".join(part["text"] for part in document["parts"])}
        kept = "".join(part["text"] for part in document["parts"] if part["kind"] != "cut")
        yield {"kept": kept}
        yield finished.get("lookup", q=row["key"])
    for rule in output["rules"]:
        if rule["source"] == "web":
            named = {"source": "web", "stage": rule["stage"], "rule": rule["rule"]}
            yield finished.get("borderline", **named) if rule["has_sweep"] or rule["threshold"] is not None else {}
            yield finished.get("sweep", **named) if rule["has_sweep"] else {}
    for stage in output["cluster_stages"]:
        clusters = finished.get("clusters", stage=stage)
        yield clusters
        for cluster in clusters["clusters"]:
            yield finished.get("cluster", cluster["survivor"]["key"], stage=stage, members=9)
    for text in (EMAIL, "planted", "nothing else", "the token is", "line that never ends", SECRET[:12], "write to"):
        yield finished.get("search", q=text, source="web")


@pytest.mark.medium
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
    original = finished.api.view.originals.read(bytes.fromhex(row["key"]))
    assert original.batch is not None and "planted.person@" in original.batch.texts[0].as_py()
    assert finished.api.redactor.one("plain", EMAIL) == EMAIL


@pytest.mark.medium
def test_a_redaction_that_fails_withholds_the_text_and_says_so(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Pii, batch: object) -> None:
        raise ValueError(f"cannot redact {EMAIL}")

    rows = [finished.listed(source="web", fate=fate)[0] for fate in ("kept", "dropped", "quarantined")]
    monkeypatch.setattr(Pii, "process", fails)
    for row in rows:
        document = finished.get("document", row["key"])
        assert document["parts"] == []
        assert "redact.pii failed on this document (ValueError)" in document["note"]
    told = [finished.listed(source="web"), finished.get("search", q="write to", source="web")]
    told.append(finished.get("borderline", source="web", stage="filter.length", rule="too_few_words"))
    assert EMAIL not in json.dumps(told)


@pytest.mark.medium
def test_an_unexpected_error_tells_no_text_neither_to_the_page_nor_to_the_terminal(
    finished: Browsed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*options: object) -> None:
        raise ValueError(f"cannot take {EMAIL}")

    monkeypatch.setattr(finished.api.documents, "find", fails)
    with pytest.raises(RequestError, match="This is a defect of datapipe: ValueError") as refused:
        finished.get("documents")
    told = capsys.readouterr().err
    assert "endpoints.py" in told
    assert EMAIL not in told + str(refused.value)


@pytest.mark.medium
def test_what_lies_across_the_end_of_a_long_text_is_not_shown(finished: Browsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MARGIN", 64)
    redactor = finished.api.redactor
    for filling in range(40, 120):
        text = "a " * filling + EMAIL + " b" * 200
        shown = redactor.beginning("web", text, 100)
        assert len(shown) <= 100
        assert not any(shown.endswith(EMAIL[:length]) for length in range(3, len(EMAIL) + 1)), shown
    assert redactor.beginning("web", f"{EMAIL} is short", 100) == "<EMAIL> is short"


@pytest.mark.medium
def test_a_class_that_cannot_be_loaded_withholds_texts_and_lists_documents(
    finished: Browsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(name: str, where: str = "") -> type:
        raise ModuleNotFoundError(EMAIL)

    row = finished.listed(source="web", fate="kept")[0]
    monkeypatch.setattr(finished.api.redactor, "_stages", {})
    monkeypatch.setattr(finished.api.redactor, "_unknown", {})
    with monkeypatch.context() as patch:
        patch.setattr("datapipe.catalogue.stage_class", fails)
        document, listed = finished.get("document", row["key"]), finished.listed(source="web")
    assert document["parts"] == []
    assert "cannot be loaded (ModuleNotFoundError), and it may be a redaction" in document["note"]
    assert len(listed) == 56
    assert not any(planted in json.dumps([document, listed]) for planted in PLANTED)
