"""Recall on the labelled personal data of two Presidio sets, and false positives in clean text."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import numpy as np
import phonenumbers
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


def _labelled(path: Path) -> tuple[list[str], dict[str, dict[tuple[int, int, int], str]]]:
    """Texts, and by kind the labelled spans, in bytes of the document, with what they hold."""
    with zstandard.open(path, "rt", encoding="utf-8") as stream:
        rows = json.load(stream)
    labels: dict[str, dict[tuple[int, int, int], str]] = {kind: {} for kind in _LABELS.values()}
    for document, row in enumerate(rows):
        for span in row["spans"]:
            if span["entity_type"] in _LABELS:
                start = len(row["full_text"][: span["start_position"]].encode())
                value = span["entity_value"]
                labels[_LABELS[span["entity_type"]]][document, start, start + len(value.encode())] = value
    return [row["full_text"] for row in rows], labels


def _is_phone(value: str, regions: tuple[str, ...]) -> bool:
    for region in (None, *regions):
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(value, region)):
                return True
        except phonenumbers.NumberParseException:
            pass
    return False


def _is_valid(kind: str, value: str, regions: tuple[str, ...]) -> bool:
    """Whether a label is what it says, by a library or by arithmetic: synthetic ones need not be."""
    if kind == "card":
        doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(value))]
        return sum(number // 10 + number % 10 for number in doubled) % 10 == 0
    if kind == "iban":
        return int("".join(str(int(one, 36)) for one in value[4:] + value[:4])) % 97 == 1
    if kind == "ip":
        return ipaddress.ip_address(value).is_global
    return kind != "phone" or _is_phone(value, regions)


@pytest.mark.parametrize(
    ("name", "kind", "regions", "recall", "recall_of_valid"),
    [
        ("presidio_synth_dataset_v2", "email", ("US",), 1.0, 1.0),
        ("presidio_synth_dataset_v2", "ip", ("US",), 1.0, 1.0),
        ("presidio_synth_dataset_v2", "card", ("US",), 0.97, 0.97),
        ("presidio_synth_dataset_v2", "iban", ("US",), 1.0, 1.0),
        ("presidio_synth_dataset_v2", "ssn", ("US",), 1.0, 1.0),
        ("presidio_synth_dataset_v2", "phone", ("US",), 0.45, 1.0),
        ("presidio_synth_dataset_v2", "phone", _REGIONS, 0.83, 0.8),
        ("presidio_generated_large", "email", ("US",), 1.0, 1.0),
        ("presidio_generated_large", "ip", ("US",), 0.9, 1.0),
        ("presidio_generated_large", "card", ("US",), 1.0, 1.0),
        ("presidio_generated_large", "iban", ("US",), 1.0, 1.0),
        ("presidio_generated_large", "ssn", ("US",), 1.0, 1.0),
        ("presidio_generated_large", "phone", ("US",), 0.32, 0.83),
        ("presidio_generated_large", "phone", _REGIONS, 0.61, 0.62),
    ],
)
def test_pii_labelled_spans_are_found_and_nothing_else(
    real_data: Path, name: str, kind: str, regions: tuple[str, ...], recall: float, recall_of_valid: float
) -> None:
    texts, labels = _labelled(real_data / "pii" / f"{name}.json.zst")
    found, labelled = _found(texts, kind, regions), labels[kind]
    valid = {span for span, value in labelled.items() if _is_valid(kind, value, regions)}
    right = {
        one
        for one in found
        if any(one[0] == document and one[1] < stop and start < one[2] for document, start, stop in labelled)
    }
    hit = {label for label in labelled if any(d == label[0] and a <= label[1] and label[2] <= b for d, a, b in found)}
    print(
        name,
        kind,
        len(regions),
        f"precision {len(right)}/{len(found)} recall {len(hit)}/{len(labelled)} {len(hit & valid)}/{len(valid)}",
    )
    assert len(right) == len(found)
    assert len(hit) >= recall * len(labelled)
    assert len(hit & valid) >= recall_of_valid * len(valid)


def test_pii_auto_phone_regions_find_what_those_of_the_country_find(real_data: Path) -> None:
    """British pages whose language was detected; `auto` has more regions, of which one number is valid."""
    texts: list[str] = []
    for name in ("govuk_commoncrawl_wet", "govuk_news"):
        with zstandard.open(real_data / "prose" / f"{name}.jsonl.zst", "rt", encoding="utf-8") as stream:
            texts += [json.loads(line)["text"] for line in stream]
    batch = batch_of(texts).with_columns({"language": pa.array(["en"] * len(texts))})
    stage = Pii.model_validate({"kinds": ["phone"]})
    stage.open(StageContext(name="redact.pii", seed=1))
    by_regions = [len(_found(texts, "phone", regions)) for regions in (("US",), ("GB",))]
    found = int(stage.process(batch).columns["phone"].sum().as_py())
    print("British pages: US, GB, auto", by_regions, found)
    assert found >= by_regions[1] > 10 * by_regions[0]


_CLEAN = ["novels", "rust_book", "arxiv_latex", "dj_arxiv", "dj_stack_exchange", "dj_the-pile-uspto-refined"]


@pytest.mark.parametrize("kind", ["email", "ip", "phone", "card", "iban", "ssn", "url_credentials"])
def test_pii_clean_text_holds_nothing(real_data: Path, kind: str) -> None:
    """15 MB of novels, papers, a manual, questions and patents; the addresses are examples in a manual and two questions."""
    texts: list[str] = []
    for name in _CLEAN:
        with zstandard.open(real_data / "prose" / f"{name}.jsonl.zst", "rt", encoding="utf-8") as stream:
            texts += [json.loads(line)["text"] for line in stream]
    assert len(_found(texts, kind, _REGIONS)) == (8 if kind == "email" else 0)
