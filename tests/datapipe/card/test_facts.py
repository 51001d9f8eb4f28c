"""The sections of a card that only some runs have, from reports that are written here."""

from __future__ import annotations

import json
from typing import Any

from datapipe.card.card import card_files
from datapipe.card.data_files import DataFiles
from datapipe.shards.manifest import DocumentsSnapshot, DocumentsSource

FILES = DataFiles(format="parquet", is_packed=False, configurations=())
MANIFEST = DocumentsSnapshot(name="m", document_format="parquet", sources={"web": DocumentsSource()}, documents=()).sealed()


def _report(**more: Any) -> dict[str, Any]:
    documents = {"read": 1000, "kept": 990, "dropped": {}, "quarantined": 10, "quarantine_reasons": {}}
    entry = {"documents": documents, "bytes": 10, "kept_bytes": 9, "tokens": 0, "counts": {}}
    empty = {"excesses": [], "unreadable_files": [], "contamination": [], "mixture": None, "tokenizer": None}
    return {"total": entry, "sources": {"web": entry}, **empty, **more}


def _limits(**more: Any) -> str:
    text = card_files(_report(**more), MANIFEST, "", FILES)["README.md"].decode()
    return text.partition("## Known limits")[2]


def test_known_limits_are_those_that_the_run_counted() -> None:
    documents = _report()["total"]["documents"] | {"quarantine_reasons": {"read: <b>`|` at N": 7, "my:Stage: x": 3}}
    total = _report()["total"] | {"documents": documents}
    languages = {"sources": {"web": {"languages": None}}, "total": {"bytes_per_token": None}, "vocab_size": 9}
    told = _limits(
        total=total,
        unreadable_files=[{"source": "web", "count": 2, "files": [{"path": "/home/me/a"}], "text": "/home/me/a"}],
        contamination=[{"stage": "d", "name": "arc", "entries": 100, "contaminated": 1, "clean": 59, "undetectable": 40}],
        excesses=[{"source": "web", "stage": "dedup.exact", "dropped": 5, "read": 10, "allowed": 0.1}],
        tokenizer=languages | {"eos_token": "<e>", "unused": None},
        provenance={"licenses": {"unknown": {"documents": 990, "bytes": 9, "tokens": None, "drawn_tokens": None}}},
    )
    for sentence in (
        "10 documents could not be read or processed, and are missing.",
        "of these 7: <code>read: &#60;b&#62;&#96;&#124;&#96; at N</code>",
        "of these 3: `my:Stage: x`",
        "2 input files of `web` could not be read whole",
        "40 of 100 items of `arc` cannot be found by `d`",
        "`dedup.exact` removed 5 of 10 documents of `web`, more than the 10.00%",
        "More languages than are counted: `web`.",
        "The licence of 990 documents is not known.",
        "No stage of datapipe looked for personal data or secrets.",
    ):
        assert sentence in told
    assert "/home/me" not in told
    assert "No evaluation set" not in told
    assert "No evaluation set" in _limits()


def test_earlier_reports_lack_most_and_have_a_card_all_the_same() -> None:
    files = card_files(_report(), MANIFEST, "", FILES)
    assert b"| **kept** | \xc2\xb7 | 990 | 99.00% |" in files["README.md"]
    assert json.loads(files["croissant.json"])["prov:wasDerivedFrom"][0]["name"] == "web"
    assert b"## Licences" not in files["README.md"]
