"""Personal data in documents is replaced, and labelled data is found."""

from __future__ import annotations

import ipaddress
import json
import pickle
import re
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from datapipe import columns
from datapipe.stage import StageContext
from datapipe.stage.documents import DocumentBatch
from stages.redact.pii import Pii
from tests.support import runs


def _batch(texts: list[str], **fields: list[str | None] | list[list[str]]) -> DocumentBatch:
    keys = columns.make_keys(1, np.arange(len(texts), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(texts))], pa.large_string())
    return DocumentBatch(pa.record_batch({"key": keys, "id": ids, "text": pa.array(texts, pa.large_string()), **fields}))


def _opened(seed: int = 1, **options: object) -> Pii:
    stage = Pii.model_validate(options)
    stage.open(StageContext(name="redact.pii", seed=seed))
    return stage


def _after(stage: Pii, batch: DocumentBatch) -> DocumentBatch:
    """The batch that the engine makes of the result."""
    result = stage.process(batch)
    return batch.with_columns({name: column for name, column in result.columns.items() if name == "text"}).filter(result.keep)


def _texts(stage: Pii, texts: list[str]) -> list[str]:
    return _after(stage, _batch(texts)).texts.to_pylist()


TEXTS = ["Ask Jörg (jane@x.com) or a.b@y.de at 8.8.8.8.", "", "nobody 10.0.0.1", "jane@x.com 2001:4860:4860::8888 é"]
OF_EACH = (
    "jane@x.com, 8.8.8.8, 2001:4860:4860::8888, call (415) 555-2671 or +44 20 7946 0958, 4111 1111 1111 1111, "
    "GB82 WEST 1234 5698 7654 32, SSN 123-45-6789, https://bob:hunter2@h.net/x"
)


def test_pii_tag_replaces_each_kind_by_its_name() -> None:
    out = _opened().process(_batch([*TEXTS, OF_EACH])).columns["text"]
    out.validate(full=True)
    assert out.to_pylist() == [
        "Ask Jörg (<EMAIL>) or <EMAIL> at <IP>.",
        "",
        "nobody 10.0.0.1",
        "<EMAIL> <IP> é",
        "<EMAIL>, <IP>, <IP>, call <PHONE> or <PHONE>, <CARD>, <IBAN>, SSN <SSN>, https://<CREDENTIALS>@h.net/x",
    ]


def test_pii_counts_have_each_kind_per_document() -> None:
    out = _opened(kinds=["email", "ip", "phone", "card", "iban", "ssn"]).process(_batch([*TEXTS, OF_EACH])).columns
    assert set(Pii.counts) == set(out) - {"text"}
    assert out["phone_regions_by_default"].to_pylist() == [0, 0, 0, 0, 1]
    assert out["email"].to_pylist() == [2, 0, 0, 1, 2]  # hunter2@h.net, where the URL stays
    assert out["ip"].to_pylist() == [1, 0, 0, 1, 2]
    assert [out[name][4].as_py() for name in ("phone", "card", "iban", "ssn", "url_credentials")] == [2, 1, 1, 1, 0]
    assert {out[name].type for name in Pii.counts} == {pa.int32()}


def test_pii_delete_writes_nothing() -> None:
    stage = _opened(replace="delete")
    assert _texts(stage, [TEXTS[0], "https://bob:hunter2@h.net/x"]) == ["Ask Jörg () or  at .", "https://h.net/x"]


def test_pii_fake_is_the_same_for_the_same_address_wherever_it_is() -> None:
    first, *_, last = _texts(_opened(replace="fake"), TEXTS)
    emails = re.findall(r"user-[0-9a-f]{8}@example\.com", first)
    assert len(set(emails)) == 2
    assert last.startswith(emails[0])
    assert ipaddress.ip_address(last.split()[1]) in ipaddress.ip_network("2001:db8::/32")
    assert _texts(_opened(replace="fake"), TEXTS[3:]) == [last]
    assert _texts(_opened(replace="fake", seed=2), TEXTS[3:]) != [last]


