"""Every publication is a snapshot of its own: it loads, verifies and resumes while others are published and cleaned."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.engine import clean as cleaning
from datapipe.engine.clean import clean, plan_cleaning
from datapipe.errors import CorruptionError, SnapshotError, UserError
from datapipe.index.takedown import make_index
from datapipe.loader import Loader
from datapipe.loader.trace import trace_document, trace_step
from datapipe.shards.export import ExportRequest, export_snapshot
from datapipe.shards.manifest import SNAPSHOT, Snapshot, fingerprints, read_snapshot
from datapipe.shards.shard_table import numbered_path
from datapipe.shards.snapshots import publications
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import runs

pytestmark = pytest.mark.medium

STEPS = range(0, 40, 3)
NORMALIZED = "sources.books.stages=[{filter.length: {min_chars: 200}}]"
"""An option that changes the shards of books alone."""

LATER = ["seed=4"]
"""An option that changes every shard: it decides the order of documents."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory, corpus) -> str:
    """A tokenizer that is there, so that a change of one source leaves the tokens of the others."""
    done = run(runs.write_mixture(tmp_path_factory.mktemp("tokenizer"), corpus, stages=""))
    return f"{done.mixture.output}/tokenizer.json"


@pytest.fixture
def mixture(tmp_path: Path, corpus: str, tokenizer: str) -> Path:
    tail = runs.TAIL.replace("train: {vocab_size: 600, sample_bytes: 1MiB}", f"path: {tokenizer}")
    return runs.write_mixture(tmp_path, corpus, stages="", tail=tail)


def run(mixture: Path, overrides: Sequence[str] = (), **options: Any) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess, **options)


def output_of(mixture: Path) -> Root:
    return Root(str(mixture.parent / "out"))


class Stream:
    """A loader that stays open, with the batches it gave when its snapshot was the newest."""

    def __init__(self, root: Root, snapshot: str | None = None) -> None:
        self.root = root
        self.loader = Loader(root.url, snapshot=snapshot, global_batch_size=4, prefetch=0)
        self.fingerprint = self.loader.snapshot.fingerprint
        with closing(Loader(root.url, snapshot=snapshot, global_batch_size=4, prefetch=0)) as first:
            self.expected = {step: first.batch(step)["input_ids"].copy() for step in STEPS}
        self.loader.seek(7)
        self.state = self.loader.state_dict()

    def check(self) -> None:
        """The open loader, one that is opened by name now, and one that is restored give the same batches."""
        self._check(self.loader)
        with closing(Loader(self.root.url, snapshot=self.fingerprint[:10], global_batch_size=4, prefetch=0)) as named:
            self._check(named)
            named.load_state_dict(self.state)
            assert named.step == 7
            self._check(named)

    def _check(self, loader: Loader) -> None:
        for step, expected in self.expected.items():
            np.testing.assert_array_equal(loader.batch(step)["input_ids"], expected)


def paths(snapshot: Snapshot) -> set[str]:
    return {entry.path for entry in snapshot.shards}


@pytest.mark.slow
def test_loaders_go_on_while_other_snapshots_are_published_and_cleaned(mixture):
    root = output_of(mixture)
    first, streams = run(mixture).snapshot, [Stream(root)]
    second = run(mixture, [NORMALIZED]).snapshot
    streams.append(Stream(root))
    third = run(mixture, LATER).snapshot
    streams.append(Stream(root))
    assert {entry.source for entry in first.shards if entry.path not in paths(second)} == {"books"}
    assert not paths(third) & (paths(first) | paths(second))
    for stream in streams:
        stream.check()
    for name in (None, first.fingerprint, second.fingerprint):
        assert verify_snapshot(root, read_snapshot(root, name)) == []
    assert [each.fingerprint for each in publications(root)] == [made.fingerprint for made in (first, second, third)]
    unread = Loader(root.url, snapshot=first.fingerprint, global_batch_size=4, prefetch=0)
    assert [each.fingerprint for each in clean(root, 2).dropped] == [first.fingerprint]
    for stream in streams[1:]:
        stream.check()
    with pytest.raises(SnapshotError, match=f"no snapshot begins with '{first.fingerprint}'. There are: "):
        Loader(root.url, snapshot=first.fingerprint, global_batch_size=4)
    with pytest.raises(CorruptionError, match=r"books.*no such file.*if `datapipe clean` deleted its snapshot, open another"):
        [unread.batch(step) for step in range(300)]
    assert plan_cleaning(root, 2).is_empty
    clean(root, 1)
    streams[2].check()
    assert {path for path, _ in root.list_files("shards")} == paths(third)
    assert run(mixture, LATER).watcher.records == []


