"""Every publication is its own snapshot: it loads, verifies and resumes while others are published and cleaned."""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import CorruptionError, SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.trace import trace_document, trace_step
from datapipe.records.names import SNAPSHOT, WORK
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.shard_table import numbered_path
from datapipe.shards.snapshot_folder import fingerprints
from datapipe.shards.snapshots import publications
from datapipe.snapshots.clean import clean, plan_cleaning
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import runs
from tests.support.killed_changes import is_killed
from tests.support.snapshots import write_manifest

pytestmark = pytest.mark.medium

STEPS = range(0, 40, 3)
NORMALIZED = ["sources.books.stages=[{filter.length: {min_chars: 200}}]"]  # changes the shards of books alone
LATER = ["seed=4"]  # changes every shard: the order of documents is another
TWO_LENGTHS = ["pack.sequence_length=[64, 32]"]


def run(mixture: Path, overrides: Sequence[str] = (), **options: Any) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess, **options)


@pytest.fixture(scope="module")
def once(tmp_path_factory, corpus) -> Callable[[Path], Path]:
    """Makes a folder with a mixture that has run, and returns the mixture. Its tokenizer stays where a source changes."""
    folder = tmp_path_factory.mktemp("once")
    tokenizer = run(runs.write_mixture(tmp_path_factory.mktemp("tokenizer"), corpus, stages="")).mixture.output
    tail = runs.TAIL.replace("train: {vocab_size: 600, sample_bytes: 1MiB}", f"path: {tokenizer}/tokenizer.json")
    run(runs.write_mixture(folder, corpus, stages="", tail=tail))
    assert {path.stat().st_nlink for path in folder.rglob("shards/**/*.arrow")} == {2}  # links to the committed files

    def copied(to: Path) -> Path:
        shutil.copytree(folder / "out", to / "out")
        return runs.write_mixture(to, corpus, stages="", tail=tail)

    return copied


@pytest.fixture
def mixture(once: Callable[[Path], Path], tmp_path: Path) -> Path:
    return once(tmp_path)


@pytest.fixture
def root(mixture: Path) -> Root:
    return Root(str(mixture.parent / "out"))


def _loader(root: Root, **options: Any) -> Loader:
    return Loader(root.url, global_batch_size=4, prefetch=0, **options)


def _batches(root: Root, **options: Any) -> list[np.ndarray]:
    with closing(_loader(root, **options)) as loader:
        return [loader.batch(step)["input_ids"].copy() for step in STEPS]


class Stream:
    """A loader that stays open, with the batches it gave when its snapshot was the newest."""

    def __init__(self, root: Root) -> None:
        self.root, self.loader, self.expected = root, _loader(root), _batches(root)
        self.fingerprint = self.loader.snapshot.fingerprint
        self.loader.seek(7)
        self.state = self.loader.state_dict()

    def check(self) -> None:
        """The open loader, one that is opened by name now, and one that is restored give the same batches."""
        self._check(self.loader)
        with closing(_loader(self.root, snapshot=self.fingerprint[:10])) as named:
            self._check(named)
            named.load_state_dict(self.state)
            assert named.step == 7
            self._check(named)

    def _check(self, loader: Loader) -> None:
        np.testing.assert_array_equal([loader.batch(step)["input_ids"] for step in STEPS], self.expected)


def paths(snapshot: Snapshot) -> set[str]:
    return {entry.path for entry in snapshot.shards}


@pytest.mark.slow
def test_loaders_go_on_while_other_snapshots_are_published_and_cleaned(mixture, root):
    first, streams = read_snapshot(root), [Stream(root)]
    second = run(mixture, NORMALIZED).snapshot
    streams.append(Stream(root))
    third = run(mixture, LATER).snapshot
    streams.append(Stream(root))
    assert {entry.source for entry in first.shards if entry.path not in paths(second)} == {"books"}
    assert not paths(third) & (paths(first) | paths(second))
    for stream in streams:
        stream.check()
        assert verify_snapshot(root, read_snapshot(root, stream.fingerprint)) == []
    assert [each.fingerprint for each in publications(root)] == [made.fingerprint for made in (first, second, third)]
    unread = _loader(root, snapshot=first.fingerprint)
    assert [each.fingerprint for each in clean(root, 2).dropped] == [first.fingerprint]
    for stream in streams[1:]:
        stream.check()
    with pytest.raises(SnapshotError, match=first.fingerprint):
        _loader(root, snapshot=first.fingerprint)
    with pytest.raises(CorruptionError, match=r"books.*`datapipe clean`"):
        [unread.batch(step) for step in range(300)]
    assert plan_cleaning(root, 2).is_empty
    clean(root, 1)
    streams[2].check()
    assert {path for path, _ in root.list_files("shards")} == paths(third)
    assert run(mixture, LATER).watcher.records == []


