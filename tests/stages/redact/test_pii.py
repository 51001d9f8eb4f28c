"""Personal data in documents is replaced, and found in two labelled sets. `tests/datapipe/kernels/redact` finds each kind."""

import ipaddress
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import phonenumbers
import pyarrow as pa
import pytest
import zstandard
from pydantic import ValidationError

from datapipe.stage import StageContext
from datapipe.stage.documents import DocumentBatch
from stages.redact.pii import Pii
from tests.support import runs
from tests.support.global_stages import batch_of
from tests.support.marked_spans import replaced, scraps, unmarked


def _opened(seed: int = 1, **options: object) -> Pii:
    stage = Pii.model_validate(options)
    stage.open(StageContext(name="redact.pii", seed=seed))
    return stage


def _after(stage: Pii, batch: DocumentBatch) -> list[str]:
    """The texts of the documents that the engine makes of the result."""
    result = stage.process(batch)
    columns = {name: column for name, column in result.columns.items() if name == "text"}
    return batch.with_columns(columns).filter(result.keep).texts.to_pylist()


def _texts(stage: Pii, texts: list[str]) -> list[str]:
    return _after(stage, batch_of(texts))


def _in_columns(text: str, **fields: object) -> DocumentBatch:
    return batch_of([text], **{name: pa.array([value]) for name, value in fields.items()})


TEXTS = ["Ask Jörg (jane@x.com) or a.b@y.de at 8.8.8.8.", "", "nobody 10.0.0.1", "jane@x.com 2001:4860:4860::8888 é"]
OF_EACH = (
    "jane@x.com, 8.8.8.8, 2001:4860:4860::8888, call (415) 555-2671 or +44 20 7946 0958, 4111 1111 1111 1111, "
    "GB82 WEST 1234 5698 7654 32, SSN 123-45-6789, https://bob:hunter2@h.net/x"
)
KINDS = {"email": "EMAIL", "ip": "IP", "phone": "PHONE", "card": "CARD", "iban": "IBAN", "ssn": "SSN"}


def test_pii_tag_replaces_each_kind_by_its_name_and_delete_by_nothing() -> None:
    out = _opened().process(batch_of([*TEXTS, OF_EACH])).columns["text"]
    out.validate(full=True)
    assert out.to_pylist() == [
        "Ask Jörg (<EMAIL>) or <EMAIL> at <IP>.",
        "",
        "nobody 10.0.0.1",
        "<EMAIL> <IP> é",
        "<EMAIL>, <IP>, <IP>, call <PHONE> or <PHONE>, <CARD>, <IBAN>, SSN <SSN>, https://<CREDENTIALS>@h.net/x",
    ]
    assert _texts(_opened(replace="delete"), [TEXTS[0], "https://a:b@h.net/x"]) == ["Ask Jörg () or  at .", "https://h.net/x"]
    assert "text" not in _opened().process(batch_of(["clean", "10.0.0.1"])).columns
    for kind, tag in (KINDS | {"url_credentials": "CREDENTIALS"}).items():
        assert set(re.findall("<[A-Z]+>", _texts(_opened(kinds=[kind]), [OF_EACH])[0])) == {f"<{tag}>"}


def test_pii_counts_have_each_kind_per_document() -> None:
    out = _opened(kinds=list(KINDS)).process(batch_of([*TEXTS, OF_EACH])).columns
    assert set(Pii.counts) == set(out) - {"text"}
    assert out["phone_regions_by_default"].to_pylist() == [0, 0, 0, 0, 1]
    assert out["email"].to_pylist() == [2, 0, 0, 1, 2]  # hunter2@h.net, where the URL stays
    assert out["ip"].to_pylist() == [1, 0, 0, 1, 2]
    assert [out[name][4].as_py() for name in ("phone", "card", "iban", "ssn", "url_credentials")] == [2, 1, 1, 1, 0]