@pytest.mark.slow
def test_snapshot_that_is_published_again_is_the_newest_and_is_not_changed(mixture):
    root = output_of(mixture)
    first = run(mixture).snapshot
    files = {path: root.read_bytes(path) for path, _ in root.list_files(f"snapshots/{first.fingerprint}")}
    assert set(map(os.path.basename, files)) == {
        "snapshot.json", "tokenizer.json", "files.parquet", "mixture.yaml", "publication.json",
    }  # fmt: skip
    run(mixture, [NORMALIZED])
    again = run(mixture)
    assert again.snapshot == read_snapshot(root) == first
    assert publications(root)[-1].fingerprint == first.fingerprint
    assert {path: root.read_bytes(path) for path in files} == files


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_workers_that_start_later_read_the_snapshot_of_their_dataset(mixture):
    from datapipe.loader.torch import StreamingDataset

    root = output_of(mixture)
    run(mixture)
    dataset = StreamingDataset(root.url, global_batch_size=4, prefetch=0)
    expected = [batch["input_ids"] for batch, _ in zip(dataset, range(3))]
    fresh = StreamingDataset(root.url, global_batch_size=4, prefetch=0)
    run(mixture, LATER)
    later = pickle.loads(pickle.dumps(fresh))
    assert later.snapshot == fresh.snapshot != read_snapshot(root)
    for batch, wanted in zip(later, expected):
        np.testing.assert_array_equal(batch["input_ids"], wanted)


@pytest.mark.slow
def test_states_are_refused_by_another_snapshot_with_the_name_of_theirs(mixture):
    root = output_of(mixture)
    run(mixture)
    stream = Stream(root)
    run(mixture, [NORMALIZED])
    loader = Loader(root.url, global_batch_size=4, prefetch=0)
    with pytest.raises(SnapshotError, match=rf"'books' holds other rows.*snapshot='{stream.fingerprint[:12]}'"):
        loader.load_state_dict(stream.state)


@pytest.mark.slow
def test_trace_of_a_state_is_in_its_own_snapshot(mixture):
    root = output_of(mixture)
    run(mixture)
    stream = Stream(root)
    before = trace_step(root.url, 5, state=stream.state, text=True)
    run(mixture, LATER)
    assert trace_step(root.url, 5, state=stream.state, text=True) == before
    assert trace_step(root.url, 5, global_batch_size=4, snapshot=stream.fingerprint[:8], text=True) == before
    assert trace_step(root.url, 5, global_batch_size=4, text=True) != before
    seen = trace_document(root.url, before[0].key, global_batch_size=4, snapshot=stream.fingerprint, num_epochs=1)
    assert 5 in {appearance.step for appearance in seen}


@pytest.mark.slow
def test_export_of_an_earlier_snapshot_is_that_snapshot(mixture, tmp_path):
    root = output_of(mixture)
    run(mixture)
    stream = Stream(root)
    run(mixture, LATER)
    target = Root(str(tmp_path / "export"))
    export_snapshot(root, read_snapshot(root, stream.fingerprint), target, ExportRequest(format="arrow"))
    assert verify_snapshot(target, read_snapshot(target)) == []
    with closing(Loader(target.url, global_batch_size=4, prefetch=0)) as loader:
        for step, expected in stream.expected.items():
            np.testing.assert_array_equal(loader.batch(step)["input_ids"], expected)


@pytest.mark.slow
def test_shards_are_links_to_the_committed_files_in_every_snapshot(mixture):
    root = output_of(mixture)
    run(mixture)
    run(mixture, [NORMALIZED])
    run(mixture)
    assert root.local is not None
    assert {path.stat().st_nlink for path in (root.local / "shards").rglob("*.arrow")} == {2}


