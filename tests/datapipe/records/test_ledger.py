"""The ledger: a record is there whole or not at all, and only while its outputs are; a damaged line costs no other."""

from collections import Counter
from pathlib import Path

import pytest

from datapipe.metrics import DocumentCounts, TaskMetrics
from datapipe.records.commit_files import MOST_RECORDS, CommitFiles, Line, line_of, lines_of
from datapipe.records.ledger import Ledger
from datapipe.records.names import ATTEMPTS, LEDGER
from datapipe.records.outputs import Content, ExchangeFile, OutputFile, Record, ShardFile, TableFile, TokenizerFile
from datapipe.records.packed import PackedLine, Packer
from datapipe.storage.lock import OutputLock
from datapipe.storage.root import Root

FINGERPRINT, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(str(tmp_path))


def _record(root: Root, name: str = "first", fingerprint: str = FINGERPRINT) -> Record:
    path = f"{ATTEMPTS}/step/{name}/out.bin"
    root.write_atomic(path, name.encode())
    output = TableFile(path=path, rows=1, bytes=len(name), checksum="x", row_bytes=3)
    metrics = TaskMetrics(document_counts=DocumentCounts(read=3, kept=1, dropped=Counter({"a:b": 2})), rereads=9)
    metrics.spent("read", 1.5, 100, 3)
    return Record("web/read", fingerprint, Content({"documents": (output,)}, metrics))


def _opened(root: Root, *pending_deletions: str) -> Ledger:
    ledger = Ledger(root, pending_deletions)
    ledger.load()
    return ledger


def test_ledger_keeps_the_first_record_of_a_task_for_later_ledgers(root):
    ledger = _opened(root)
    record = _record(root)
    [first] = ledger.commit([record])
    assert ledger.commit([_record(root, "second"), _record(root, "third")]) == [first, first]
    assert _opened(root).look_up(FINGERPRINT) == first == record


@pytest.mark.parametrize("content", [None, b"f"])
def test_ledger_record_whose_outputs_are_gone_or_shorter_is_no_record(root, content):
    record = _record(root)
    _opened(root).commit([record])
    path = Path(root.path(record.of("documents")[0].path))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert _opened(root).look_up(FINGERPRINT) is None


def test_ledger_sweep_deletes_what_killed_attempts_and_writers_left_and_nothing_else(root, tmp_path):
    ledger = _opened(root)
    kept = {ledger.commit([_record(root)])[0].of("documents")[0].path}
    for path in ("mixture.yaml", ".note.tmp", f"{ATTEMPTS}/notes/of-a-user.txt"):
        root.write_atomic(path, b"mine")
        kept.add(path)
    unfinished = [f"{folder}.x.json.{'0a' * 16}.tmp" for folder in ("", "work/", f"{LEDGER}/", "work/index/", "lists/")]
    killed = f"{ATTEMPTS}/step/{'0' * 16}-killed"
    for path in [*unfinished, "work/publish/000003", "work/probe-ab", "work/publish/a/b", f"{killed}/out.bin"]:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"half")
    (tmp_path / killed / "deeper").mkdir()
    assert ledger.delete_orphans(OutputLock(root)) == 1
    commits = {path for path, _ in root.list_files(LEDGER)}
    assert len(commits) == 1
    assert {path for path, _ in root.list_files("")} == kept | commits
    assert {folder.name for folder in (tmp_path / ATTEMPTS).rglob("*") if folder.is_dir()} == {"step", "first", "notes"}


FILE = {"path": "work/attempts/step/one/out.bin", "rows": 4, "bytes": 5, "checksum": "x"}


TOKENIZER = {
    "vocab_size": 300, "eos_id": 0, "eos_token": "é", "fingerprint": "xxh3:1",
    "library": "fastokens", "library_version": "0.3.5", "battery": "b", "fallback_reason": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "output",
    [
        OutputFile(**FILE),
        TableFile(**FILE, row_bytes=9),
        ExchangeFile(**FILE, row_bytes=9, first=0, last=2**64 - 1, runs=3),
        ExchangeFile(**FILE, row_bytes=0),
        TokenizerFile(**FILE, **TOKENIZER),
        ShardFile(**FILE, documents=2, tokens=64, piece_length=32),
        ShardFile(**FILE, documents=2, tokens=64),
    ],
    ids=lambda output: type(output).__name__,
)
def test_record_keeps_every_type_of_output(output):
    metrics = TaskMetrics(document_counts=DocumentCounts(read=1, kept=1))
    record = Record("web/read", FINGERPRINT, Content({"some": (output,)}, metrics))
    ([line], _) = lines_of(line_of(record).to_bytes())
    assert _record_of(line) == record