def test_pii_fake_is_the_same_for_the_same_address_wherever_it_is() -> None:
    first, *_, last = _texts(_opened(replace="fake"), TEXTS)
    emails = re.findall(r"user-[0-9a-f]{8}@example\.com", first)
    assert len(set(emails)) == 2
    assert last.startswith(emails[0])
    assert ipaddress.ip_address(last.split()[1]) in ipaddress.ip_network("2001:db8::/32")
    assert _texts(_opened(replace="fake"), TEXTS[3:]) == [last]
    assert _texts(_opened(replace="fake", seed=2), TEXTS[3:]) != [last]


def test_pii_more_hits_than_allowed_drop_the_document() -> None:
    stage, texts = _opened(max_hits=2), ["a@x.com b@x.com", "a@x.com b@x.com 8.8.8.8", "none"]
    result = stage.process(batch_of(texts))
    assert (result.keep.tolist(), result.rule.tolist()) == ([True, False, True], [-1, 0, -1])
    assert (result.value.tolist(), result.measured[0].tolist()) == ([2, 3, 0], [2, 3, 0])
    assert _texts(stage, texts) == ["<EMAIL> <EMAIL>", "none"]
    assert _opened().rules() == []
    assert _opened(max_hits=0).process(batch_of(texts)).keep.tolist() == [False, False, True]
    assert _opened(max_hits=1, kinds=["ip"]).process(batch_of(texts)).keep.all()


def test_pii_second_pass_reads_each_changed_document_with_its_own_regions() -> None:
    """The number before a social security number shows only once that one is replaced."""
    texts = ["none", "a@b.com", "0171 2345678 123-45-6789", "0171 2345678 123-45-6789"]
    batch = batch_of(texts, url=pa.array(["http://x.de", "http://x.fr", "http://x.de", "http://x.com"]))
    result = _opened(max_hits=1).process(batch)
    assert result.columns["text"].to_pylist() == ["none", "<EMAIL>", "<PHONE> <SSN>", "0171 2345678 <SSN>"]
    assert [result.columns[name].to_pylist() for name in ("email", "ssn", "phone")] == [
        [0, 1, 0, 0],
        [0, 0, 1, 1],
        [0, 0, 1, 0],
    ]
    assert result.columns["phone_regions_by_url"].to_pylist() == [0, 0, 1, 0]
    assert (result.keep.tolist(), result.value.tolist()) == ([True, True, False, True], [0, 1, 2, 1])


PHONES = [
    ("US", "0171 2345678 and ⟦(415) 555-2671⟧, tel 0171 2345678"),
    ("DE", "⟦0171 2345678⟧ and (415) 555-2671, tel ⟦0171 2345678⟧"),
    ("", "tel 0171 2345678"),
    ("US", "⟦+49 171 2345678⟧"),
    ("DE", "⟦0044 20 7946 0958⟧, 00999 20 7946 095"),
    ("US", "0044 20 7946 0958, 00999 20 7946 095"),
    ("US", "⟦(915) 555-2671⟧"),
    ("IN", "(915) 555-2671"),
    ("US", "(555) 555-2671 and +999 123 456 789"),
    ("", "⟦+1 (555) 123-4567⟧, ⟦+1 (123) 456-7890⟧, ⟦+49 171 2345678⟧"),
    ("US", "⟦+1 (555) 123-4567⟧, ⟦+1 (123) 456-7890⟧"),
    ("US", "phone ⟦(555) 555-2671⟧ or tel. ⟦555 123 4567⟧ 8"),
    ("US", "+1 (555) 123-456, +49 12, call 555-2671 and 555-123-4567"),
    ("US", "call ⟦415 555 2671⟧ 24 hours"),
    ("GB", "fax ⟦001-415-555-2671⟧"),
    ("US", "⟦(415) 555-2671x12⟧, ⟦+1 415 555 2671 ext. 3⟧"),
    # by words of any language that announce numbers
    ("http://x.ru", "Тел.: ⟦8 (495) 606-36-02⟧, ТЕЛЕФОН для связи: ⟦495 606-36-02⟧"),
    ("http://x.es", "Tele\u0301fono: ⟦912 345 678⟧; TELÉFONO：⟦912345678⟧; hôtel 912345678"),
    ("http://x.gr", "Τηλ: ⟦21 0123 4567⟧ ΤΗΛΈΦΩΝΟ ⟦2101234567⟧"),
    ("http://x.jp", "電話：⟦0335803311⟧、お電話番号は⟦0335803311⟧ ＴＥＬ：⟦0335803311⟧ 商品番号0335803311"),
    ("http://x.co.kr", f"{unicodedata.normalize('NFD', '대표전화번호는')} ⟦027305800⟧, 전화:⟦027305800⟧ 호텔 027305800"),
    ("http://x.co.th", "โทร.⟦02 123 4567⟧ ติดต่อ ⟦021234567⟧"),
    ("http://x.in", "फ़ोन नंबर: ⟦11 2309 2462⟧"),
    ("http://x.pl", "tel. kom. ⟦600123456⟧, kom. 600123456"),
    ("http://x.de", "☎ ⟦3012345678⟧, Kontakt 2012-2020, Telefon: 01.02.2023, Kontakt © 2012-2020"),
]