@pytest.mark.slow
def test_verify_names_files_that_no_snapshot_has(mixture):
    root = output_of(mixture)
    run(mixture)
    run(mixture, [NORMALIZED])
    newest = read_snapshot(root)
    name = newest.shards[0].path
    left = numbered_path(name).replace(".arrow", "-0123456789abcdef.arrow")
    root.write_atomic(left, root.read_bytes(name))
    root.write_atomic("shards/web/notes.txt", b"mine")
    assert verify_snapshot(root, newest) == [
        f"{left}: in no snapshot of this output; `datapipe clean` deletes it",
        "shards/web/notes.txt: in no snapshot of this output; expected only files of snapshots here",
    ]
    clean(root, 2)
    assert verify_snapshot(root, newest) == [
        "shards/web/notes.txt: in no snapshot of this output; expected only files of snapshots here"
    ]


# ------------------------------------------------------------------------------------------------ outputs of another mixture


def test_output_of_another_mixture_is_refused_unless_replaced(mixture):
    root = output_of(mixture)
    first = run(mixture).snapshot
    renamed = ["name=other"]
    with pytest.raises(UserError, match=rf"snapshot of the mixture 'test', and this one is 'other'.*{first.fingerprint[:12]}"):
        run(mixture, renamed)
    assert read_snapshot(root) == first
    stream = Stream(root)
    replaced = run(mixture, renamed, replaces=True).snapshot
    assert read_snapshot(root) == replaced
    stream.check()


@pytest.mark.slow
def test_output_without_a_source_of_the_mixture_is_refused(mixture, corpus, tmp_path):
    run(mixture)
    text = mixture.read_text().replace("  web:", "  pages:").replace("  books:", "  novels:")
    other = tmp_path / "other.yaml"
    other.write_text(text)
    with pytest.raises(UserError, match="holds a snapshot of the sources books, web, and this mixture has none of them, but "):
        run(other)
    assert run(other, replaces=True).snapshot.sources.keys() == {"pages", "novels"}


# ------------------------------------------------------------------------------------------------ outputs of datapipe 0.1


def as_before(root: Root) -> Snapshot:
    """Turns an output into one of datapipe 0.1: one snapshot, whose shards have no digest in their names."""
    snapshot = read_snapshot(root)
    assert root.local is not None
    for entry in snapshot.shards:
        os.rename(root.local / entry.path, root.local / entry.numbered_path)
    shutil.rmtree(root.local / "snapshots")
    shutil.rmtree(root.local / "work/published")
    entries = tuple(entry.model_copy(update={"path": entry.numbered_path}) for entry in snapshot.shards)
    old = snapshot.model_copy(update={"shards": entries}).sealed()
    root.write_atomic(SNAPSHOT, old.to_json())
    return old


def test_output_of_the_version_before_is_read_and_stays_when_a_new_one_is_published(mixture):
    root = output_of(mixture)
    run(mixture)
    old = as_before(root)
    assert verify_snapshot(root, old) == []
    left_out = old.shards_of("web", "train")[0].path
    with closing(Loader(root.url, global_batch_size=4, prefetch=0, skip_shards=[left_out])) as loader:
        expected = {step: loader.batch(step)["input_ids"].copy() for step in STEPS}
        loader.seek(5)
        state = loader.state_dict()
    new = run(mixture)
    assert new.watcher.records == []
    assert paths(new.snapshot).isdisjoint(paths(old))
    assert [each.fingerprint for each in publications(root)] == [old.fingerprint, new.snapshot.fingerprint]
    for name in (old.fingerprint, None):  # the same rows: the state is that of either
        with closing(Loader(root.url, snapshot=name, global_batch_size=4, prefetch=0)) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert loader.step == 5
            for step, batch in expected.items():
                np.testing.assert_array_equal(loader.batch(step)["input_ids"], batch)
    assert verify_snapshot(root, read_snapshot(root, old.fingerprint)) == []
    clean(root, 1)
    assert verify_snapshot(root, new.snapshot) == []
    assert {path for path, _ in root.list_files("shards")} == paths(new.snapshot)


