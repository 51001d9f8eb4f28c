"""Documents that are taken down from real outputs: no batch has them from the next snapshot on, and all before stays."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.config import load_mixture
from datapipe.engine.run import Run, RunOptions
from datapipe.engine.run_report import run_and_report
from datapipe.errors import SnapshotError, UserError
from datapipe.exchange.ranges import HASH_SPACE, read_blocks
from datapipe.loader import Loader
from datapipe.loader.trace import trace_document, trace_step
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.snapshots import publications
from datapipe.snapshots.clean import clean
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.index.write import open_index
from datapipe.snapshots.takedown import named_in, take_down
from datapipe.snapshots.verify import verify_snapshot
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.command_line import datapipe
from tests.support.killed_changes import content_of, is_killed

pytestmark = pytest.mark.medium

FIELDS = ("input_ids", "labels", "segment_ids", "document_keys")
STAGES = "stages:\n  - dedup.exact\n  - dedup.minhash: {}\n"
TAIL = (
    "validation: 5%\ntokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 64}\n"
    "shards: {target_bytes: 16KiB}\nexecution: {split_bytes: 16KiB, bucket_bytes: 64KiB, check_disk: false}\n"
)
SIZE = 8

Batch = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("takedown")
    for number in range(3):
        corpora.write_jsonl(folder / f"in/{number}.jsonl", corpora.documents(number, 40, short=0))
    _run(_mixture(folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "out", tmp_path / "out", symlinks=True)
    shutil.copytree(made / "in", tmp_path / "in")
    return tmp_path


@pytest.fixture
def root(folder: Path) -> Root:
    return Root(str(folder / "out"))


def _mixture(folder: Path, tail: str = TAIL, sources: str = "", stages: str = STAGES) -> Path:
    folder.mkdir(exist_ok=True)
    return runs.write_mixture(folder, sources or f"  web: {{path: {folder}/in/*.jsonl}}\n", stages, tail)


def _finished(path: Path, **options: Any) -> Run:
    run = Run(load_mixture(path), runs.Watcher(), RunOptions(**options), runs.InProcess)
    run_and_report(run).raise_problem()
    return run


def _run(path: Path, **options: Any) -> Snapshot:
    snapshot = _finished(path, **options).snapshot
    assert snapshot.has_tokens
    return snapshot


def _loader(output: Root | Path, **options: Any) -> Loader:
    url = output.url if isinstance(output, Root) else str(output)
    return Loader(url, **{"global_batch_size": SIZE, "fields": FIELDS, "prefetch": 0, **options})


def _documents(output: Root | Path, length: int | None = None, snapshot: str | None = None) -> list[str]:
    """The keys of all training documents in hex, sorted."""
    with closing(_loader(output, fields=("document_keys",), snapshot=snapshot, sequence_length=length)) as loader:
        epoch = sum(shard.sequences for shard in loader.snapshot.shards if shard.split == "train") // SIZE + 1
        return sorted({key for step in range(epoch) for key in _keys(loader.batch(step))})


def _keys(batch: Batch) -> set[str]:
    keys = np.asarray(batch["document_keys"]).view(np.uint8).reshape(-1, 16)
    return {key.tobytes().hex() for key in keys if key.any()}


def _batches(loader: Loader, steps: Iterable[int]) -> Iterator[Batch]:
    for step in steps:
        yield {name: np.array(values) for name, values in loader.batch(step).items()}


def _trained(loader: Loader, steps: int) -> list[Batch]:
    return [{name: np.array(values) for name, values in next(loader).items()} for _ in range(steps)]


def _is_equal(first: Iterable[Batch], second: Iterable[Batch]) -> bool:
    return all(np.array_equal(one[name], other[name]) for one, other in zip(first, second, strict=True) for name in one)


def _keys_of_index(output: Root) -> set[str]:
    index = open_index(output.url)
    blocks = (block for rows in index.rows for block in read_blocks(index.root, rows.output, (0,), (HASH_SPACE,)))
    return {key.hex() for block in blocks for key in block.column("key").to_pylist()}


def test_batches_after_a_takedown_are_those_with_the_documents_skipped(root):
    """The same rows in the same order, with padding in place of the documents: as `skip_documents` gives."""
    every = _documents(root)
    gone = every[::7]
    with closing(_loader(root, skip_documents=gone)) as loader:
        expected = list(_batches(loader, range(12)))
    published, done = take_down(root, gone)
    assert (done.num_new, done.num_documents, done.unknown) == (len(gone), len(gone), {})
    for prefetch in (0, 2):
        with closing(_loader(root, prefetch=prefetch)) as loader:
            assert loader.snapshot.fingerprint == published.fingerprint
            assert _is_equal(expected, _trained(loader, 12))
    with closing(_loader(root, split="validation")) as loader:
        assert not {key for batch in loader for key in _keys(batch)} & set(gone)
    assert _documents(root) == sorted({*every} - {*gone})
    assert not verify_snapshot(root, published)


def test_nothing_of_the_snapshots_before_changes(folder, root):
    first, every = read_snapshot(root), _documents(root)
    before = {path: (folder / "out" / path).stat().st_mtime_ns for path, _ in root.list_files("shards")}
    own = root.list_files(f"snapshots/{first.fingerprint}")
    second, _ = take_down(root, every[:2])
    third, _ = take_down(root, every[1:4])
    assert second.shards == third.shards == first.shards
    assert {path: (folder / "out" / path).stat().st_mtime_ns for path, _ in root.list_files("shards")} == before
    assert root.list_files(f"snapshots/{first.fingerprint}") == own
    assert [each.fingerprint for each in publications(root)] == [each.fingerprint for each in (first, second, third)]
    assert [_documents(root, snapshot=each.fingerprint) for each in (first, second, third)] == [every, every[2:], every[4:]]
    shards = json.loads(root.read_bytes("report.json"))["shards"]
    assert (shards["fingerprint"], shards["before"]) == (third.fingerprint, second.fingerprint)


def test_a_trainer_moves_and_every_step_stays_as_it_was_handed_out(root):
    """Across two takedowns, a killed trainer and another world size; steps before each are reproduced by its last state."""
    every = _documents(root)
    first, second = set(every[::5]), set(every[::3])
    loader = _loader(root)
    handed_out = _trained(loader, 4)
    take_down(root, sorted(first))
    loader.advance()
    handed_out += _trained(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    take_down(root, sorted(second))
    with closing(_loader(root)) as loader:
        loader.load_state_dict(state)  # of the snapshot before: same rows, so the newest is accepted
        handed_out += _trained(loader, 4)
        last = json.loads(json.dumps(loader.state_dict()))
    with closing(_loader(root)) as loader:
        loader.load_state_dict(last)
        assert _is_equal(handed_out, _batches(loader, range(11)))
    halves = []
    for rank in (0, 1):
        with closing(_loader(root, rank=rank, world_size=2)) as loader:
            loader.load_state_dict(last)
            halves.append([batch["input_ids"] for batch in _batches(loader, range(11))])
    for step, batch in enumerate(handed_out):
        assert np.array_equal(np.concatenate([half[step] for half in halves]), batch["input_ids"])
        there = _keys(batch)
        assert not there & (set() if step < 4 else first if step < 7 else first | second)
        assert {row.key for row in trace_step(root.url, step, state=last)} == there
    early = {key for batch in handed_out[:4] for key in _keys(batch)} & second
    assert early
    for key in sorted(early)[:3]:
        steps = {seen.step for seen in trace_document(root.url, key, state=last)}
        assert steps == {step for step, batch in enumerate(handed_out) if key in _keys(batch)}


def test_a_state_is_refused_by_a_snapshot_before_the_takedown(root):
    before = read_snapshot(root).fingerprint
    take_down(root, _documents(root)[:3])
    with closing(_loader(root)) as loader:
        next(loader)
        state = loader.state_dict()
    with closing(_loader(root, snapshot=before)) as loader, pytest.raises(SnapshotError, match="taken down"):
        loader.load_state_dict(state)
    with closing(_loader(root, snapshot=before, migrate=True)) as loader:
        loader.load_state_dict(state)
        next(loader)
        with pytest.raises(SnapshotError, match="at step 0"):
            loader.batch(0)


@pytest.mark.slow
def test_rows_are_deleted_from_the_index_and_stay_deleted(folder, root):
    gone = _documents(root)[::9]
    assert set(gone) <= _keys_of_index(root)
    published, done = take_down(root, gone)
    assert set(done.rows) == {"dedup.exact", "dedup.minhash"}
    left = _keys_of_index(root)
    assert left
    assert left.isdisjoint(gone)
    assert _run(_mixture(folder)).fingerprint == published.fingerprint  # the list goes on into every later snapshot
    clean(root, 1)
    assert _keys_of_index(root) == left
    assert not verify_snapshot(root, read_snapshot(root))
    # a copy that comes later is not dropped as a duplicate of a document that was taken down
    rows = [line for number in range(3) for line in (folder / f"in/{number}.jsonl").read_text().splitlines()]
    (folder / "later.jsonl").write_text("\n".join(dict.fromkeys(rows)) + "\n")
    stages = f"stages:\n  - dedup.exact: {{against: {root.url}}}\n"
    snapshot = _run(_mixture(folder / "later", TAIL, f"  new: {{path: {folder}/later.jsonl}}\n", stages))
    assert 0 < sum(shard.documents for shard in snapshot.shards) <= len(gone)


def test_a_list_in_the_mixture_applies_with_the_next_snapshot(folder, root):
    every, listed = _documents(root), folder / "gone.txt"
    named = next(f"web/0.jsonl:{int(key[16:], 16)}" for key in every if int(key[:16], 16) == file_hash("web", "0.jsonl"))
    listed.write_text(f"# requests\n{every[3]}   # by letter\n\n{named}\nweb/nowhere.jsonl:0\nweb/0.jsonl:1 # no document\n")
    mixture = _mixture(folder, f"{TAIL}takedown: {listed}\n")
    run = _finished(mixture)
    told = [warning.text for warning in run.of_snapshot if warning.kind.startswith("takedown")]
    assert [name for name in ("web/nowhere.jsonl:0", "web/0.jsonl:1") if any(name in text for text in told)] == [
        "web/nowhere.jsonl:0",
        "web/0.jsonl:1",
    ]
    snapshot = read_snapshot(root)
    assert (run.snapshot, snapshot.num_removed) == (snapshot, 2)
    assert len(set(every) - set(_documents(root))) == 2
    assert _run(mixture).fingerprint == snapshot.fingerprint
    assert every[3] not in _keys_of_index(root)
    listed.unlink()
    with pytest.raises(UserError, match=r"gone\.txt"):
        _run(mixture)


@pytest.mark.slow
def test_several_lengths_and_outputs_that_take_the_rows_leave_the_same_documents_out(folder, root):
    _run(_mixture(folder, TAIL.replace("sequence_length: 64", "sequence_length: [64, 256]")), replaces=True)
    every = _documents(root)
    take_down(root, every[::4])
    assert read_snapshot(root).sequence_lengths == (64, 256)
    tail = "pack: {sequence_length: 64}\nexecution: {check_disk: false}\n"
    snapshot = _run(_mixture(folder / "mixed", tail, f"  old: {{snapshot: {root.url}}}\n", ""))
    assert snapshot.num_removed == len(every[::4])
    for output, length in ((root, 64), (root, 256), (Root(str(folder / "mixed/out")), 64)):
        assert _documents(output, length) == sorted({*every} - {*every[::4]})
        assert not verify_snapshot(output, read_snapshot(output))


@pytest.mark.parametrize("kind", ["arrow", "parquet", "megatron"])
def test_an_export_is_without_the_tokens_of_what_was_taken_down(folder, root, kind):
    every, first = _documents(root), read_snapshot(root)
    snapshot, _ = take_down(root, every[::3])
    done, whole = (
        export_snapshot(root, each, Root(str(folder / name)), ExportRequest(format=kind))
        for name, each in (("export", snapshot), ("whole", first))
    )
    assert sum(part.tokens for part in done) < 0.8 * sum(part.tokens for part in whole)
    if kind == "megatron":
        assert sum(part.rows for part in done) < sum(part.rows for part in whole)
        return
    target = Root(str(folder / "export"))
    assert not verify_snapshot(target, read_snapshot(target))
    assert _documents(target) == sorted({*every} - {*every[::3]})


@pytest.mark.parametrize("kills", [[9], pytest.param(range(99), marks=pytest.mark.slow)], ids=["one", "all"])
def test_a_takedown_that_is_killed_at_any_change_is_completed_by_the_same_command(folder, root, kills):
    """Snapshot, card, croissant.json, both reports, tasks and indexes are those of a takedown that nobody killed."""
    listed = folder / "gone.txt"
    listed.write_text("\n".join(_documents(root)[:3]))

    def taken_down(name: str, kill_at: int | None = None) -> dict[str, bytes] | None:
        """What an output has after the command, also where the first was killed; None where it makes fewer changes."""
        command = ["takedown", str(folder / name), "--from", str(listed)]
        shutil.copytree(folder / "out", folder / name, symlinks=True)
        if kill_at is not None and not is_killed(lambda: datapipe(command), kill_at):
            return None
        assert datapipe(command).returncode == 0
        assert _keys_of_index(Root(str(folder / name))).isdisjoint(listed.read_text().split())
        others = ("publication.json", "status.json", "lock", "index.json", "follow.json")
        return {
            path: content
            for path, content in content_of(folder / name).items()
            if Path(path).name not in others and not path.startswith(("work/index/", "work/rows/"))
        }

    expected, done = taken_down("whole"), 0
    for number in kills:
        found = taken_down(f"killed-{number}", number)
        if found is None:
            break
        assert found == expected, number
        done += 1
    assert done == len(kills) or done > 10


@pytest.mark.slow
def test_the_command_reports_what_it_did_and_what_is_not_there(root):
    every, output = _documents(root), root.url
    done = datapipe(["takedown", output, every[0], every[1], "web/no.jsonl:3", "web/0.jsonl:1"])
    assert done.returncode == 1
    assert all(name in done.stdout for name in ("2 of 4 documents", "web/no.jsonl:3", "web/0.jsonl:1", "loader.advance()"))
    again = datapipe(["takedown", output, every[0]])
    assert (again.returncode, "0 of 1 document taken down; 1 were" in again.stdout) == (0, True)
    card = root.read_bytes("README.md").decode()
    assert read_snapshot(root).fingerprint in card
    assert all("2 documents taken down" in text for text in (card, datapipe(["report", output]).stdout))
    shown = [datapipe(["inspect", output, "--document", key]).stdout for key in (every[0], every[2])]
    assert ["taken down since" in text for text in shown] == [True, False]
    assert datapipe(["takedown", output, "what?"]).returncode == 2


@pytest.mark.slow
def test_files_of_two_outputs_with_one_name_are_reported_where_one_was_taken_down(folder, root, tmp_path):
    """Their documents have the same keys."""
    other = tmp_path / "other"
    for number in range(3):
        corpora.write_jsonl(other / f"in/{number}.jsonl", corpora.documents(5 + number, 60, short=0))
    tokenizer = TAIL.replace("{train: {vocab_size: 400}}", f"{{path: {folder}/out/tokenizer.json}}")
    _finished(_mixture(other, tokenizer))
    take_down(root, _documents(root)[:1])
    both = f"  x: {{snapshot: {root.url}}}\n  y: {{snapshot: {other}/out}}\n"
    run = Run(load_mixture(_mixture(tmp_path / "both", tokenizer, both, "")), runs.Watcher(), make_engine=runs.InProcess)
    run_and_report(run).raise_problem()
    assert [warning.kind for warning in run.of_snapshot if warning.kind.startswith("takedown")] == ["takedown_of_two"]


def test_documents_that_no_row_has_are_reported_and_not_taken_down(folder, root):
    first, there = read_snapshot(root), _documents(root)[:2]
    same, done = take_down(root, ["web/0.jsonl:1", "web/0.jsonl:99999999"])
    assert list(done.unknown) == ["web/0.jsonl:1", "web/0.jsonl:99999999"]
    assert (done.num_documents, done.num_new, same) == (2, 0, first)
    take_down(root, there[:1])
    published, done = take_down(root, [*there, there[1].upper(), "web/0.jsonl:1"])
    assert (done.num_documents, done.num_new, done.num_before, list(done.unknown)) == (3, 1, 1, ["web/0.jsonl:1"])
    assert published.num_removed == 2
    _finished(_mixture(folder, "tokenizer: none\nexecution: {check_disk: false}\n"), replaces=True)
    with pytest.raises(UserError, match="documents, not tokens"):
        take_down(root, ["0" * 32])


@pytest.mark.parametrize(
    ("encoding", "lines", "named"),
    [
        ("utf-8-sig", ["web/a:1", "# a comment", "", "  web/b #2:1  # why"], ["web/a:1", "web/b #2:1  # why"]),
        ("utf-8", ["\ufeffweb/a:1\r", "\ufeff# again", '"web/ a\\n  b:1" # why'], ["web/a:1", '"web/ a\\n  b:1" # why']),
        ("utf-8", ["web/a:1", '"web/b:1'], "line 2"),
        *((encoding, ["web/a:1"], ["web/a:1"]) for encoding in ("utf-16", "utf-32")),
        ("utf-16-le", ["web/a:1"], "list.txt"),
    ],
)
def test_lines_of_a_list_are_names_without_marks_and_with_comments(tmp_path, encoding, lines, named):
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(lines), encoding=encoding, newline="")
    if isinstance(named, list):
        assert named_in(str(listed)) == named
    else:
        with pytest.raises(UserError, match=named):
            named_in(str(listed))