@pytest.mark.parametrize(("regions", "text"), PHONES)
def test_pii_phone_numbers_are_those_of_their_regions(regions: str, text: str) -> None:
    stage = _opened() if "//" in regions else _opened(phone_regions=regions.split())
    assert _after(stage, _in_columns(unmarked(text), url=regions)) == [replaced(text, "<PHONE>")]


NATIONAL = {"GB": "(020) 7946 0018", "US": "(415) 555-2671", "DE": "01511 1234567"}
ALL_NATIONAL = ", ".join(NATIONAL.values())


@pytest.mark.parametrize(
    ("url", "html_lang", "language", "found", "choice"),
    [
        (None, None, None, "US", "default"),
        ("https://x.com/a.uk", None, None, "US", "default"),
        ("https://user@www.x.co.uk:80/a.de", None, None, "GB", "url"),
        ("HTTP://X.CO.UK?a", "en-US", "en", "GB US", "url"),
        ("www.почта.рф/x", None, None, "", "url"),
        ("https://x.io", "en_GB", None, "GB US", "language"),
        (None, None, "eng_Latn", "GB US", "language"),
        (None, "de", None, "DE", "language"),
        ("https://x.de/", "en", None, "DE GB US", "url"),
        (None, "x-default", "tlh", "US", "default"),
        (None, "fr", None, "US", "language"),  # French is written in Canada, too
    ],
)
def test_pii_auto_phone_regions_are_those_of_url_and_languages(
    url: str | None, html_lang: str | None, language: str | None, found: str, choice: str
) -> None:
    columns = {name: pa.array([value], pa.string()) for name, value in (("url", url), ("html_lang", html_lang))}
    batch = batch_of([ALL_NATIONAL], **columns, language=pa.array([language], pa.string()))
    out = _opened().process(batch).columns
    text = out["text"][0].as_py() if "text" in out else ALL_NATIONAL
    assert {region for region, number in NATIONAL.items() if number not in text} == set(found.split())
    assert {name for name in Pii.counts if "_by_" in name and out[name][0].as_py()} == {f"phone_regions_by_{choice}"}