def test_skipped_shards_are_named_with_and_without_the_digest(mixture):
    root = output_of(mixture)
    entry = run(mixture).snapshot.shards_of("web", "train")[0]
    batches = []
    for name in (entry.path, entry.numbered_path):
        with closing(Loader(root.url, global_batch_size=4, prefetch=0, skip_shards=[name])) as loader:
            batches.append([loader.batch(step)["input_ids"].copy() for step in STEPS])
    np.testing.assert_array_equal(batches[0], batches[1])
    with closing(Loader(root.url, global_batch_size=4, prefetch=0)) as loader:
        assert any((loader.batch(step)["input_ids"] != batch).any() for step, batch in zip(STEPS, batches[0]))


# ------------------------------------------------------------------------------------------------ kills


class Killed(BaseException):
    """Stands for the end of the process."""


def kill_at(monkeypatch: pytest.MonkeyPatch, change: int) -> Callable[[], bool]:
    """Ends the process before the `change`-th change of files; returns whether there were so many."""
    done = 0

    def counted(method: str) -> None:
        original = getattr(Root, method)

        def wrapper(self: Root, *arguments: Any) -> Any:
            nonlocal done
            done += 1
            if done == change:
                raise Killed
            return original(self, *arguments)

        monkeypatch.setattr(Root, method, wrapper)

    for method in ("write_atomic", "publish", "delete", "delete_folder", "delete_empty_folders"):
        counted(method)
    return lambda: done >= change


def every_kill(monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], None], act: Callable[[], Any]) -> Iterator[None]:
    """Kills `act` before each of its changes, from the state that `prepare` makes; yields after each kill."""
    change, was_killed = 0, True
    while was_killed:
        change += 1
        prepare()
        with monkeypatch.context() as patched:
            reached = kill_at(patched, change)
            with suppress(Killed):
                act()
            was_killed = reached()
        if was_killed:
            yield
    assert change > 10


@pytest.mark.slow
def test_publishing_killed_at_every_change_leaves_whole_snapshots(mixture, monkeypatch, tmp_path):
    root = output_of(mixture)
    run(mixture)
    stream = Stream(root)
    # committed, and not yet published
    newest = run(mixture, [NORMALIZED]).snapshot
    ready = tmp_path / "ready"
    assert root.local is not None
    for path in [SNAPSHOT, f"snapshots/{newest.fingerprint}"]:
        target = root.local / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    for path in paths(newest) - paths(read_snapshot(root, stream.fingerprint)):
        root.delete(path)
    root.write_atomic(SNAPSHOT, root.read_bytes(f"snapshots/{stream.fingerprint}/{SNAPSHOT}"))
    shutil.copytree(root.local, ready, copy_function=os.link)

    def prepare() -> None:
        assert root.local is not None
        shutil.rmtree(root.local)
        shutil.copytree(ready, root.local, copy_function=os.link)

    for _ in every_kill(monkeypatch, prepare, lambda: run(mixture, [NORMALIZED])):
        assert read_snapshot(root).fingerprint in (stream.fingerprint, newest.fingerprint)
        problems = verify_snapshot(root, read_snapshot(root, stream.fingerprint))
        assert all(problem.endswith("in no snapshot of this output; `datapipe clean` deletes it") for problem in problems)
        stream.check()
        done = run(mixture, [NORMALIZED])
        assert (done.snapshot, done.watcher.records) == (newest, [])
        assert [verify_snapshot(root, read_snapshot(root, name)) for name in (None, *fingerprints(root))] == [[]] * 3
        stream.check()