@pytest.mark.parametrize(
    ("kind", "tag"),
    [
        ("email", "<EMAIL>"),
        ("ip", "<IP>"),
        ("phone", "<PHONE>"),
        ("card", "<CARD>"),
        ("iban", "<IBAN>"),
        ("ssn", "<SSN>"),
        ("url_credentials", "<CREDENTIALS>"),
    ],
)
def test_pii_one_kind_alone_leaves_the_others(kind: str, tag: str) -> None:
    found = re.findall("<[A-Z]+>", _texts(_opened(kinds=[kind]), [OF_EACH])[0])
    assert set(found) == {tag}


def test_pii_batch_without_hits_passes_its_text_untouched() -> None:
    assert "text" not in _opened().process(_batch(["clean", "10.0.0.1"])).columns
    assert "text" not in _opened().process(_batch([])).columns


def test_pii_more_hits_than_allowed_drop_the_document() -> None:
    stage, texts = _opened(max_hits=2), ["a@x.com b@x.com", "a@x.com b@x.com 8.8.8.8", "none"]
    result = stage.process(_batch(texts))
    assert result.keep.tolist() == [True, False, True]
    assert [stage.rules()[at].name for at in result.rule if at >= 0] == ["too_many_hits"]
    assert (result.value.tolist(), result.measured[0].tolist()) == ([2, 3, 0], [2, 3, 0])
    assert _texts(stage, texts) == ["<EMAIL> <EMAIL>", "none"]
    assert _opened().rules() == []
    assert _opened(max_hits=0).process(_batch(texts)).keep.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0171 2345678 and (415) 555-2671", {"US": "0171 2345678 and <PHONE>", "DE": "<PHONE> and (415) 555-2671"}),
        ("tel 0171 2345678", {"US": "tel 0171 2345678", "DE": "tel <PHONE>", "": "tel 0171 2345678"}),
        ("+49 171 2345678", {"US": "<PHONE>", "DE": "<PHONE>", "": "<PHONE>"}),
        (
            "0044 20 7946 0958, 00999 20 7946 095",
            {"DE": "<PHONE>, 00999 20 7946 095", "US": "0044 20 7946 0958, 00999 20 7946 095"},
        ),
        ("(915) 555-2671", {"US": "<PHONE>", "IN": "(915) 555-2671"}),
        ("(555) 555-2671 and +999 123 456 789", {"US": "(555) 555-2671 and +999 123 456 789"}),
        ("+1 (555) 123-4567, +1 (123) 456-7890", {"US": "<PHONE>, <PHONE>", "": "<PHONE>, <PHONE>"}),
        ("phone (555) 555-2671 or tel. 555 123 4567 8", {"US": "phone <PHONE> or tel. <PHONE> 8"}),
        (
            "+1 (555) 123-456, +49 12, call 555-2671 and 555-123-4567",
            {"US": "+1 (555) 123-456, +49 12, call 555-2671 and 555-123-4567"},
        ),
        ("call 415 555 2671 24 hours", {"US": "call <PHONE> 24 hours"}),
        ("fax 001-415-555-2671", {"GB": "fax <PHONE>"}),
        ("(415) 555-2671x12, +1 415 555 2671 ext. 3", {"US": "<PHONE>, <PHONE>"}),
    ],
)
def test_pii_phone_numbers_are_those_of_their_regions(text: str, expected: dict[str, str]) -> None:
    for region, out in expected.items():
        assert _texts(_opened(phone_regions=[region] if region else []), [text]) == [out]