def test_snapshot_that_is_published_again_is_the_newest_and_is_not_changed(mixture, root):
    first = read_snapshot(root)
    files = {path: root.read_bytes(path) for path, _ in root.list_files(f"snapshots/{first.fingerprint}")}
    assert set(map(os.path.basename, files)) == {
        "snapshot.json", "tokenizer.json", "files.parquet", "mixture.yaml", "publication.json",
    }  # fmt: skip
    newest = run(mixture, NORMALIZED).snapshot
    name = newest.shards[0].path
    left = numbered_path(name).replace(".arrow", "-0123456789abcdef.arrow")
    root.write_atomic(left, root.read_bytes(name))
    root.write_atomic("shards/web/notes.txt", b"mine")
    assert [problem.partition(":")[0] for problem in verify_snapshot(root, newest)] == [left, "shards/web/notes.txt"]
    clean(root, 2)
    assert [problem.partition(":")[0] for problem in verify_snapshot(root, newest)] == ["shards/web/notes.txt"]
    again = run(mixture)
    assert (again.snapshot, again.watcher.records) == (read_snapshot(root), [])  # the tasks of kept snapshots stay
    assert again.snapshot == first
    assert publications(root)[-1].fingerprint == first.fingerprint
    assert {path: root.read_bytes(path) for path in files} == files


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_workers_that_start_later_read_the_snapshot_of_their_dataset(mixture, root):
    from datapipe.loader.torch import StreamingDataset

    dataset, fresh = (StreamingDataset(root.url, global_batch_size=4, prefetch=0) for _ in range(2))
    expected = [batch["input_ids"] for batch, _ in zip(dataset, range(3))]
    run(mixture, LATER)
    later = pickle.loads(pickle.dumps(fresh))
    assert later.loader.snapshot == fresh.loader.snapshot != read_snapshot(root)
    for batch, wanted in zip(later, expected):
        np.testing.assert_array_equal(batch["input_ids"], wanted)


@pytest.mark.slow
def test_states_traces_and_exports_of_an_earlier_snapshot_are_of_that_snapshot(mixture, root, tmp_path):
    stream = Stream(root)
    before = trace_step(root.url, 5, state=stream.state, text=True)
    run(mixture, LATER)
    assert trace_step(root.url, 5, state=stream.state, text=True) == before
    assert trace_step(root.url, 5, global_batch_size=4, snapshot=stream.fingerprint[:8], text=True) == before
    assert trace_step(root.url, 5, global_batch_size=4, text=True) != before
    seen = trace_document(root.url, before[0].key, global_batch_size=4, snapshot=stream.fingerprint, num_epochs=1)
    assert 5 in {appearance.step for appearance in seen}
    target = Root(str(tmp_path / "export"))
    export_snapshot(root, read_snapshot(root, stream.fingerprint), target, ExportRequest(format="arrow"))
    assert verify_snapshot(target, read_snapshot(target)) == []
    np.testing.assert_array_equal(_batches(target), stream.expected)
    run(mixture, NORMALIZED)
    with pytest.raises(SnapshotError, match=rf"'books' holds other rows.*snapshot='{stream.fingerprint[:12]}'"):
        _loader(root).load_state_dict(stream.state)


def test_output_of_another_mixture_is_refused_unless_replaced(mixture, root):
    first, stream = read_snapshot(root), Stream(root)
    other = mixture.with_name("other.yaml")
    other.write_text(mixture.read_text().replace("  web:", "  pages:").replace("  books:", "  novels:"))
    with pytest.raises(UserError, match=rf"'test', and this one is 'other'.*{first.fingerprint[:12]}"):
        run(mixture, ["name=other"])
    with pytest.raises(UserError, match="sources books, web"):
        run(other)
    assert read_snapshot(root) == first
    replaced = run(other, replaces=True).snapshot
    assert read_snapshot(root) == replaced
    assert replaced.sources.keys() == {"pages", "novels"}
    stream.check()


def test_output_of_the_version_before_is_read_and_stays_when_a_new_one_is_published(mixture, root):
    """That of datapipe 0.1: one snapshot, whose shards have no digest in their names."""
    snapshot = read_snapshot(root)
    for entry in snapshot.shards:
        os.rename(root.path(entry.path), root.path(entry.numbered_path))
    for folder in ("snapshots", "work/published", "lists"):
        shutil.rmtree(root.path(folder))
    entries = tuple(entry.model_copy(update={"path": entry.numbered_path}) for entry in snapshot.shards)
    old = snapshot.model_copy(update={"shards": entries}).sealed()
    write_manifest(root, old)
    assert verify_snapshot(root, old) == []
    options = {"skip_shards": [old.shards_of("web", "train")[0].path]}
    expected = _batches(root, **options)
    with closing(_loader(root, **options)) as loader:
        loader.seek(5)
        state = json.loads(json.dumps(loader.state_dict()))
    new = run(mixture)
    assert new.watcher.records == []
    assert [each.fingerprint for each in publications(root)] == [old.fingerprint, new.snapshot.fingerprint]
    for name in (old.fingerprint, None):  # the same rows: the state is that of either
        with closing(_loader(root, snapshot=name)) as loader:
            loader.load_state_dict(state)
            assert loader.step == 5
            np.testing.assert_array_equal([loader.batch(step)["input_ids"] for step in STEPS], expected)
    assert verify_snapshot(root, read_snapshot(root, old.fingerprint)) == []
    clean(root, 1)
    assert verify_snapshot(root, new.snapshot) == []
    assert {path for path, _ in root.list_files("shards")} == paths(new.snapshot)


