"""Recall on the labelled personal data of two Presidio sets, and false positives in clean text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from datapipe.stage import StageContext
from stages.redact.pii import Pii
from tests.support.global_stages import batch_of

pytestmark = pytest.mark.real
_LABELS = {
    "EMAIL_ADDRESS": "email",
    "IP_ADDRESS": "ip",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
}
_REGIONS = (
    *("US", "GB", "DE", "FR", "IT", "ES", "CH", "SE", "DK", "NO", "FI", "NL", "BE", "AT", "PL", "HU", "CZ", "AU", "ZA", "NZ"),
    *("BR", "SI", "IS", "GL", "CY", "EE", "TN", "UY"),
)
Spans = set[tuple[int, int, int]]


def _found(texts: list[str], kind: str, regions: tuple[str, ...]) -> Spans:
    """(document, start, stop) of every span of a kind, in bytes of the document."""
    stage = Pii.model_validate({"kinds": [kind], "phone_regions": regions})
    stage.open(StageContext(name="redact.pii", seed=1))
    offsets, data = batch_of(texts).buffers
    spans = stage.find(offsets, data)
    documents = np.searchsorted(offsets[1:], spans.starts, side="right")
    begins = offsets[documents]
    return set(zip(documents.tolist(), (spans.starts - begins).tolist(), (spans.stops - begins).tolist(), strict=True))


def _labelled(path: Path) -> tuple[list[str], dict[str, Spans]]:
    """Texts, and by kind the labelled spans, in bytes of the document."""
    with zstandard.open(path, "rt", encoding="utf-8") as stream:
        rows = json.load(stream)
    labels: dict[str, Spans] = {kind: set() for kind in _LABELS.values()}
    for document, row in enumerate(rows):
        for span in row["spans"]:
            if span["entity_type"] in _LABELS:
                start = len(row["full_text"][: span["start_position"]].encode())
                labels[_LABELS[span["entity_type"]]].add((document, start, start + len(span["entity_value"].encode())))
    return [row["full_text"] for row in rows], labels


LEAST_RECALL = {
    "presidio_synth_dataset_v2": {"email": 1.0, "ip": 1.0, "card": 0.97, "iban": 1.0, "ssn": 1.0, "phone": 0.45},
    "presidio_generated_large": {"email": 1.0, "ip": 0.9, "card": 1.0, "iban": 1.0, "ssn": 1.0, "phone": 0.32},
}
"""By set and kind, with the regions of the United States; most labelled phone numbers are of other countries, or of none."""
CASES = [(name, kind, ("US",), recall) for name, recalls in LEAST_RECALL.items() for kind, recall in recalls.items()]
CASES += [("presidio_synth_dataset_v2", "phone", _REGIONS, 0.83), ("presidio_generated_large", "phone", _REGIONS, 0.61)]


@pytest.mark.parametrize(("name", "kind", "regions", "recall"), CASES)
def test_pii_labelled_spans_are_found_and_nothing_else(
    real_data: Path, name: str, kind: str, regions: tuple[str, ...], recall: float
) -> None:
    texts, labels = _labelled(real_data / "pii" / f"{name}.json.zst")
    found, labelled = _found(texts, kind, regions), labels[kind]
    wrong = [one for one in found if not any(one[0] == d and one[1] < stop and start < one[2] for d, start, stop in labelled)]
    hit = [label for label in labelled if any(d == label[0] and a <= label[1] and label[2] <= b for d, a, b in found)]
    assert wrong == []
    assert len(hit) >= recall * len(labelled)


def _prose(folder: Path, *names: str) -> list[str]:
    texts: list[str] = []
    for name in names:
        with zstandard.open(folder / "prose" / f"{name}.jsonl.zst", "rt", encoding="utf-8") as stream:
            texts += [json.loads(line)["text"] for line in stream]
    return texts


def test_pii_auto_phone_regions_find_what_those_of_the_country_find(real_data: Path) -> None:
    """British pages whose language was detected; `auto` has more regions, of which one number is valid."""
    texts = _prose(real_data, "govuk_commoncrawl_wet", "govuk_news")
    stage = Pii.model_validate({"kinds": ["phone"]})
    stage.open(StageContext(name="redact.pii", seed=1))
    by_regions = [len(_found(texts, "phone", regions)) for regions in (("US",), ("GB",))]
    batch = batch_of(texts, language=pa.array(["en"] * len(texts)))
    assert int(stage.process(batch).columns["phone"].sum().as_py()) >= by_regions[1] > 10 * by_regions[0]


def test_pii_clean_text_holds_nothing(real_data: Path) -> None:
    """15 MB of novels, papers, a manual, questions and patents; the addresses are examples in a manual and two questions."""
    names = ("novels", "rust_book", "arxiv_latex", "dj_arxiv", "dj_stack_exchange", "dj_the-pile-uspto-refined")
    texts = _prose(real_data, *names)
    for kind in ("email", "ip", "phone", "card", "iban", "ssn", "url_credentials"):
        assert len(_found(texts, kind, _REGIONS)) == (8 if kind == "email" else 0), kind