NATIONAL = "(020) 7946 0018, (415) 555-2671, 01511 1234567"


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
        (None, "fr", None, "US", "language"),
    ],
)
def test_pii_auto_phone_regions_are_those_of_url_and_languages(
    url: str | None, html_lang: str | None, language: str | None, found: str, choice: str
) -> None:
    numbers = {"GB": "(020) 7946 0018", "US": "(415) 555-2671", "DE": "01511 1234567"}
    batch = _batch([NATIONAL], url=[url], html_lang=[html_lang], language=[language])
    out = _opened().process(batch).columns
    text = out["text"][0].as_py() if "text" in out else NATIONAL
    assert {region for region, number in numbers.items() if number not in text} == set(found.split())
    assert {name for name in Pii.counts if "_by_" in name and out[name][0].as_py()} == {f"phone_regions_by_{choice}"}


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://x.ru", "Тел.: {8 (495) 606-36-02}, ТЕЛЕФОН для связи: {495 606-36-02}"),
        ("http://x.es", "Tele\u0301fono: {912 345 678}; TELÉFONO：{912345678}; hôtel 912345678"),
        ("http://x.gr", "Τηλ: {21 0123 4567} ΤΗΛΈΦΩΝΟ {2101234567}"),
        ("http://x.jp", "電話：{0335803311}、お電話番号は{0335803311} ＴＥＬ：{0335803311} 商品番号0335803311"),
        (
            "http://x.co.kr",
            unicodedata.normalize("NFD", "대표전화번호는") + " {027305800}, 전화:{027305800} 호텔 027305800",
        ),
        ("http://x.co.th", "โทร.{02 123 4567} ติดต่อ {021234567}"),
        ("http://x.in", "फ़ोन नंबर: {11 2309 2462}"),
        ("http://x.pl", "tel. kom. {600123456}, kom. 600123456"),
        ("http://x.de", "☎ {3012345678}, Kontakt 2012-2020, Telefon: 01.02.2023, Kontakt © 2012-2020"),
    ],
)
def test_pii_phone_words_of_any_language_announce_numbers(url: str, text: str) -> None:
    batch = _batch([text.replace("{", "").replace("}", "")], url=[url])
    assert _after(_opened(), batch).texts[0].as_py() == re.sub("{.*?}", "<PHONE>", text)


def test_pii_auto_phone_regions_hold_for_each_document_of_a_batch() -> None:
    texts = ["(020) 7946 0018, (415) 555-2671"] * 5 + ["none"]
    urls: list[str | None] = ["http://x.uk", None, "http://x.de", "http://x.com", "http://x.uk", "http://x.uk"]
    batch = _batch(texts, url=urls, languages=[[], ["de", "en"], ["de"], ["en"], ["fr"], ["en"]])
    after = _after(_opened(), batch).texts.to_pylist()
    assert after[0] == "<PHONE>, (415) 555-2671"
    assert after[1] == after[2] == texts[0]
    assert after[3:] == ["<PHONE>, <PHONE>", "<PHONE>, <PHONE>", "none"]  # French is written in Canada too
    parts = [_after(_opened(), batch.slice(start, start + 1)).texts[0].as_py() for start in range(6)]
    assert parts == after
    assert _texts(_opened(phone_regions=["GB"]), texts[:1]) == ["<PHONE>, (415) 555-2671"]


def test_pii_auto_phone_regions_of_other_columns_are_not_read() -> None:
    batch = _batch(["(020) 7946 0018"]).with_columns({"url": pa.array([7]), "languages": pa.array(["en"])})
    assert "text" not in _opened().process(batch).columns


