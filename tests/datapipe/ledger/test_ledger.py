"""The ledger: a record is there whole or not at all, and only while its outputs are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import xxhash

from datapipe.ledger.ledger import Ledger, RecordVersionError, record_from_bytes, record_to_bytes
from datapipe.ledger.names import ATTEMPTS, LEDGER
from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.plan.outputs import ExchangeFile, OutputFile, ShardFile, TableFile, TokenizerFile
from datapipe.plan.work import Record
from datapipe.storage import Root

FINGERPRINT = "ab" * 32


def _record(root: Root, name: str = "first", fingerprint: str = FINGERPRINT) -> Record:
    path = f"{ATTEMPTS}/step/{name}/out.bin"
    root.write_atomic(path, name.encode())
    output = TableFile(path=path, rows=1, bytes=len(name), checksum="x", row_bytes=3)
    metrics = TaskMetrics(document_counts=DocumentCounts(read=3, kept=1, dropped=Counter({"a:b": 2})), tokens=9)
    metrics.spent("read", 1.5, 100, 3)
    return Record(step="web/read", fingerprint=fingerprint, outputs={"documents": (output,)}, metrics=metrics)


def _opened(root: Root) -> Ledger:
    ledger = Ledger(root)
    ledger.load()
    return ledger


def test_ledger_record_survives_a_new_ledger(tmp_path):
    root = Root(str(tmp_path))
    record = _record(root)
    _opened(root).commit(record)
    assert _opened(root).look_up(FINGERPRINT) == record


def test_ledger_second_commit_keeps_the_first_record(tmp_path):
    root = Root(str(tmp_path))
    ledger = _opened(root)
    first = ledger.commit(_record(root, "first"))
    assert ledger.commit(_record(root, "second")) == first
    assert _opened(root).look_up(FINGERPRINT) == first


def test_ledger_every_torn_or_flipped_record_is_no_record(tmp_path):
    content = record_to_bytes(_record(Root(str(tmp_path))))
    for length in range(len(content) - 1):
        assert record_from_bytes(content[:length]) is None
    for at in range(0, len(content), 7):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        found = record_from_bytes(flipped)
        assert found is None or record_to_bytes(found) == content


@pytest.mark.parametrize("damage", ["missing", "shorter"])
def test_ledger_record_without_its_outputs_is_no_record(tmp_path, damage):
    root = Root(str(tmp_path))
    record = _record(root)
    _opened(root).commit(record)
    path = Path(root.path(record.of("documents")[0].path))
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"f")
    assert _opened(root).look_up(FINGERPRINT) is None


def test_ledger_record_under_another_name_is_no_record(tmp_path):
    root = Root(str(tmp_path))
    _opened(root).commit(_record(root))
    other = "cd" * 32
    Path(root.path(f"{LEDGER}/{FINGERPRINT}.json")).rename(root.path(f"{LEDGER}/{other}.json"))
    assert _opened(root).look_up(other) is None


def test_ledger_sweep_deletes_what_no_record_names_and_nothing_else(tmp_path):
    root = Root(str(tmp_path))
    ledger = _opened(root)
    record = ledger.commit(_record(root))
    root.write_atomic(f"{ATTEMPTS}/step/{'0' * 16}-killed/out.bin", b"half")
    root.write_atomic(f"{ATTEMPTS}/notes/of-a-user.txt", b"mine")
    assert ledger.sweep() == 1
    left = [path for path, _ in root.list_files(ATTEMPTS)]
    assert left == sorted([record.of("documents")[0].path, f"{ATTEMPTS}/notes/of-a-user.txt"])


def test_ledger_sweep_deletes_what_killed_writers_left(tmp_path):
    root = Root(str(tmp_path))
    ledger = _opened(root)
    kept = {ledger.commit(_record(root)).of("documents")[0].path, f"{LEDGER}/{FINGERPRINT}.json", "mixture.yaml", ".note.tmp"}
    for path in ("mixture.yaml", ".note.tmp"):
        root.write_atomic(path, b"mine")
    unfinished = f".x.json.{'0a' * 16}.tmp"
    left = ["", "work/", f"{LEDGER}/", "work/index/", "length-128/"]
    for path in [*(folder + unfinished for folder in left), "work/publish/000003", "work/probe-ab", "work/publish/a/b"]:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"half")
    (tmp_path / f"{ATTEMPTS}/step/{'0' * 16}-killed/deeper").mkdir(parents=True)
    ledger.sweep()
    assert {path for path, _ in root.list_files("")} == kept
    assert [folder.name for folder in (tmp_path / ATTEMPTS).rglob("*") if folder.is_dir()] == ["step", "first"]


def test_ledger_sweep_keeps_a_record_that_replaced_a_refused_one(tmp_path):
    root = Root(str(tmp_path))
    record = _record(root)
    root.write_atomic(f"{LEDGER}/{FINGERPRINT}.json", _as_version(record_to_bytes(record), 1))
    ledger = _opened(root)
    ledger.sweep()
    root.write_atomic(record.of("documents")[0].path, b"first")
    ledger.commit(record)
    ledger.sweep()
    assert _opened(root).look_up(FINGERPRINT) == record


FILE = {"path": "work/attempts/step/one/out.bin", "rows": 4, "bytes": 5, "checksum": "x"}


@pytest.mark.parametrize(
    "output",
    [
        OutputFile(**FILE),
        TableFile(**FILE, row_bytes=9),
        ExchangeFile(**FILE, row_bytes=9, first=0, last=2**64 - 1, runs=3),
        ExchangeFile(**FILE, row_bytes=0),
        TokenizerFile(**FILE, vocab_size=300, eos_id=0, eos_token="é", fingerprint="xxh3:1", fallback_reason=""),
        ShardFile(**FILE, documents=2, tokens=64, piece_length=32),
        ShardFile(**FILE, documents=2, tokens=64),
    ],
    ids=lambda output: type(output).__name__,
)
def test_record_keeps_every_type_of_output(output):
    metrics = TaskMetrics(document_counts=DocumentCounts(read=1, kept=1))
    record = Record(step="web/read", fingerprint=FINGERPRINT, outputs={"some": (output,)}, metrics=metrics)
    assert record_from_bytes(record_to_bytes(record)) == record


def _as_version(content: bytes, version: int) -> bytes:
    """The record with another version and a checksum that is right for it."""
    body = json.loads(content.partition(b"\n")[2]) | {"version": version}
    written = json.dumps(body, ensure_ascii=False).encode()
    return f'{{"checksum": "{xxhash.xxh3_128_hexdigest(written)}"}}\n'.encode() + written + b"\n"


@pytest.mark.parametrize("version", [1, 2, 4])
def test_ledger_record_of_another_version_is_refused_and_swept(tmp_path, version):
    root = Root(str(tmp_path))
    record = _record(root)
    content = _as_version(record_to_bytes(record), version)
    root.write_atomic(f"{LEDGER}/{FINGERPRINT}.json", content)
    path = record.of("documents")[0].path
    root.publish(path, f"{ATTEMPTS}/step/{'0' * 16}-old/out.bin", "work/publish/0")
    with pytest.raises(RecordVersionError, match=f"version {version}, expected 3"):
        record_from_bytes(content)
    ledger = _opened(root)
    assert ledger.look_up(FINGERPRINT) is None
    assert (ledger.sweep(), ledger.num_refused) == (1, 1)
