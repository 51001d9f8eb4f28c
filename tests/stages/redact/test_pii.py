"""What becomes of addresses in documents, and how many of the labelled ones are found."""

from __future__ import annotations

import ipaddress
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from datapipe import columns
from datapipe.documents import DocumentBatch
from datapipe.stage import StageContext
from stages.redact.pii import Pii


def _batch(texts: list[str]) -> DocumentBatch:
    keys = columns.make_keys(1, np.arange(len(texts), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(texts))], pa.large_string())
    return DocumentBatch(pa.record_batch({"key": keys, "id": ids, "text": pa.array(texts, pa.large_string())}))


def _opened(seed: int = 1, **options: object) -> Pii:
    stage = Pii.model_validate(options)
    stage.open(StageContext(name="redact.pii", seed=seed))
    return stage


def _texts(stage: Pii, texts: list[str]) -> list[str]:
    return _batch(texts).with_columns(stage.process(_batch(texts))).texts.to_pylist()


TEXTS = ["Ask Jörg (jane@x.com) or a.b@y.de at 8.8.8.8.", "", "nobody 10.0.0.1", "jane@x.com 2001:4860:4860::8888 é"]


def test_pii_tag_replaces_each_address_by_its_kind() -> None:
    out = _opened().process(_batch(TEXTS))
    assert out["text"].to_pylist() == ["Ask Jörg (<EMAIL>) or <EMAIL> at <IP>.", "", "nobody 10.0.0.1", "<EMAIL> <IP> é"]
    out["text"].validate(full=True)


def test_pii_tallies_count_per_document() -> None:
    out = _opened().process(_batch(TEXTS))
    assert set(Pii.tallies) == set(out) - {"text"}
    assert out["emails"].to_pylist() == [2, 0, 0, 1]
    assert out["ip_addresses"].to_pylist() == [1, 0, 0, 1]
    assert {out[name].type for name in Pii.tallies} == {pa.int32()}


def test_pii_delete_writes_nothing() -> None:
    assert _texts(_opened(replace="delete"), TEXTS)[0] == "Ask Jörg () or  at ."


def test_pii_fake_is_the_same_for_the_same_address_wherever_it_is() -> None:
    first, *_, last = _texts(_opened(replace="fake"), TEXTS)
    emails = re.findall(r"user-[0-9a-f]{8}@example\.com", first)
    assert len(set(emails)) == 2
    assert last.startswith(emails[0])
    assert ipaddress.ip_address(last.split()[1]) in ipaddress.ip_network("2001:db8::/32")
    assert _texts(_opened(replace="fake"), TEXTS[3:]) == [last]
    assert _texts(_opened(replace="fake", seed=2), TEXTS[3:]) != [last]


def test_pii_one_kind_alone_leaves_the_other() -> None:
    assert _texts(_opened(emails=False), TEXTS)[0] == "Ask Jörg (jane@x.com) or a.b@y.de at <IP>."
    assert _texts(_opened(ip_addresses=False), TEXTS)[3] == "<EMAIL> 2001:4860:4860::8888 é"


def test_pii_batch_without_addresses_passes_its_text_untouched() -> None:
    batch = _batch(["clean", "10.0.0.1"])
    out = batch.with_columns(_opened().process(batch))
    assert out.texts.buffers()[2].address == batch.texts.buffers()[2].address


@pytest.mark.parametrize("replace", ["tag", "fake", "delete"])
def test_pii_split_batches_give_the_same(replace: str) -> None:
    stage = _opened(replace=replace)
    whole = _texts(stage, TEXTS)
    batch = _batch(TEXTS)
    for cut in range(5):
        parts = [part.with_columns(stage.process(part)) for part in (batch.slice(0, cut), batch.slice(cut, 4))]
        assert [text for part in parts for text in part.texts.to_pylist()] == whole


def test_pii_batch_read_back_from_disk_gives_the_same(tmp_path: Path) -> None:
    batch = _batch(TEXTS)
    with pa.ipc.new_file(str(tmp_path / "batch.arrow"), batch.record.schema) as writer:
        writer.write_batch(batch.record)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "batch.arrow"))).get_batch(0)
    assert _opened(replace="fake").process(DocumentBatch(mapped)) == _opened(replace="fake").process(batch)


def test_pii_tagged_or_faked_ip_text_is_not_redacted_again() -> None:
    for replace in ("tag", "fake"):
        stage = _opened(replace=replace, emails=replace == "tag")
        once = _texts(stage, TEXTS)
        assert _texts(stage, once) == once


def test_pii_pickled_stage_gives_the_same() -> None:
    stage = _opened(replace="fake")
    assert _texts(pickle.loads(pickle.dumps(stage)), TEXTS) == _texts(stage, TEXTS)


def _labelled(path: Path) -> tuple[list[str], list[set[str]], list[set[str]]]:
    """Texts, and in each the labelled addresses that should go: e-mails, and IP addresses outside special ranges."""
    with zstandard.open(path, "rt", encoding="utf-8") as stream:
        rows = json.load(stream)
    emails, ips = [], []
    for row in rows:
        spans = [(span["entity_type"], span["entity_value"]) for span in row["spans"]]
        emails.append({value for kind, value in spans if kind == "EMAIL_ADDRESS"})
        found = {value for kind, value in spans if kind == "IP_ADDRESS"}
        ips.append({value for value in found if ipaddress.ip_address(value).is_global})
    return [row["full_text"] for row in rows], emails, ips


@pytest.mark.real
@pytest.mark.parametrize("name", ["presidio_generated_large", "presidio_synth_dataset_v2"])
def test_pii_labelled_addresses_are_found_and_nothing_else(real_data: Path, name: str) -> None:
    texts, emails, ips = _labelled(real_data / "pii" / f"{name}.json.zst")
    out = _opened().process(_batch(texts))
    for column, labels in (("emails", emails), ("ip_addresses", ips)):
        counted, expected = out[column].to_numpy(), np.array([len(found) for found in labels])
        assert np.minimum(counted, expected).sum() >= 0.99 * expected.sum()  # recall
        assert np.minimum(counted, expected).sum() >= 0.99 * counted.sum()  # precision
    for text, found in zip(out["text"].to_pylist(), emails, strict=True):
        assert not any(value in text for value in found)
