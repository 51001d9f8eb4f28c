"""The ledger: a record is there whole or not at all, and only while its outputs are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from datapipe.ledger.commit_files import CommitFiles, line_of, lines_of
from datapipe.ledger.hold import Hold
from datapipe.ledger.ledger import Ledger
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
    _opened(root).commit([record])
    assert _opened(root).look_up(FINGERPRINT) == record


def test_ledger_second_commit_keeps_the_first_record(tmp_path):
    root = Root(str(tmp_path))
    ledger = _opened(root)
    [first] = ledger.commit([_record(root, "first")])
    assert ledger.commit([_record(root, "second"), _record(root, "third")]) == [first, first]
    assert _opened(root).look_up(FINGERPRINT) == first


@pytest.mark.parametrize("damage", ["missing", "shorter"])
def test_ledger_record_without_its_outputs_is_no_record(tmp_path, damage):
    root = Root(str(tmp_path))
    record = _record(root)
    _opened(root).commit([record])
    path = Path(root.path(record.of("documents")[0].path))
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"f")
    assert _opened(root).look_up(FINGERPRINT) is None


def test_ledger_sweep_deletes_what_no_record_names_and_nothing_else(tmp_path):
    root = Root(str(tmp_path))
    ledger = _opened(root)
    record = ledger.commit([_record(root)])[0]
    root.write_atomic(f"{ATTEMPTS}/step/{'0' * 16}-killed/out.bin", b"half")
    root.write_atomic(f"{ATTEMPTS}/notes/of-a-user.txt", b"mine")
    assert ledger.sweep(Hold(root)) == 1
    left = [path for path, _ in root.list_files(ATTEMPTS)]
    assert left == sorted([record.of("documents")[0].path, f"{ATTEMPTS}/notes/of-a-user.txt"])


def test_ledger_sweep_deletes_what_killed_writers_left(tmp_path):
    root = Root(str(tmp_path))
    ledger = _opened(root)
    kept = {ledger.commit([_record(root)])[0].of("documents")[0].path, "mixture.yaml", ".note.tmp"}
    for path in ("mixture.yaml", ".note.tmp"):
        root.write_atomic(path, b"mine")
    unfinished = f".x.json.{'0a' * 16}.tmp"
    left = ["", "work/", f"{LEDGER}/", "work/index/", "length-128/"]
    for path in [*(folder + unfinished for folder in left), "work/publish/000003", "work/probe-ab", "work/publish/a/b"]:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"half")
    (tmp_path / f"{ATTEMPTS}/step/{'0' * 16}-killed/deeper").mkdir(parents=True)
    ledger.sweep(Hold(root))
    commits = {path for path, _ in root.list_files(LEDGER)}
    assert len(commits) == 1
    assert {path for path, _ in root.list_files("")} == kept | commits
    assert [folder.name for folder in (tmp_path / ATTEMPTS).rglob("*") if folder.is_dir()] == ["step", "first"]


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
    ([line], _) = lines_of(line_of(record).to_bytes())
    assert line.record() == record


def _with_version(content: bytes, version: int) -> bytes:
    return content.replace(b"4\t", b"%d\t" % version, 1)


def test_ledger_records_of_other_versions_are_counted_and_those_of_files_of_their_own_are_swept(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    root.write_atomic(f"{LEDGER}/{FINGERPRINT}.json", b'{"checksum": ""}\n{"version": 3}\n')
    root.write_atomic(f"{LEDGER}/{0:08d}-{'a' * 32}.jsonl", _with_version(line_of(_record(root)).to_bytes(), 5))
    root.write_atomic(f"{ATTEMPTS}/step/{'0' * 16}-old/out.bin", b"old")
    ledger = _opened(root)
    assert ledger.look_up(FINGERPRINT) is None
    assert (ledger.num_refused, ledger.sweep(Hold(root))) == (2, 1)
    assert [path for path, _ in root.list_files(LEDGER)] == [f"{LEDGER}/{0:08d}-{'a' * 32}.jsonl"]


def test_ledger_forgets_a_record_for_good(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    ledger = _opened(root)
    first, second = _record(root), _record(root, "second", "cd" * 32)
    ledger.commit([first, second])
    ledger.forget([FINGERPRINT])
    for each in (ledger, _opened(root)):
        assert (each.look_up(FINGERPRINT), each.look_up("cd" * 32)) == (None, second)
    again = _record(root, "again")
    ledger.commit([again])
    assert _opened(root).look_up(FINGERPRINT) == again


def test_ledger_takes_the_first_record_whose_outputs_are_there_and_not_condemned(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    names = ["first", "second", "third"]
    for name in names:  # three drivers, each without a look at what the others have committed
        CommitFiles(root, _next=names.index(name)).write([line_of(_record(root, f"{'0' * 16}-{name}"))])
    chosen = _opened(root).look_up(FINGERPRINT)
    assert chosen is not None and "-first" in chosen.of("documents")[0].path
    (tmp_path / chosen.of("documents")[0].path).unlink()
    ledger = Ledger(root, [f"{ATTEMPTS}/step/{'0' * 16}-second"])
    ledger.load()
    chosen = ledger.look_up(FINGERPRINT)
    assert chosen is not None and "-third" in chosen.of("documents")[0].path
    assert ledger.sweep(Hold(root)) == 1  # what is condemned goes, although a record names it


def test_ledger_merges_the_small_files_of_a_long_run_and_cleaning_keeps_some_records(tmp_path: Path) -> None:
    root, count = Root(str(tmp_path)), 300
    ledger = _opened(root)
    records = {f"{number:064x}": _record(root, f"{number}", f"{number:064x}") for number in range(count)}
    for record in records.values():
        ledger.commit([record])
    assert len(root.list_files(LEDGER)) == count - 256 + 1
    later = _opened(root)
    later.files.merge_small(2)
    assert list(later.files.sizes.values()) == [256, count - 256]  # a file that is large enough stays
    later.keep(list(records)[:7])
    again = _opened(root)
    assert {name: again.look_up(name) for name in again.fingerprints()} == dict(list(records.items())[:7])