def test_ledger_records_of_other_versions_are_counted_and_not_read(root):
    root.write_atomic(f"{LEDGER}/{FINGERPRINT}.json", b'{"checksum": ""}\n{"version": 3}\n')
    later = line_of(_record(root)).to_bytes().replace(b"5\t", b"6\t", 1)
    root.write_atomic(f"{LEDGER}/{0:08d}-{'a' * 32}.jsonl", later)
    root.write_atomic(f"{ATTEMPTS}/step/{'0' * 16}-old/out.bin", b"old")
    ledger = _opened(root)
    assert ledger.look_up(FINGERPRINT) is None
    assert (ledger.files.num_refused, ledger.delete_orphans(OutputLock(root))) == (2, 1)


def test_ledger_forgets_a_record_for_good(root):
    ledger = _opened(root)
    first, second = _record(root), _record(root, "second", OTHER)
    ledger.commit([first, second])
    ledger.forget([FINGERPRINT])
    for each in (ledger, _opened(root)):
        assert (each.look_up(FINGERPRINT), each.look_up(OTHER)) == (None, second)
    again = _record(root, "again")
    ledger.commit([again])
    assert _opened(root).look_up(FINGERPRINT) == again


def test_ledger_takes_the_first_record_whose_outputs_are_there_and_not_pending_deletion(root, tmp_path):
    for number, name in enumerate(("first", "second", "third")):  # three drivers that see nothing of each other
        CommitFiles(root, _next=number).write([line_of(_record(root, f"{'0' * 16}-{name}"))])
    chosen = _opened(root).look_up(FINGERPRINT)
    assert chosen is not None and "-first" in chosen.of("documents")[0].path
    (tmp_path / chosen.of("documents")[0].path).unlink()
    ledger = _opened(root, f"{ATTEMPTS}/step/{'0' * 16}-second")
    chosen = ledger.look_up(FINGERPRINT)
    assert chosen is not None and "-third" in chosen.of("documents")[0].path
    assert ledger.delete_orphans(OutputLock(root)) == 1  # a pending deletion is made, although a record names it


@pytest.mark.medium
def test_ledger_merges_the_small_files_of_a_long_run_and_cleaning_keeps_some_records(root):
    count, ledger = 300, _opened(root)
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


def _record_of(line: Line) -> Record:
    return Packer().packed(line).record()


def _numbered(number: int) -> Record:
    path = f"{ATTEMPTS}/web.read/{number:016x}-one/documents.arrow"
    output = TableFile(path=path, rows=1, bytes=5, checksum="x", row_bytes=3)
    metrics = TaskMetrics(document_counts=DocumentCounts(read=3, kept=1, dropped=Counter({"a\tb:é\n": 2})), rereads=number)
    return Record("web/read", f"{number:064x}", Content({"documents": (output,)}, metrics))