def test_skipped_shards_are_named_with_and_without_the_digest(root):
    entry = read_snapshot(root).shards_of("web", "train")[0]
    first, second, all_shards = (_batches(root, skip_shards=skip) for skip in ([entry.path], [entry.numbered_path], []))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, all_shards)


# ------------------------------------------------------------------------------------------------ kills


def every_kill(root: Root, act: Callable[[], Any]) -> Iterator[None]:
    """Kills `act` before each of its changes, from the state that the output has now; yields after each kill."""
    assert root.local is not None
    ready, kills = root.local.with_name("ready"), 0
    shutil.copytree(root.local, ready, copy_function=os.link)
    while is_killed(act, kills):
        yield
        shutil.rmtree(root.local)
        shutil.copytree(ready, root.local, copy_function=os.link)
        kills += 1
    assert kills > 10


@pytest.mark.slow
def test_publishing_killed_at_every_change_leaves_whole_snapshots(mixture, root):
    stream = Stream(root)
    first, newest = read_snapshot(root), run(mixture, NORMALIZED).snapshot
    for path in paths(newest) - paths(first):  # committed, and not yet published
        root.delete(path)
    root.delete_folder(f"snapshots/{newest.fingerprint}")
    root.write_atomic(SNAPSHOT, root.read_bytes(f"snapshots/{stream.fingerprint}/{SNAPSHOT}"))
    for _ in every_kill(root, lambda: run(mixture, NORMALIZED)):
        assert read_snapshot(root).fingerprint in (stream.fingerprint, newest.fingerprint)
        problems = verify_snapshot(root, read_snapshot(root, stream.fingerprint))
        assert all("`datapipe clean` deletes it" in problem for problem in problems)
        stream.check()
        done = run(mixture, NORMALIZED)
        assert (done.snapshot, done.watcher.records) == (newest, [])
        assert [verify_snapshot(root, read_snapshot(root, name)) for name in (None, *fingerprints(root))] == [[]] * 3
        stream.check()


@pytest.mark.slow
def test_cleaning_killed_at_every_change_leaves_whole_snapshots(mixture, root):
    for overrides in (NORMALIZED, LATER):
        newest = run(mixture, overrides).snapshot
    stream = Stream(root)
    for _ in every_kill(root, lambda: clean(root, 1)):
        stream.check()
        for name in fingerprints(root):  # what is still listed is whole, or says which shard is gone
            _loader(root, snapshot=name).close()
        clean(root, 1)
        assert fingerprints(root) == [newest.fingerprint]
        assert verify_snapshot(root, newest) == []
        assert plan_cleaning(root, 1).is_empty
        assert run(mixture, LATER).watcher.records == []


@pytest.mark.slow
def test_clean_drops_the_tasks_of_no_kept_snapshot_and_keeps_those_of_a_run_that_was_stopped(mixture, root):
    run(mixture, NORMALIZED)

    def stop(record: Any) -> None:
        if len(watcher.records) == 5:
            raise KeyboardInterrupt

    watcher = runs.Watcher(on_commit=stop)
    with pytest.raises(KeyboardInterrupt):
        run(mixture, LATER, watcher=watcher)
    root.write_atomic("work/files/0123/model.bin", b"for nodes of a cluster")
    before = sum(size for _, size in root.list_files(WORK))
    assert clean(root, 1).tasks
    assert sum(size for _, size in root.list_files(WORK)) < before
    assert not root.exists("work/files/0123/model.bin")
    assert run(mixture, NORMALIZED).watcher.records == []
    rest = run(mixture, LATER).watcher.records
    assert {record.fingerprint for record in watcher.records}.isdisjoint({record.fingerprint for record in rest})
    assert run(mixture).watcher.records


@pytest.mark.slow
def test_clean_of_sequence_lengths_keeps_those_of_kept_snapshots(mixture, root):
    one, both = read_snapshot(root), run(mixture, TWO_LENGTHS).snapshot
    assert both.shards == one.shards and both.sequence_lengths == (one.sequence_length, 32)
    assert clean(root, 2).is_empty
    run(mixture, NORMALIZED)
    clean(root, 2)
    assert verify_snapshot(root, read_snapshot(root, both.fingerprint)) == []
    clean(root, 1)
    assert root.list_files("length-32") == []
    with pytest.raises(SnapshotError, match=r"no snapshot\.json"):
        clean(root.within("none"), 1)
