"""Documents that are taken down from real outputs: no batch has them from the next snapshot on, and all before stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from datapipe.api import execute, keep_report
from datapipe.composing import takedown
from datapipe.composing.takedown import named_in, take_down
from datapipe.config import load_mixture
from datapipe.engine.clean import clean
from datapipe.engine.run import Run
from datapipe.errors import SnapshotError, UserError
from datapipe.exchange.ranges import read_blocks
from datapipe.index.write import open_index
from datapipe.loader import Loader
from datapipe.loader.trace import trace_document, trace_step
from datapipe.plan.splits import file_hash
from datapipe.plan.work import HASH_SPACE
from datapipe.shards.export import ExportRequest, export_snapshot
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.snapshots import publications
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import cli_processes, corpora, runs
from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium

FIELDS = ("input_ids", "labels", "segment_ids", "document_keys")
STAGES = "stages:\n  - dedup.exact\n  - dedup.minhash: {}\n"
TAIL = (
    "validation: 5%\ntokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 64}\n"
    "shards: {target_bytes: 16KiB}\nexecution: {split_bytes: 16KiB, bucket_bytes: 64KiB, check_disk: false}\n"
)
SIZE = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("takedown")
    for number in range(3):
        corpora.write_jsonl(folder / f"in/{number}.jsonl", corpora.documents(number, 60, short=0))
    _run(_mixture(folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "out", tmp_path / "out", symlinks=True)
    shutil.copytree(made / "in", tmp_path / "in")
    return tmp_path


def _mixture(folder: Path, tail: str = TAIL) -> Path:
    return runs.write_mixture(folder, f"  web:\n    path: {folder}/in/*.jsonl\n", STAGES, tail)


def _run(path: Path, **options) -> Snapshot:
    run = Run(load_mixture(path), runs.InProcess, runs.Watcher(), **options)
    problem = execute(run)
    if problem is not None:
        raise problem
    keep_report(run, None)
    assert isinstance(run.snapshot, Snapshot)
    return run.snapshot


def _documents(output: Path, snapshot: str | None = None) -> list[str]:
    """The keys of all training documents in hex, in an order of their own."""
    keys: set[bytes] = set()
    with closing(Loader(output, global_batch_size=SIZE, fields=("document_keys",), snapshot=snapshot)) as loader:
        epoch = sum(shard.sequences for shard in loader.snapshot.shards if shard.split == "train") // SIZE + 1
        for step in range(epoch):
            keys |= _keys(loader.batch(step))
    return sorted(key.hex() for key in keys)


def _keys(batch) -> set[bytes]:
    keys = np.asarray(batch["document_keys"]).view(np.uint8).reshape(-1, 16)
    return {key.tobytes() for key in keys if key.any()}


def _batches(loader: Loader, steps: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
    for step in steps:
        yield {name: np.array(values) for name, values in loader.batch(step).items()}


def _equal(first, second) -> bool:
    return all(np.array_equal(one[name], other[name]) for one, other in zip(first, second, strict=True) for name in one)


def test_batches_after_a_takedown_are_those_with_the_documents_skipped(folder):
    """The same rows in the same order, with padding in place of the documents: as `skip_documents` gives."""
    output = folder / "out"
    gone = _documents(output)[::7]
    with closing(Loader(output, global_batch_size=SIZE, fields=FIELDS, skip_documents=gone)) as loader:
        expected = list(_batches(loader, range(20)))
    done = take_down(Root(str(output)), gone)
    assert (done.num_new, done.num_documents, done.unknown) == (len(gone), len(gone), ())
    with closing(Loader(output, global_batch_size=SIZE, fields=FIELDS)) as loader:
        assert loader.snapshot.fingerprint == done.snapshot.fingerprint
        assert _equal(expected, _batches(loader, range(20)))
        many = loader._builder.build_many(range(20))
        assert _equal(expected, many)
    with closing(Loader(output, global_batch_size=SIZE, split="validation", fields=FIELDS)) as loader:
        assert not {key.hex() for batch in loader for key in _keys(batch)} & set(gone)
    assert not set(_documents(output)) & set(gone)
    assert not verify_snapshot(Root(str(output)), done.snapshot)


def test_nothing_of_the_snapshots_before_changes(folder):
    output, root = folder / "out", Root(str(folder / "out"))
    first = read_snapshot(root)
    every = _documents(output)
    before = {path: (folder / "out" / path).stat().st_mtime_ns for path, _ in root.list_files("shards")}
    own = root.list_files(f"snapshots/{first.fingerprint}")
    second = take_down(root, every[:2]).snapshot
    third = take_down(root, every[1:4]).snapshot
    assert [shards for shards in (second.shards, third.shards) if shards != first.shards] == []
    assert {path: (folder / "out" / path).stat().st_mtime_ns for path, _ in root.list_files("shards")} == before
    assert root.list_files(f"snapshots/{first.fingerprint}") == own
    assert [each.fingerprint for each in publications(root)] == [each.fingerprint for each in (first, second, third)]
    assert _documents(output, first.fingerprint) == every
    assert _documents(output, second.fingerprint) == every[2:]
    assert _documents(output) == every[4:]
    report = json.loads((output / "report.json").read_text())
    assert report["shards"]["fingerprint"] == third.fingerprint
    assert report["shards"]["before"] == second.fingerprint


def test_a_trainer_moves_and_every_step_stays_as_it_was_handed_out(folder):
    """Across two takedowns, a killed trainer and another world size; steps before each are reproduced by its last state."""
    output, root = folder / "out", Root(str(folder / "out"))
    every = _documents(output)
    handed_out = []
    loader = Loader(output, global_batch_size=SIZE, fields=FIELDS, prefetch=0)
    handed_out += [{name: np.array(values) for name, values in next(loader).items()} for _ in range(4)]
    take_down(root, every[::5])
    loader.advance()
    handed_out += [{name: np.array(values) for name, values in next(loader).items()} for _ in range(3)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    take_down(root, every[::3])
    with closing(Loader(output, global_batch_size=SIZE, fields=FIELDS, prefetch=0)) as loader:
        loader.load_state_dict(state)  # of the snapshot before: same rows, so the newest is accepted
        handed_out += [{name: np.array(values) for name, values in next(loader).items()} for _ in range(4)]
        last = json.loads(json.dumps(loader.state_dict()))
    with closing(Loader(output, global_batch_size=SIZE, fields=FIELDS, prefetch=0)) as loader:
        loader.load_state_dict(last)
        assert _equal(handed_out, _batches(loader, range(11)))
    ranks = [Loader(output, global_batch_size=SIZE, rank=rank, world_size=2, fields=FIELDS, prefetch=0) for rank in (0, 1)]
    for rank in ranks:
        rank.load_state_dict(last)
    for step, batch in enumerate(handed_out):
        halves = [rank.batch(step)["input_ids"] for rank in ranks]
        assert np.array_equal(np.concatenate(halves), batch["input_ids"])
    for rank in ranks:
        rank.close()
    first, second = set(every[::5]), set(every[::3])
    for step, batch in enumerate(handed_out):
        there = {key.hex() for key in _keys(batch)}
        left_out = set() if step < 4 else first if step < 7 else first | second
        assert not there & left_out
        assert {row.key for row in trace_step(output, step, state=last)} == there
    early = {key.hex() for batch in handed_out[:4] for key in _keys(batch)} & second
    assert early
    for key in sorted(early)[:3]:
        steps = [seen.step for seen in trace_document(output, key, state=last)]
        expected = [step for step, batch in enumerate(handed_out) if key in {one.hex() for one in _keys(batch)}]
        assert sorted(set(steps)) == expected


def test_a_state_is_refused_by_a_snapshot_before_the_takedown(folder):
    output = folder / "out"
    first = read_snapshot(Root(str(output)))
    take_down(Root(str(output)), _documents(output)[:3])
    with closing(Loader(output, global_batch_size=SIZE)) as loader:
        next(loader)
        state = loader.state_dict()
    refused = pytest.raises(SnapshotError, match=r"documents were taken down .* does not know of it")
    with closing(Loader(output, global_batch_size=SIZE, snapshot=first.fingerprint)) as loader, refused:
        loader.load_state_dict(state)
    with closing(Loader(output, global_batch_size=SIZE, snapshot=first.fingerprint, migrate=True)) as loader:
        loader.load_state_dict(state)
        next(loader)
        with pytest.raises(SnapshotError, match="at step 0 documents were left out by a takedown"):
            loader.batch(0)


def _keys_of_index(url: str) -> set[str]:
    index = open_index(url)
    blocks = (block for rows in index.rows for block in read_blocks(index.root, rows.output, (0,), (HASH_SPACE,)))
    return {key.hex() for block in blocks for key in block.column("key").to_pylist()}


def test_rows_are_deleted_from_the_index_and_stay_deleted(folder):
    output, root = folder / "out", Root(str(folder / "out"))
    gone = _documents(output)[::9]
    assert set(gone) <= _keys_of_index(str(output))
    done = take_down(root, gone)
    assert set(done.rows) == {"dedup.exact", "dedup.minhash"}
    assert not set(gone) & _keys_of_index(str(output))
    left = _keys_of_index(str(output))
    again = _run(_mixture(folder))
    assert again.fingerprint == done.snapshot.fingerprint  # the list goes on into every later snapshot
    assert _keys_of_index(str(output)) == left
    clean(root, 1)
    assert _keys_of_index(str(output)) == left
    assert not verify_snapshot(root, read_snapshot(root))
    # a copy that comes later is not dropped as a duplicate of a document that was taken down
    rows = [line for number in range(3) for line in (folder / f"in/{number}.jsonl").read_text().splitlines()]
    (folder / "later").mkdir()
    (folder / "later/in.jsonl").write_text("\n".join(dict.fromkeys(rows)) + "\n")
    stages = f"stages:\n  - dedup.exact: {{against: {output}}}\n"
    later = runs.write_mixture(folder / "later", f"  new:\n    path: {folder}/later/in.jsonl\n", stages, TAIL)
    snapshot = _run(later)
    assert 0 < sum(shard.documents for shard in snapshot.shards) <= len(gone)


def test_a_list_in_the_mixture_applies_with_the_next_snapshot(folder):
    output = folder / "out"
    every = _documents(output)
    path = folder / "gone.txt"
    named = f"web/0.jsonl:{int(next(key for key in every if _is_in(key, '0.jsonl'))[16:], 16)}"
    path.write_text(f"# requests\n{every[3]}   # by letter\n\n{named}\nweb/nowhere.jsonl:0\n")
    assert named_in(str(path)) == [f"{every[3]}   # by letter", named, "web/nowhere.jsonl:0"]
    mixture = _mixture(folder, f"{TAIL}takedown: {path}\n")
    snapshot = _run(mixture)
    assert snapshot.removed is not None
    assert snapshot.removed.documents == 2
    assert len(set(every) - set(_documents(output))) == 2
    assert _run(mixture).fingerprint == snapshot.fingerprint
    assert every[3] not in _keys_of_index(str(output))
    path.unlink()
    with pytest.raises(UserError, match=r"gone\.txt.*Expected a text file with one document a line"):
        _run(mixture)


def _is_in(key: str, name: str) -> bool:
    return int(key[:16], 16) == file_hash("web", name)


def test_several_lengths_leave_the_same_documents_out(folder):
    path = _mixture(folder, TAIL.replace("sequence_length: 64", "sequence_length: [64, 256]"))
    _run(path, replaces=True)
    gone = _documents(folder / "out")[::4]
    take_down(Root(str(folder / "out")), gone)
    for output in (folder / "out", folder / "out/length-256"):
        assert not set(_documents(output)) & set(gone)
        assert not verify_snapshot(Root(str(output)), read_snapshot(Root(str(output))))
    assert len(publications(Root(str(folder / "out")))[-1].lengths["length-256"]) == 1


def test_outputs_that_take_the_rows_leave_the_documents_out(folder):
    gone = _documents(folder / "out")[::4]
    take_down(Root(str(folder / "out")), gone)
    (folder / "mixed").mkdir()
    sources = f"  old:\n    snapshot: {folder}/out\n"
    path = runs.write_mixture(folder / "mixed", sources, "", "pack: {sequence_length: 64}\nexecution: {check_disk: false}\n")
    snapshot = _run(path)
    assert snapshot.removed is not None
    assert snapshot.removed.documents == len(gone)
    assert not set(_documents(Path(load_mixture(path).output))) & set(gone)


@pytest.mark.parametrize("kind", ["arrow", "parquet", "megatron"])
def test_an_export_is_without_the_tokens_of_what_was_taken_down(folder, kind):
    output, root = folder / "out", Root(str(folder / "out"))
    every = _documents(output)
    gone = every[::3]
    with closing(Loader(output, global_batch_size=1, fields=("input_ids", "document_keys", "segment_ids"))) as loader:
        text = {key: [] for key in gone}
        for batch in (loader.batch(step) for step in range(40)):
            for key in {one.hex() for one in _keys(batch)} & set(gone):
                text[key].append(batch["input_ids"][0])
    snapshot = take_down(root, gone).snapshot
    target = Root(str(folder / "export"))
    exported = export_snapshot(root, snapshot, target, ExportRequest(format=kind))
    whole = export_snapshot(
        root, read_snapshot(root, publications(root)[0].fingerprint), Root(str(folder / "whole")), ExportRequest(format=kind)
    )
    assert sum(part.tokens for part in exported) < 0.8 * sum(part.tokens for part in whole)
    if kind == "megatron":
        assert sum(part.sequences for part in exported) < sum(part.sequences for part in whole)
        return
    assert not verify_snapshot(target, read_snapshot(target))
    assert set(_documents(folder / "export")) == set(every) - set(gone)
    with closing(Loader(folder / "export", global_batch_size=1, fields=("input_ids", "document_keys"))) as loader:
        keys = [one.hex() for step in range(30) for one in _keys(loader.batch(step))]
    assert keys
    assert not set(keys) & set(gone)


def test_a_takedown_that_was_killed_is_finished_by_the_next(folder, monkeypatch):
    output, root = folder / "out", Root(str(folder / "out"))
    gone = _documents(output)[:5]
    monkeypatch.setattr(takedown, "delete_from_indexes", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        take_down(root, gone)
    monkeypatch.undo()
    assert set(gone) <= _keys_of_index(str(output))
    published = read_snapshot(root)
    done = take_down(root, gone)
    assert (done.num_new, done.snapshot.fingerprint) == (0, published.fingerprint)
    assert not set(gone) & _keys_of_index(str(output))
    assert not verify_snapshot(root, read_snapshot(root))


def _interrupted(*arguments) -> None:
    raise KeyboardInterrupt


def test_the_command_tells_what_it_did_and_what_is_not_there(folder):
    output = folder / "out"
    every = _documents(output)
    done = cli_processes.run(["takedown", str(output), every[0], every[1], "web/no.jsonl:3"])
    assert done.returncode == 1
    assert "2 of 3 documents taken down" in done.stdout
    assert "web/no.jsonl:3: no such input file" in done.stdout
    assert "loader.advance()" in done.stdout
    again = cli_processes.run(["takedown", str(output), every[0]])
    assert again.returncode == 0
    assert "0 of 1 document taken down; 1 were taken down before" in again.stdout
    card = (output / "README.md").read_text()
    assert read_snapshot(Root(str(output))).fingerprint in card
    assert "2 documents taken down" in card
    assert "2 documents taken down" in cli_processes.run(["report", str(output)]).stdout
    assert "documents taken down" in (output / "report.html").read_text()
    assert "taken down since" in cli_processes.run(["inspect", str(output), "--document", every[0]]).stdout
    assert "taken down since" not in cli_processes.run(["inspect", str(output), "--document", every[2]]).stdout
    wrong = cli_processes.run(["takedown", str(output), "what?"])
    assert wrong.returncode == 2
    assert "expected" in wrong.stderr


def test_outputs_of_documents_are_refused(folder):
    path = _mixture(folder, "tokenizer: none\nexecution: {check_disk: false}\n")
    run = Run(load_mixture(path), runs.InProcess, runs.Watcher(), replaces=True)
    assert execute(run) is None
    with pytest.raises(UserError, match="holds documents, not tokens"):
        take_down(Root(str(folder / "out")), ["0" * 32])


def test_documents_that_no_row_has_are_told_and_not_taken_down(folder):
    output = Root(str(folder / "out"))
    first = read_snapshot(output)
    done = take_down(output, ["web/0.jsonl:1", "web/0.jsonl:99999999"])
    assert done.rowless == ("web/0.jsonl:1", "web/0.jsonl:99999999")
    assert (done.num_documents, done.num_new, done.unknown, done.snapshot) == (2, 0, (), first)
    there = _documents(folder / "out")[:2]
    take_down(output, there[:1])
    done = take_down(output, [*there, there[1].upper(), "web/0.jsonl:1"])
    assert (done.num_documents, done.num_new, done.num_before, done.rowless) == (3, 1, 1, ("web/0.jsonl:1",))
    assert done.snapshot.num_taken_down == 2
    told = datapipe(["takedown", str(output.local), "web/0.jsonl:1"])
    assert told.returncode == 1
    assert "0 of 1 document taken down" in told.stdout
    assert "web/0.jsonl:1: no row has it" in told.stdout
    assert "2 documents taken down" in datapipe(["report", str(output.local)]).stdout


@pytest.mark.parametrize(
    ("encoding", "lines", "named"),
    [
        ("utf-8-sig", ["web/a:1", "# a comment", "", "  web/b #2:1  # why"], ["web/a:1", "web/b #2:1  # why"]),
        ("utf-8", ["\ufeffweb/a:1\r", "\ufeff# of a second list", '"web/ a\\n  b (of c):1" # why'], None),
    ],
)
def test_lines_of_a_list_are_names_without_marks_and_with_comments(tmp_path, encoding, lines, named):
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(lines), encoding=encoding, newline="")
    assert named_in(str(listed)) == (named or ["web/a:1", '"web/ a\\n  b (of c):1" # why'])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_list_that_is_not_utf8_is_refused_with_the_way_out(tmp_path, encoding):
    listed = tmp_path / "list.txt"
    listed.write_text("web/a:1\n", encoding=encoding)
    with pytest.raises(UserError, match=r"list\.txt: this is UTF-16, or no text.*iconv -f UTF-16"):
        named_in(str(listed))


def test_line_of_a_list_that_is_a_wrong_string_is_told_with_its_number(tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text('web/a:1\n"web/b:1\n')
    with pytest.raises(UserError, match=r"list\.txt, line 2: .*not a JSON string"):
        named_in(str(listed))


@pytest.mark.slow
def test_a_takedown_that_is_killed_at_any_write_is_completed_by_the_same_command(folder, monkeypatch):
    """Snapshot, card, croissant.json, both reports, tasks and indexes are those of a takedown that nobody killed."""
    gone, number = ["--from", str(folder / "gone.txt")], 0
    (folder / "gone.txt").write_text("\n".join(_documents(folder / "out")[:3]))
    expected = _taken_down(folder, "whole", gone, None, monkeypatch)
    while True:
        found = _taken_down(folder, f"killed-{number}", gone, number, monkeypatch)
        if found is None:
            break
        assert found == expected, number
        number += 1
    assert number > 10


def _taken_down(folder: Path, name: str, gone: list[str], kill_at: int | None, monkeypatch) -> dict[str, bytes] | None:
    """What an output has after the command, also where the first was killed at its n-th write; None where it has fewer."""
    shutil.copytree(folder / "out", folder / name, symlinks=True)
    if kill_at is not None:
        write, written = Root.write_atomic, []

        def killed(self: Root, path: str, content: bytes) -> None:
            if len(written) == kill_at:
                raise KeyboardInterrupt
            written.append(path)
            write(self, path, content)

        with monkeypatch.context() as patched:
            patched.setattr(Root, "write_atomic", killed)
            if datapipe(["takedown", str(folder / name), *gone]).returncode == 0:
                return None
    assert datapipe(["takedown", str(folder / name), *gone]).returncode == 0
    others = ("publication.json", "status.json", "lock", "index.json", "follow.json")
    paths = [path for path in (folder / name).rglob("*") if path.is_file() and path.name not in others]
    content = {str(path.relative_to(folder / name)): path.read_bytes() for path in paths}
    assert _keys_of_index(str(folder / name)).isdisjoint((folder / "gone.txt").read_text().split())
    return {path: text for path, text in content.items() if not path.startswith(("work/index/", "work/rows/"))}


@pytest.mark.slow
def test_files_of_two_outputs_with_one_name_are_told_where_one_was_taken_down(folder, tmp_path):
    """Their documents have the same keys."""
    other = tmp_path / "other"
    for number in range(3):
        corpora.write_jsonl(other / f"in/{number}.jsonl", corpora.documents(5 + number, 60, short=0))
    tokenizer = TAIL.replace("{train: {vocab_size: 400}}", f"{{path: {folder}/out/tokenizer.json}}")
    _run(_mixture(other, tokenizer))
    take_down(Root(str(folder / "out")), _documents(folder / "out")[:1])
    (tmp_path / "both").mkdir()
    both = f"  x: {{snapshot: {folder}/out}}\n  y: {{snapshot: {other}/out}}\n"
    run = Run(load_mixture(runs.write_mixture(tmp_path / "both", both, "", tokenizer)), runs.InProcess, runs.Watcher())
    assert execute(run) is None
    assert [warning.kind for warning in run.of_snapshot if warning.kind.startswith("takedown")] == ["takedown_of_two"]


@pytest.mark.slow
def test_a_list_that_names_what_is_not_there_is_told_by_the_run(folder):
    listed = folder / "gone.txt"
    listed.write_text("web/nofile.jsonl:0\nweb/0.jsonl:1 # in the middle of a line\nweb/0.jsonl:0\n")
    run = Run(load_mixture(_mixture(folder, TAIL + f"takedown: {listed}\n")), runs.InProcess, runs.Watcher())
    assert execute(run) is None
    assert any(
        "takedown names 1 document of files that are not there, such as web/nofile.jsonl:0" in w.text for w in run.of_snapshot
    )
    assert any("1 document that no row has, such as web/0.jsonl:1 # in" in w.text for w in run.of_snapshot)
    assert run.snapshot is not None
    assert run.snapshot.num_taken_down == 1