@pytest.mark.medium
@pytest.mark.parametrize(("stage", "num_warnings"), [("redact.pii", 1), ("redact.pii: {phone_regions: [US]}", 0)])
def test_pii_run_warns_of_phones_in_documents_without_a_region(tmp_path: Path, stage: str, num_warnings: int) -> None:
    lines = [{"text": f"{NATIONAL} {row}", "url": "http://x.co.uk" if row % 3 == 0 else None} for row in range(160)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    source = f"  web: {{path: '{tmp_path}/a.jsonl', keep: [url]}}"
    mixture = runs.write_mixture(
        tmp_path, source, f"stages: [{{{stage}}}]" if ":" in stage else f"stages: [{stage}]", "tokenizer: none"
    )
    run = runs.run_mixture(mixture, make_engine=runs.InProcess)
    texts = [warning.text for warning in run.warnings if warning.kind == "unknown_regions"]
    assert len(texts) == num_warnings
    assert all(
        "of 160 documents with a number like that of a phone, 106 have neither a URL nor a language" in one for one in texts
    )


def test_pii_options_that_nothing_fits_are_refused() -> None:
    for options in (
        {"phone_regions": ["UK"]},
        {"phone_regions": "US"},
        {"kinds": ["names"]},
        {"kinds": []},
        {"max_hits": -1},
        {"emails": True},
    ):
        with pytest.raises(ValidationError):
            Pii.model_validate(options)


HOSTILE = [
    OF_EACH,
    *TEXTS,
    "version 415-555-2671 8.8.8.8",
    "378282246310005 3782 822463 10005",
    "<PHONE> 4155552671",
    "tel <b>",
]
HOSTILE += ["4111 1111 1111 1111 4242 4242 4242 4242", "jane@x.com 4111 1111 1111 1111", "http://a:b@c:d@e.com a@b.com@c.com"]
HOSTILE += [
    "call 123-45-6789 987-65-4320",
    "\n".join(["+1 415 555 2671", "SSN", "123456789"]),
    "tel +1 415 555 2671 tel 4155552671",
]


@pytest.mark.parametrize("replace", ["tag", "fake"])
def test_pii_redacting_twice_changes_nothing(replace: str) -> None:
    stage = _opened(replace=replace, phone_regions=["US", "DE", "ES"])
    once = _batch(_texts(stage, HOSTILE))
    assert "text" not in stage.process(once).columns


@pytest.mark.parametrize("replace", ["tag", "fake"])
def test_pii_redacting_random_scraps_twice_changes_nothing(replace: str) -> None:
    generator = np.random.default_rng(3)
    scraps = [
        *" .-+()/:@\n,",
        "tel ",
        "call ",
        "version ",
        "SSN ",
        "jane@x.com",
        "8.8.8.8",
        "4111 1111 1111 1111",
        "415-555-2671",
    ]
    scraps += [
        "+41 44 668 18 00",
        "123-45-6789",
        "GB82WEST12345698765432",
        "http://a:b@",
        "h.com",
        "2001:4860::8:8",
        "123456789",
        "42",
    ]
    texts = ["".join(scraps[at] for at in generator.integers(0, len(scraps), 12)) for _ in range(3000)]
    stage = _opened(replace=replace, phone_regions=["US", "CH"])
    out = stage.process(_batch(texts)).columns
    assert min(pa.compute.sum(out[name]).as_py() for name in Pii.counts if "_by_" not in name) > 100
    assert "text" not in stage.process(_batch(out["text"].to_pylist())).columns


@pytest.mark.parametrize("replace", ["tag", "fake", "delete"])
def test_pii_split_batches_give_the_same(replace: str) -> None:
    stage, batch = _opened(replace=replace, max_hits=4), _batch([*TEXTS, *HOSTILE])
    whole = _after(stage, batch).texts.to_pylist()
    for cut in (0, 1, 5, 7, len(TEXTS) + len(HOSTILE)):
        parts = [_after(stage, part) for part in (batch.slice(0, cut), batch.slice(cut, batch.num_docs))]
        assert [text for part in parts for text in part.texts.to_pylist()] == whole


def test_pii_batch_read_back_from_disk_gives_the_same(tmp_path: Path) -> None:
    batch = _batch(TEXTS)
    with pa.ipc.new_file(str(tmp_path / "batch.arrow"), batch.record.schema) as writer:
        writer.write_batch(batch.record)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "batch.arrow"))).get_batch(0)
    assert _after(_opened(replace="fake"), DocumentBatch(mapped)).texts == _after(_opened(replace="fake"), batch).texts


def test_pii_pickled_stage_gives_the_same() -> None:
    stage = _opened(replace="fake")
    assert _texts(pickle.loads(pickle.dumps(stage)), TEXTS) == _texts(stage, TEXTS)


@pytest.mark.medium
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["+1 ", "+14155552671 ", "call 4155552671 ", "9", "@", ".", "1-", "<PHONE> 415 "])
def test_pii_a_megabyte_of_one_text_is_done_in_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    assert _texts(_opened(), [text, "a@b.com"])[1] == "<EMAIL>"


@pytest.mark.parametrize("replace", ["tag", "fake", "delete"])
def test_pii_addresses_and_numbers_in_a_row_are_replaced_together(replace: str) -> None:
    addresses = "8.8.8.8/9.9.9.9/1.1.1.1/8.8.4.4/9.9.9.10/1.0.0.1"
    numbers = " ".join(f"0171 23456{n}8" for n in range(6))
    stage = _opened(replace=replace, phone_regions=["DE", "US"])
    once = _texts(stage, [addresses, numbers])
    assert not any(found in text for text in once for found in ("8.8", "9.9.9", "0171 23"))
    assert _texts(stage, once) == once