def test_pii_auto_phone_regions_hold_for_each_document_of_a_batch() -> None:
    texts = ["none", *[ALL_NATIONAL] * 5, "none"]
    urls = ["http://x.fr", "http://x.uk", None, "http://x.de", "http://x.com", "http://x.uk", "http://x.uk"]
    languages = [["fr"], [], ["de", "en"], ["de"], ["en"], ["fr"], ["en"]]
    batch = batch_of(texts, url=pa.array(urls), languages=pa.array(languages, pa.list_(pa.string())))
    after = _after(_opened(), batch)
    regions = ["GB", "DE", "DE", "GB US", "GB US"]  # of the first language alone
    for text, found in zip(after[1:], regions):
        assert {region for region, number in NATIONAL.items() if number not in text} == set(found.split())
    assert [_after(_opened(), batch.slice(row, row + 1))[0] for row in range(7)] == after
    other_types = _in_columns(ALL_NATIONAL, url=7, languages="en")  # which are not read
    assert {region for region, number in NATIONAL.items() if number not in _after(_opened(), other_types)[0]} == {"US"}


@pytest.mark.medium
@pytest.mark.parametrize(("stage", "num_warnings"), [("redact.pii", 1), ("{redact.pii: {phone_regions: [US]}}", 0)])
def test_pii_run_warns_of_phones_in_documents_without_a_region(tmp_path: Path, stage: str, num_warnings: int) -> None:
    lines = [{"text": f"{ALL_NATIONAL} {row}", "url": "http://x.co.uk" if row % 3 == 0 else None} for row in range(160)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    source = f"  web: {{path: '{tmp_path}/a.jsonl', keep: [url]}}"
    mixture = runs.write_mixture(tmp_path, source, f"stages: [{stage}]", "tokenizer: none")
    run = runs.run_mixture(mixture, make_engine=runs.InProcess)
    texts = [warning.text for warning in run.warnings if warning.kind == "unknown_regions"]
    assert len(texts) == num_warnings
    assert all("160" in text and "106" in text for text in texts)


@pytest.mark.parametrize(
    "options", [{"phone_regions": ["UK"]}, {"phone_regions": "US"}, {"kinds": ["names"]}, {"kinds": []}, {"max_hits": -1}]
)
def test_pii_options_that_nothing_fits_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Pii.model_validate(options)


SCRAPS = [*" .-+()/:@\n,", "tel ", "call ", "version ", "SSN ", "4111 1111 1111 1111", "+41 44 668 18 00"]
SCRAPS += scraps(
    "jane@x.com 8.8.8.8 415-555-2671 123-45-6789 GB82WEST12345698765432 http://a:b@ h.com 2001:4860::8:8 123456789 42"
)


@pytest.mark.parametrize("replace", ["tag", "fake"])
def test_pii_redacting_twice_changes_nothing(replace: str) -> None:
    generator = np.random.default_rng(3)
    drawn = ["".join(SCRAPS[at] for at in generator.integers(0, len(SCRAPS), 12)) for _ in range(3000)]
    stage = _opened(replace=replace, phone_regions=["US", "CH", "DE"])
    out = stage.process(batch_of([OF_EACH, *TEXTS, *drawn])).columns
    assert min(pa.compute.sum(out[name]).as_py() for name in Pii.counts if "_by_" not in name) > 100
    assert "text" not in stage.process(batch_of(out["text"].to_pylist())).columns


@pytest.mark.parametrize("replace", ["tag", "fake", "delete"])
def test_pii_addresses_and_numbers_in_a_row_are_replaced_together(replace: str) -> None:
    addresses = "8.8.8.8/9.9.9.9/1.1.1.1/8.8.4.4/9.9.9.10/1.0.0.1"
    numbers = " ".join(f"0171 23456{n}8" for n in range(6))
    stage = _opened(replace=replace, phone_regions=["DE", "US"])
    once = _texts(stage, [addresses, numbers])
    assert not any(found in text for text in once for found in ("8.8", "9.9.9", "0171 23"))
    assert _texts(stage, once) == once


@pytest.mark.medium
@pytest.mark.parametrize("piece", ["+1 ", "+14155552671 ", "call 4155552671 ", "9", "@", ".", "1-", "<PHONE> 415 "])
def test_pii_a_megabyte_of_one_text_is_read_to_its_end(piece: str) -> None:
    assert _texts(_opened(), [piece * (1_000_000 // len(piece)), "a@b.com"])[1] == "<EMAIL>"


# ------------------------------------------------------------------------------------------------ labelled sets

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
    batch, chosen = batch_of(texts), np.zeros((len(texts), 3), np.int32)
    offsets, data = batch.buffers
    spans = _opened(kinds=[kind], phone_regions=regions).find(offsets, data, np.arange(len(texts)), batch.record, chosen)
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
RECALLS = [(name, kind, ("US",), recall) for name, recalls in LEAST_RECALL.items() for kind, recall in recalls.items()]
RECALLS += [("presidio_synth_dataset_v2", "phone", _REGIONS, 0.83), ("presidio_generated_large", "phone", _REGIONS, 0.61)]


@pytest.mark.real
@pytest.mark.parametrize(("name", "kind", "regions", "recall"), RECALLS)
def test_pii_labelled_spans_are_found_and_nothing_else(
    real_data: Path, name: str, kind: str, regions: tuple[str, ...], recall: float
) -> None:
    texts, labels = _labelled(real_data / "pii" / f"{name}.json.zst")
    found, labelled = _found(texts, kind, regions), labels[kind]
    wrong = [one for one in found if not any(one[0] == d and one[1] < stop and start < one[2] for d, start, stop in labelled)]
    hit = [label for label in labelled if any(d == label[0] and a <= label[1] and label[2] <= b for d, a, b in found)]
    assert wrong == []
    assert len(hit) >= recall * len(labelled)


def _is_us_phone(value: str) -> bool:
    try:
        return any(phonenumbers.is_valid_number(phonenumbers.parse(value, region)) for region in (None, "US"))
    except phonenumbers.NumberParseException:
        return False


@pytest.mark.real
@pytest.mark.parametrize(("name", "recall"), [("presidio_synth_dataset_v2", 1.0), ("presidio_generated_large", 0.83)])
def test_pii_labelled_phones_that_are_valid_in_the_united_states_are_found(real_data: Path, name: str, recall: float) -> None:
    texts, labels = _labelled(real_data / "pii" / f"{name}.json.zst")
    encoded = [text.encode() for text in texts]
    valid = [(d, start, stop) for d, start, stop in labels["phone"] if _is_us_phone(encoded[d][start:stop].decode())]
    found = _found(texts, "phone", ("US",))
    hit = [label for label in valid if any(d == label[0] and a <= label[1] and label[2] <= b for d, a, b in found)]
    assert len(hit) >= recall * len(valid) > 0


def _prose(folder: Path, *names: str) -> list[str]:
    texts: list[str] = []
    for name in names:
        with zstandard.open(folder / "prose" / f"{name}.jsonl.zst", "rt", encoding="utf-8") as stream:
            texts += [json.loads(line)["text"] for line in stream]
    return texts


@pytest.mark.real
def test_pii_clean_text_holds_nothing(real_data: Path) -> None:
    """15 MB of novels, papers, a manual, questions and patents; the addresses are examples in a manual and two questions."""
    names = ("novels", "rust_book", "arxiv_latex", "dj_arxiv", "dj_stack_exchange", "dj_the-pile-uspto-refined")
    texts = _prose(real_data, *names)
    for kind in ("email", "ip", "phone", "card", "iban", "ssn", "url_credentials"):
        assert len(_found(texts, kind, _REGIONS)) == (8 if kind == "email" else 0), kind


@pytest.mark.real
def test_pii_auto_phone_regions_find_what_those_of_the_country_find(real_data: Path) -> None:
    """British pages whose language was detected; `auto` has more regions, of which one number is valid."""
    texts = _prose(real_data, "govuk_commoncrawl_wet", "govuk_news")
    in_us, in_gb = (len(_found(texts, "phone", (region,))) for region in ("US", "GB"))
    batch = batch_of(texts, language=pa.array(["en"] * len(texts)))
    assert sum(_opened(kinds=["phone"]).process(batch).columns["phone"].to_pylist()) >= in_gb > 10 * in_us