@pytest.mark.medium
def test_every_flipped_bit_and_every_torn_end_costs_one_record() -> None:
    records = [_numbered(number) for number in range(3)]
    content = b"".join(line_of(record).to_bytes() for record in records)
    first, second = (len(line_of(record).to_bytes()) for record in records[:2])
    for bit in range(8 * first, 8 * (first + second)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        lines, num_refused = lines_of(bytes(flipped))
        found = [_record_of(line) for line in lines]
        assert found[0] == records[0]
        assert found in ([records[0], records[2]], records[:1], records)  # the end of a line separates two of them
        assert num_refused <= (bit // 8 == first)
    for length in range(len(content) - 1):
        whole = [record for record, end in zip(records, (first, first + second, len(content))) if length >= end - 1]
        assert [_record_of(line) for line in lines_of(content[:length])[0]] == whole


def test_records_are_written_in_files_of_a_thousand_and_read_in_their_order(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    lines = [line_of(_numbered(number)) for number in range(2 * MOST_RECORDS + 5)]
    files = CommitFiles(root)
    files.write(lines[:7])
    files.write(lines[7:])
    again = CommitFiles(root)
    assert list(again.read()) == lines
    assert list(again.sizes.values()) == [7, MOST_RECORDS, MOST_RECORDS - 2]


@pytest.mark.parametrize("name", ["notes.txt", "00000001-short.jsonl", "sub/00000000-" + "0" * 32 + ".jsonl"])
def test_other_files_in_the_folder_are_no_commit_files(tmp_path: Path, name: str) -> None:
    root = Root(str(tmp_path))
    root.write_atomic(f"{LEDGER}/{name}", line_of(_numbered(1)).to_bytes())
    assert list(CommitFiles(root).read()) == []


def _attempt(number: int) -> str:
    return f"{FINGERPRINT[:16]}-{number:012x}"


def test_ledger_record_counts_without_the_files_that_were_freed(root):
    ledger, record = _opened(root), _record(root, _attempt(1))
    [file] = record.of("documents")
    ledger.commit([record])
    assert ledger.free([file], OutputLock(root)) == file.bytes
    assert not root.exists(file.path)
    for opened in (ledger, _opened(root)):
        assert opened.look_up(FINGERPRINT) == record
        assert opened.is_freed(file.path) and opened.lost_output(FINGERPRINT) is None
        assert opened.free([file], OutputLock(root)) == 0
        assert opened.freed_by([file]) == {FINGERPRINT}
    kept = _opened(root)
    kept.keep([FINGERPRINT])
    assert _opened(root).look_up(FINGERPRINT) == record


def test_ledger_freed_file_never_counts_as_present_again(root):
    ledger, record = _opened(root), _record(root, _attempt(1))
    [file] = record.of("documents")
    ledger.commit([record])
    ledger.free([file], OutputLock(root))
    root.write_atomic(file.path, b"as it was")  # as where the run is killed before it deletes
    later = _opened(root)
    assert later.is_freed(file.path)
    later.delete_orphans(OutputLock(root))
    assert not root.exists(file.path) and _opened(root).look_up(FINGERPRINT) == record


def test_ledger_task_that_is_restored_has_its_next_record(root):
    ledger, first = _opened(root), _record(root, _attempt(1))
    ledger.commit([first])
    ledger.free(first.of("documents"), OutputLock(root))
    killed, ledger = _opened(root), _opened(root)
    killed.restore({FINGERPRINT})
    assert killed.look_up(FINGERPRINT) is None and ledger.look_up(FINGERPRINT) == first
    ledger.restore({FINGERPRINT})
    second = _record(root, _attempt(2))
    assert ledger.commit([second]) == [second] and ledger.look_up(FINGERPRINT) == second
    assert _opened(root).look_up(FINGERPRINT) == second
    ledger.forget_replaced()
    root.write_atomic(f"{ATTEMPTS}/step/{_attempt(1)}/rest.bin", b"rest")
    ledger.delete_orphans(OutputLock(root))
    assert [path for path, _ in root.list_files(ATTEMPTS)] == [second.of("documents")[0].path]
    assert _opened(root).look_up(FINGERPRINT) == second


def test_ledger_damaged_line_about_freed_files_costs_their_task_alone(root, tmp_path):
    ledger, record, other = _opened(root), _record(root, _attempt(1)), _record(root, "other", OTHER)
    ledger.commit([record, other])
    ledger.free(record.of("documents"), OutputLock(root))
    newest = sorted((tmp_path / LEDGER).iterdir())[-1]
    newest.write_bytes(newest.read_bytes().replace(b"out.bin", b"out.bim"))
    assert _opened(root).look_up(FINGERPRINT) is None
    assert _opened(root).look_up(OTHER) == other


def test_ledger_files_that_a_run_which_lost_the_output_may_still_delete_count_as_freed(root):
    ledger, record = _opened(root), _record(root, _attempt(1))
    [file] = record.of("documents")
    ledger.commit([record])
    later = _opened(root, file.path)
    assert later.look_up(FINGERPRINT) == record and later.is_freed(file.path)
    later.delete_orphans(OutputLock(root))
    assert not root.exists(file.path)
    assert _opened(root).look_up(FINGERPRINT) == record


def _of_two_versions(root: Root) -> tuple[Record, Record]:
    """Records of one task, made with different libraries."""
    names = FINGERPRINT[:32] + "1" * 32, FINGERPRINT[:32] + "2" * 32
    records = [_record(root, _attempt(number), name) for number, name in enumerate(names)]
    _opened(root).commit(records)
    return records[0], records[1]


def test_ledger_prefers_whole_records_of_any_version_and_finds_the_task_whose_files_were_freed(root):
    first, second = _of_two_versions(root)
    (file,) = first.of("documents")
    _opened(root).free([file], OutputLock(root))
    opened = _opened(root)
    assert opened.look_up_any_version(first.fingerprint) == opened.look_up_any_version(second.fingerprint) == second
    assert opened.look_up(first.fingerprint) == first
    assert opened.freed_by([file]) == {first.fingerprint}


def test_ledger_forgets_a_task_with_the_records_of_all_versions(root):
    first, second = _of_two_versions(root)
    opened = _opened(root)
    opened.forget([first.fingerprint])
    for ledger in (opened, _opened(root)):
        assert ledger.look_up_any_version(first.fingerprint) is None
        assert ledger.look_up(second.fingerprint) is None


@pytest.mark.parametrize("by_cleaning", [False, True])
def test_ledger_takes_back_what_a_task_wrote_before_it_ran_again_in_a_run_that_was_killed(root, by_cleaning):
    ledger, first, second = _opened(root), _record(root, _attempt(1)), _record(root, _attempt(2))
    root.write_atomic(f"{ATTEMPTS}/step/{_attempt(1)}/kept.bin", b"x")
    ledger.commit([first])
    ledger.free(first.of("documents"), OutputLock(root))
    ledger.restore([FINGERPRINT])
    ledger.commit([second])  # and then it is killed
    later = _opened(root)
    assert later.look_up(FINGERPRINT) == second
    if by_cleaning:
        later.keep([FINGERPRINT])
    else:
        later.forget_replaced()
    later.delete_orphans(OutputLock(root))
    assert [path for path, _ in root.list_files(ATTEMPTS)] == [file.path for file in second.of("documents")]
    assert _opened(root).look_up(FINGERPRINT) == second


def test_ledger_task_that_is_restored_twice_in_a_run_keeps_its_last_record_alone(root):
    ledger = _opened(root)
    records = [_record(root, _attempt(number)) for number in range(3)]
    for record in records:
        ledger.restore([FINGERPRINT])
        ledger.commit([record])
        if record is not records[-1]:
            ledger.free(record.of("documents"), OutputLock(root))
    ledger.forget_replaced()
    ledger.delete_orphans(OutputLock(root))
    assert [path for path, _ in root.list_files(ATTEMPTS)] == [file.path for file in records[-1].of("documents")]
    assert _opened(root).look_up(FINGERPRINT) == records[-1]


def test_ledger_takes_back_the_records_of_many_tasks_without_comparing_all_with_each_other(root, monkeypatch):
    count, ledger, num_compared = 200, _opened(root), 0
    names = [f"{number:064x}" for number in range(count)]
    equal = PackedLine.__eq__

    def counted(self: PackedLine, other: object) -> bool:
        nonlocal num_compared
        num_compared += 1
        return equal(self, other)

    for run in range(2):
        ledger.restore(names)
        ledger.commit([_record(root, f"{name[-16:]}-{run}", name) for name in names])
    with monkeypatch.context() as patched:
        patched.setattr(PackedLine, "__eq__", counted)
        ledger.forget_replaced()
    assert num_compared < 4 * count
    for each in (ledger, _opened(root)):
        assert {record.of("documents")[0].path[-9:] for record in map(each.look_up, names) if record} == {"1/out.bin"}


def test_a_reader_finds_the_records_that_the_run_merges_meanwhile(root):
    writer = CommitFiles(root)
    lines = [line_of(_numbered(number)) for number in range(5)]
    for line in lines:
        writer.write([line])
    reader = CommitFiles(root)
    found = reader.read()
    read = [next(found)]
    writer.merge_small(2)
    read += found
    assert {line.checksum for line in read} == {line.checksum for line in lines}
    CommitFiles(root, _next=100).write(lines)  # the same ones twice, as a reader may find them
    assert len(_opened(root).fingerprints()) == 5 and not _opened(root)._more