@pytest.mark.slow
def test_cleaning_killed_at_every_change_leaves_whole_snapshots(mixture, monkeypatch, tmp_path):
    root = output_of(mixture)
    for overrides in ([], [NORMALIZED], LATER):
        newest = run(mixture, overrides).snapshot
    stream = Stream(root)
    ready = tmp_path / "ready"
    assert root.local is not None
    shutil.copytree(root.local, ready, copy_function=os.link)

    def prepare() -> None:
        assert root.local is not None
        shutil.rmtree(root.local)
        shutil.copytree(ready, root.local, copy_function=os.link)

    for _ in every_kill(monkeypatch, prepare, lambda: clean(root, 1)):
        stream.check()
        for name in fingerprints(root):  # what is still listed is whole, or says which shard is gone
            Loader(root.url, snapshot=name, global_batch_size=4, prefetch=0).close()
        clean(root, 1)
        assert fingerprints(root) == [newest.fingerprint]
        assert verify_snapshot(root, newest) == []
        assert plan_cleaning(root, 1).is_empty
        assert run(mixture, LATER).watcher.records == []


# ------------------------------------------------------------------------------------------------ cleaning


@pytest.mark.slow
def test_clean_keeps_the_tasks_of_kept_snapshots(mixture):
    root = output_of(mixture)
    run(mixture)
    run(mixture, [NORMALIZED])
    clean(root, 2)
    assert run(mixture).watcher.records == []
    run(mixture, [NORMALIZED])
    before = cleaning.work_bytes(root)
    assert clean(root, 1).tasks
    assert cleaning.work_bytes(root) < before
    assert run(mixture, [NORMALIZED]).watcher.records == []
    assert run(mixture).watcher.records


@pytest.mark.slow
def test_clean_keeps_the_tasks_of_a_run_that_was_stopped(mixture):
    root = output_of(mixture)
    run(mixture)

    def stop(record: Any) -> None:
        if len(watcher.records) == 5:
            raise KeyboardInterrupt

    watcher = runs.Watcher(on_commit=stop)
    with pytest.raises(KeyboardInterrupt):
        run(mixture, LATER, watcher=watcher)
    clean(root, 1)
    rest = run(mixture, LATER).watcher.records
    assert {record.fingerprint for record in watcher.records}.isdisjoint({record.fingerprint for record in rest})


@pytest.mark.slow
def test_clean_of_sequence_lengths_keeps_those_of_kept_snapshots(mixture):
    root = output_of(mixture)
    both = run(mixture, ["pack.sequence_length=[64, 32]"]).snapshot
    length = root.within("length-32")
    shorter = read_snapshot(length)
    one = run(mixture).snapshot
    assert one == both
    run(mixture, [NORMALIZED])
    assert read_snapshot(length) == shorter
    clean(root, 2)
    assert verify_snapshot(length, shorter) == []
    clean(root, 1)
    assert length.list_files("") == []


def test_clean_keeps_a_sequence_length_that_was_added_to_a_published_snapshot(mixture):
    root = output_of(mixture)
    one = run(mixture).snapshot
    length = root.within("length-32")
    assert run(mixture, ["pack.sequence_length=[64, 32]"]).snapshot == one
    assert clean(root, 1).is_empty
    assert verify_snapshot(length, read_snapshot(length)) == []


def test_damaged_note_of_a_publication_is_named(mixture):
    root = output_of(mixture)
    made = run(mixture).snapshot
    path = f"snapshots/{made.fingerprint}/publication.json"
    root.write_atomic(path, b"{}")
    with pytest.raises(SnapshotError, match=rf"{path}: the file was edited or damaged.*Delete it, and run the mixture again"):
        publications(root)
    root.delete(path)
    assert publications(root)[-1].published_at is None
    run(mixture)
    assert publications(root)[-1].published_at is not None


@pytest.mark.slow
def test_output_with_two_snapshots_is_indexed_after_cleaning_as_before(mixture, tmp_path):
    root = output_of(mixture)
    mixture.write_text(mixture.read_text().replace("\nvalidation:", "\nstages: [dedup.exact]\nvalidation:"))
    run(mixture)
    run(mixture, [NORMALIZED])
    before = make_index([root.url], str(tmp_path / "both"))
    clean(root, 1)
    after = make_index([root.url], str(tmp_path / "one"))
    assert before.rows
    assert [rows.output.checksum for rows in before.rows] == [rows.output.checksum for rows in after.rows]


def test_clean_without_a_snapshot_is_refused(tmp_path):
    with pytest.raises(SnapshotError, match=r"no snapshot\.json here"):
        clean(Root(str(tmp_path)), 1)
