"""Real runs that follow a folder: what is published, from what, and that stopping anywhere changes nothing of it."""

import gc
import json
import os
import re
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from datapipe.config import load_mixture
from datapipe.engine.events import Event, Published, line_of
from datapipe.engine.following.follow import Follower
from datapipe.engine.run import Run, RunOptions, planned
from datapipe.engine.run_report import run_and_report
from datapipe.engine.watching.status import read_status
from datapipe.errors import DatapipeError, SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.removed import read_removed
from datapipe.snapshots import publish
from datapipe.snapshots.clean import clean
from datapipe.snapshots.export.export import shard_batches
from datapipe.snapshots.export.text import parts_of_text
from datapipe.snapshots.generations import begin_generation, begun_generation
from datapipe.snapshots.index.takedown import make_index
from datapipe.snapshots.takedown import take_down
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.lock import OutputLock
from datapipe.storage.outages import Outage, OutageError
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.cli_processes import start, wait_until
from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium

_FILTERS = "stages:\n  - normalize.unicode\n  - filter.length: {min_chars: 40}\n"
STAGES = f"{_FILTERS}  - dedup.exact\n  - dedup.minhash: {{}}\n"
TAIL = (
    "validation: 3%\ntokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 64}\n"
    "execution: {split_bytes: 16KiB, bucket_bytes: 64KiB, check_disk: false}\n"
)


class Corpus:
    """A folder in which files appear, a mixture of it, and what a follower said."""

    def __init__(self, folder: Path, tail: str = TAIL, stages: str = STAGES, keep: str = "") -> None:
        self.folder, self.root = folder, Root(str(folder / "out"))
        (folder / "in").mkdir(parents=True, exist_ok=True)
        self.path = runs.write_mixture(folder, f"  web:\n    path: {folder}/in/*.jsonl\n{keep}", stages, tail)
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.num_runs = 0

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.write(number, corpora.documents(number, 24))

    def write(self, number: int, documents: list[dict[str, str]]) -> None:
        corpora.write_jsonl(self.folder / f"in/{number:02}.jsonl", documents)

    def position(self, number: int) -> int:
        """The position of the second document of a file; those of 01.jsonl and 02.jsonl are kept."""
        return len((self.folder / f"in/{number:02}.jsonl").read_bytes().splitlines(keepends=True)[0])

    def run_one(self, mixture, generation) -> None:
        self.num_runs += 1
        run_and_report(Run(mixture, runs.Watcher(), make_engine=runs.InProcess, generation=generation)).raise_problem()

    def whole_run(self, **options) -> BaseException | None:
        return run_and_report(Run(load_mixture(self.path), runs.Watcher(), RunOptions(**options), runs.InProcess)).problem

    def follow(self, num_listings: int = 2, **options) -> Snapshot:
        self.follower(**options).follow(num_listings)
        return self.snapshot

    def follower(self, **options) -> Follower:
        def observe(event: Event) -> None:
            self.events.append(event)
            self.lines += [line] if (line := line_of(event)) else []

        return Follower(load_mixture(self.path), 1.0, self.run_one, observe, **{"wait": lambda seconds: None, **options})

    @property
    def snapshot(self) -> Snapshot:
        return read_snapshot(self.root)

    @property
    def num_documents(self) -> int:
        return sum(shard.documents for shard in self.snapshot.shards)


def _parts(snapshot: Snapshot) -> set[int]:
    return {shard.part or 0 for shard in snapshot.shards}


def _report(corpus: Corpus) -> dict[str, Any]:
    return json.loads((corpus.folder / "out/report.json").read_text())


def _checksums(snapshot: Snapshot) -> list[str]:
    return [shard.checksum for shard in snapshot.shards]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A folder, and beside it its states: `published`, of the files 0 and 1, and `followed` by a generation of the file 2."""
    folder = tmp_path_factory.mktemp("saved") / "corpus"
    made = Corpus(folder)
    made.add(0, 1)
    made.follow()
    shutil.copytree(folder, folder.with_name("published"))
    made.add(2)
    made.follow()
    shutil.copytree(folder, folder.with_name("followed"))
    return folder


def _restored(saved: Path, state: str) -> Corpus:
    shutil.rmtree(saved)
    shutil.copytree(saved.with_name(state), saved)
    return Corpus(saved)


@pytest.fixture
def corpus(saved) -> Corpus:
    return _restored(saved, "published")


@pytest.fixture
def followed(saved) -> Corpus:
    return _restored(saved, "followed")


@pytest.fixture(scope="module")
def expected(saved) -> list[str]:
    """The checksums of the shards of `followed`."""
    return _checksums(read_snapshot(Root(str(saved.with_name("followed") / "out"))))


def test_what_is_new_becomes_a_part_and_nothing_before_is_touched(corpus):
    first = corpus.snapshot
    before = {shard.path: (corpus.folder / "out" / shard.path).stat() for shard in first.shards}
    corpus.add(2, 3)
    second = corpus.follow()
    corpus.add(4)
    third = corpus.follow()
    assert third.shards[: len(second.shards)] == second.shards
    assert second.shards[: len(first.shards)] == first.shards
    assert [_parts(each) for each in (first, second, third)] == [{0}, {0, 1}, {0, 1, 2}]
    assert {shard.split for shard in third.shards[len(first.shards) :]} == {"train"}
    assert third.tokenizer == first.tokenizer
    tokens = [sum(shard.tokens for shard in each.shards) for each in (first, second, third)]
    published = [(event.snapshot, event.tokens) for event in corpus.events if isinstance(event, Published)]
    assert published == [(second.fingerprint, tokens[1] - tokens[0]), (third.fingerprint, tokens[2] - tokens[1])]
    for path, was in before.items():
        now = (corpus.folder / "out" / path).stat()
        assert (now.st_mtime_ns, now.st_ino) == (was.st_mtime_ns, was.st_ino)
    assert not verify_snapshot(corpus.root, corpus.snapshot)
    assert corpus.num_runs == 2


@pytest.mark.slow
def test_a_generation_of_duplicates_alone_is_published_without_rows(corpus):
    first = corpus.snapshot
    corpus.write(99, corpora.documents(0, 24))
    second = corpus.follow()
    assert second.shards == first.shards
    assert second.fingerprint != first.fingerprint  # its file is known now
    assert corpus.follow().fingerprint == second.fingerprint
    assert corpus.num_runs == 1
    corpus.add(2)
    assert _parts(corpus.follow()) == {0, 1}
    before = corpus.snapshot.shards
    corpus.write(98, corpora.documents(2, 24) + corpora.documents(0, 24))
    assert corpus.follow().shards == before


@pytest.mark.slow
def test_a_file_is_left_alone_until_two_listings_find_it_the_same(corpus):
    first = corpus.snapshot
    corpus.add(2)
    assert corpus.follow(num_listings=1).fingerprint == first.fingerprint
    assert "web/02.jsonl may still be written" in corpus.lines[-1]

    def grow(seconds: float) -> None:
        with open(corpus.folder / "in/02.jsonl", "ab") as stream:
            stream.write(corpora.jsonl(corpora.documents(77, 1)))

    assert corpus.follow(5, wait=grow).fingerprint == first.fingerprint
    assert corpus.follow().fingerprint != first.fingerprint


def test_a_file_that_changes_or_goes_after_it_was_read_is_reported_once(corpus):
    first = corpus.snapshot
    os.remove(corpus.folder / "in/00.jsonl")
    with open(corpus.folder / "in/01.jsonl", "ab") as stream:
        stream.write(corpora.jsonl(corpora.documents(77, 1)))
    assert corpus.follow(4).fingerprint == first.fingerprint
    told = [line.partition(".jsonl ")[2].partition(".")[0] for line in corpus.lines if ".jsonl" in line]
    assert told == ["changed since it was read", "is gone"]


@pytest.mark.slow
def test_what_is_new_waits_until_there_is_enough_or_the_time_has_come(corpus):
    corpus.path.write_text(corpus.path.read_text() + "publish: {min_tokens: 1M, or_every: 6h}\n")
    first = corpus.snapshot
    corpus.add(2)
    published_at = (corpus.folder / "out/snapshots" / first.fingerprint / "publication.json").stat().st_mtime
    assert corpus.follow(3, now=lambda: published_at + 5 * 3600).fingerprint == first.fingerprint
    assert "waiting for 1,000,000 tokens or 20" in corpus.lines[-1]
    assert corpus.follow(now=lambda: published_at + 7 * 3600).fingerprint != first.fingerprint


def _killed(*given):
    raise KeyboardInterrupt


def _kill_while(corpus: Corpus, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, killed: Any = _killed) -> None:
    """A follower is killed where it calls this."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            corpus.follow()


def test_a_run_that_is_stopped_goes_on_with_the_same_files(corpus, expected):
    corpus.add(2)
    begin_generation(corpus.root, corpus.snapshot, {"web": ("02.jsonl",)})
    corpus.add(3)  # after the choice
    assert _checksums(corpus.follow(1)) == expected
    assert begun_generation(corpus.root, corpus.snapshot) is None


@pytest.mark.slow
def test_a_generation_that_was_built_and_never_published_is_compared_with_nothing(corpus, monkeypatch):
    """It was killed before it was published, and one of its files went; both of its names come again, one with other text."""
    corpus.add(2)
    lost = corpora.documents(77, 20)
    corpus.write(3, lost)
    _kill_while(corpus, monkeypatch, publish, "publish_files")
    (corpus.folder / "in/03.jsonl").unlink()
    corpus.follow()
    corpus.write(3, corpora.documents(88, 20))
    corpus.follow()
    before = corpus.num_documents
    corpus.write(4, lost)
    corpus.follow()
    assert corpus.num_documents > before


def test_a_choice_that_was_edited_is_refused(corpus):
    begin_generation(corpus.root, corpus.snapshot, {"web": ("02.jsonl",)})
    (corpus.folder / "out/work/generation.json").write_text('{"base": 3, "files": [1]}')
    with pytest.raises(DatapipeError, match=r"generation\.json"):
        corpus.follow()


@pytest.mark.parametrize(
    ("before", "after", "name"), [("400", "300", "tokenizer.train"), ("64", "128", "pack.sequence_length")]
)
def test_what_rows_were_made_with_cannot_change_while_following(corpus, before, after, name):
    corpus.path.write_text(corpus.path.read_text().replace(f": {before}}}", f": {after}}}"))
    corpus.add(2)
    with pytest.raises(UserError, match=f"{name}.* {before} →"):
        corpus.follow()
    assert corpus.num_runs == 0


@pytest.mark.slow
def test_later_runs_compare_with_the_additions_of_an_output_too(followed, tmp_path):
    make_index([followed.root.url], str(tmp_path / "index"))
    for name, against in (("of", followed.root.url), ("by", str(tmp_path / "index"))):
        later = Corpus(tmp_path / name, stages=f"{_FILTERS}  - dedup.exact: {{against: {against}}}\n")
        later.write(90, corpora.documents(1, 24)[:5] + corpora.documents(2, 24)[:5])
        later.write(91, corpora.documents(8, 20))
        later.follow()
        assert 0 < later.num_documents <= 20


@pytest.mark.slow
def test_a_rebuild_that_is_stopped_leaves_generations_compared(followed, monkeypatch):
    before = followed.snapshot
    with monkeypatch.context() as patch:
        patch.setattr(runs.InProcess, "next_attempt", _killed)
        assert isinstance(followed.whole_run(rebuilds=True), KeyboardInterrupt)
    followed.write(3, corpora.documents(2, 24))
    assert followed.follow().shards == before.shards


@pytest.mark.slow
def test_cleaning_keeps_what_generations_need_and_a_rebuild_makes_one_of_them(followed):
    root, before = followed.root, followed.snapshot
    assert clean(root, 1).shards == ()
    texts = sum(batch.num_rows for part in parts_of_text(root, before, None, None) for batch in part.batches())
    assert texts == followed.num_documents
    followed.add(3)
    assert _parts(followed.follow()) == {0, 1, 2}  # compared with the rows of both before
    assert isinstance(followed.whole_run(), UserError)
    assert followed.whole_run(rebuilds=True) is None
    assert _parts(followed.snapshot) == {0}
    assert {path.split("/")[1] for path, _ in clean(root, 1).shards if path.startswith("shards/")} >= {"web+1", "web+2"}
    assert not verify_snapshot(root, followed.snapshot)
    followed.add(4)
    assert {shard.part for shard in followed.follow().shards} == {None, 1}


def test_plan_of_an_output_that_grew_is_refused_as_its_run_is(followed):
    mixture = load_mixture(followed.path)
    with pytest.raises(UserError) as refused:
        planned(mixture)
    assert str(refused.value) == str(followed.whole_run())
    assert "--follow" in str(refused.value)
    assert not planned(mixture, rebuilds=True)[1].is_committed


def test_work_that_is_lost_is_named_before_files_are_added(corpus):
    corpus.add(2)
    for path in (corpus.folder / "out/work/attempts").rglob("documents.arrow"):
        path.unlink()
    with pytest.raises(UserError, match=r"work/ has lost \d+ tasks.*--rebuild"):
        corpus.follow()


@pytest.mark.slow
def test_documents_without_a_tokenizer_grow(tmp_path):
    corpus = Corpus(tmp_path, "tokenizer: none\n")
    corpus.add(0, 1)
    corpus.follow()
    first = read_snapshot(corpus.root)
    corpus.add(2)
    corpus.write(3, corpora.documents(0, 24))  # published already
    corpus.follow()
    second = read_snapshot(corpus.root)
    assert second.shards[: len(first.shards)] == first.shards
    assert [shard.part for shard in second.shards] == [None, 1]
    assert [shard.path.rpartition("/")[2].split("-")[1] for shard in second.shards] == ["00000", "00001"]
    assert "documents more" in corpus.lines[-1]
    assert not verify_snapshot(corpus.root, second)
    report = _report(corpus)["total"]["documents"]
    assert (report["read"], report["kept"]) == (96, sum(shard.documents for shard in second.shards))
    inspected = datapipe(["inspect", str(corpus.root.local), "--document", "web/02.jsonl:0"])
    assert "web/02.jsonl:0" in inspected.stdout


@pytest.mark.slow
def test_sources_that_are_snapshots_stay_while_others_grow(tmp_path):
    old = Corpus(tmp_path / "old", TAIL.replace("validation: 3%\n", ""))
    old.add(8, 9)
    old.follow()
    corpus = Corpus(tmp_path, "pack: {sequence_length: 64}\nexecution: {check_disk: false}\n")
    corpus.path.write_text(corpus.path.read_text().replace("sources:\n", f"sources:\n  old: {{snapshot: {old.root.url}}}\n"))
    corpus.add(0, 1)
    first = corpus.follow()
    old.add(7)
    assert old.follow().fingerprint
    shutil.rmtree(tmp_path / "old/out/snapshots")  # the rows are in this output, and the other one may go
    corpus.add(2)
    second = corpus.follow()
    assert second.shards[: len(first.shards)] == first.shards
    assert {shard.source for shard in second.shards if shard.part} == {"web"}
    assert second.sources["old.web"] == first.sources["old.web"]
    assert not verify_snapshot(corpus.root, second)
    assert "small_vocabulary" not in {warning["kind"] for warning in _report(corpus)["warnings"]}
    assert _report(corpus)["taken"]["old.web"]["tokens"] == sum(
        shard.tokens for shard in first.shards if shard.source == "old.web"
    )


@pytest.mark.slow
def test_a_later_generation_has_the_cut_of_a_share_that_the_first_one_found(tmp_path):
    stages = f"{_FILTERS}  - tests.support.ranked_stages:ByScore: {{as: best, keep_share: '1/2'}}\n  - dedup.exact\n"
    corpus = Corpus(tmp_path, stages=stages, keep="    keep: [score]\n")
    for number in (0, 1):
        corpus.write(number, [{**each, "score": row} for row, each in enumerate(corpora.documents(number, 24))])
    corpus.follow()
    first = _report(corpus)
    corpus.write(2, [{**each, "score": row} for row, each in enumerate(corpora.documents(2, 24))])
    corpus.follow()
    second = _report(corpus)
    assert second["thresholds"] == first["thresholds"]
    assert first["total"]["documents"]["read"] < second["total"]["documents"]["read"]
    assert first["total"]["documents"]["kept"] < second["total"]["documents"]["kept"]


def test_texts_that_are_held_out_are_those_of_the_validation_shards(tmp_path):
    """Documents of later generations below the share are trained on."""
    corpus = Corpus(tmp_path, TAIL.replace("3%", "30%"), _FILTERS)
    corpus.add(1, 2)
    corpus.follow()
    corpus.add(3, 4)
    snapshot = corpus.follow()
    assert _parts(snapshot) == {0, 1}
    for split in ("train", "validation"):
        shards = shard_batches(corpus.root, snapshot, snapshot.shards_of("web", split))
        keys = {key for rows in shards for row in rows.column("keys").to_pylist() for key in row}
        texts = (batch for part in parts_of_text(corpus.root, snapshot, None, split) for batch in part.batches())
        assert sum(batch.num_rows for batch in texts) == len(keys) > 0


@pytest.mark.slow
def test_several_sequence_lengths_grow_together(tmp_path):
    corpus = Corpus(tmp_path, TAIL.replace("sequence_length: 64", "sequence_length: [64, 32]"))
    corpus.add(0, 1)
    first = corpus.follow()
    corpus.add(2)
    second = corpus.follow()
    assert second.shards[: len(first.shards)] == first.shards
    assert not verify_snapshot(corpus.root, second)
    report = _report(corpus)
    assert report["total"]["packing"]["32"]["documents"] == report["total"]["packing"]["64"]["documents"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["files.parquet", "snapshot.json"])
def test_a_publication_that_is_killed_before_any_of_its_files_is_finished(corpus, expected, monkeypatch, name):
    corpus.add(2)
    replace = OutputLock.replace

    def killed(lock, files):
        paths = list(files)
        replace(lock, {path: files[path] for path in paths[: paths.index(name)]})
        raise KeyboardInterrupt

    _kill_while(corpus, monkeypatch, OutputLock, "replace", killed)
    assert _checksums(corpus.follow()) == expected


@pytest.mark.slow
def test_rows_of_a_run_over_all_files_that_was_stopped_while_it_published_are_compared_with_nothing(
    corpus, expected, monkeypatch
):
    corpus.add(2)
    with monkeypatch.context() as patch:
        patch.setattr(OutputLock, "replace", _killed)
        assert isinstance(corpus.whole_run(), KeyboardInterrupt)
    assert _checksums(corpus.follow()) == expected


@pytest.mark.slow
def test_a_damaged_manifest_is_rebuilt_and_takedowns_stay(followed):
    take_down(followed.root, [f"web/02.jsonl:{followed.position(2)}"])
    path = followed.folder / "out/snapshot.json"
    path.write_bytes(path.read_bytes()[:-40])
    assert isinstance(followed.whole_run(), UserError)
    assert followed.whole_run(rebuilds=True) is None
    assert followed.snapshot.removed is not None


def test_a_damaged_list_of_shards_is_an_error_and_no_reason_to_read_all_files_again(followed):
    content = (followed.folder / "out/snapshot.json").read_bytes()
    for entry in followed.snapshot.lists:
        path = followed.folder / "out" / entry.path
        path.write_bytes(path.read_bytes()[:-40])
    gc.collect()  # the lists of a manifest in use are not read again
    assert isinstance(followed.whole_run(), SnapshotError)
    with pytest.raises(SnapshotError, match="--rebuild"):
        followed.follow()
    assert (followed.folder / "out/snapshot.json").read_bytes() == content


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(UserError("in/* matches no file"), marks=pytest.mark.slow),
        OutageError(Outage(where="s3://in", cause="no answer")),
    ],
)
def test_sources_that_cannot_be_listed_for_a_while_are_waited_for_and_reported_once(corpus, monkeypatch, error):
    corpus.add(2)
    list_changes, left = Follower.list_changes, [2]

    def failing(follower, root, snapshot):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return list_changes(follower, root, snapshot)

    monkeypatch.setattr(Follower, "list_changes", failing)
    assert _parts(corpus.follow(4)) == {0, 1}
    assert sum(str(error) in line for line in corpus.lines) == 1
    left[0] = 2
    with pytest.raises(type(error), match=re.escape(str(error))):  # of the last listing
        corpus.follow(2)


@pytest.mark.slow
def test_command_that_is_killed_at_any_moment_publishes_the_same(tmp_path, expected):
    corpus = Corpus(tmp_path)
    corpus.add(0, 1)
    assert run_process(["run", str(corpus.path), "--workers", "1"]).returncode == 0
    corpus.add(2)
    num_commits = len(list((corpus.folder / "out/work/ledger").glob("*.jsonl")))
    moments = [
        (corpus.folder / "out/work/generation.json").exists,
        lambda: len(list((corpus.folder / "out/work/ledger").glob("*.jsonl"))) > num_commits,
        (corpus.folder / "out/shards/web+1").exists,
        lambda: any(shard.part for shard in corpus.snapshot.shards),
    ]
    for moment in moments:
        process = start(["run", str(corpus.path), "--workers", "1", "--follow", "0.2"])
        wait_until(lambda moment=moment, process=process: moment() or process.poll() is not None, "a moment")
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert _checksums(corpus.snapshot) == expected
    assert not verify_snapshot(corpus.root, corpus.snapshot)
    corpus.add(3)
    for _ in range(2):
        done = run_process(["run", str(corpus.path), "--workers", "1", "--follow", "0.2", "--once"])
        assert (done.returncode, _parts(corpus.snapshot)) == (0, {0, 1, 2}), done.stderr


@pytest.mark.slow
def test_command_reports_people_and_programs_of_generations_and_ends_at_once_when_it_is_interrupted(tmp_path):
    corpus, log = Corpus(tmp_path), tmp_path / "events.jsonl"
    corpus.add(0)
    process = start(["run", str(corpus.path), "--follow", "0.2", "--metrics-port", "0", "--log-json", str(log)])
    assert process.stderr is not None and process.stdout is not None
    try:
        address = next(line for line in iter(process.stderr.readline, "") if "figures for Prometheus" in line).split()[-1]
        lines = iter(process.stdout.readline, "")
        assert any("waiting for new files" in line for line in lines)
        corpus.add(1)
        assert any("published snapshot" in line for line in lines)
        assert any("waiting for new files" in line for line in lines)
        with urlopen(address) as answer:  # served while it waits
            figures = answer.read().decode()
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 130
    assert 'datapipe_run_documents_total{fate="read",source="web"} 48.0' in figures
    assert "datapipe_run_published_total 2.0" in figures
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    told = [event for event in events if event in ("run_started", "run_finished", "adding", "published")]
    assert told == ["run_started", "run_finished", "adding", "run_started", "run_finished", "published"]
    of_both = datapipe(["status", str(corpus.root.local)]).stdout
    assert any(line.startswith("web: 48 read") for line in of_both.splitlines())


@pytest.mark.slow
def test_documents_that_the_mixture_names_are_taken_down_between_generations(corpus):
    listed, first = corpus.folder / "gone.txt", corpus.snapshot
    corpus.path.write_text(corpus.path.read_text() + f"takedown: {listed}\n")
    listed.write_text("web/00.jsonl:0\nweb/07.jsonl:0\nweb/00.jsonl:1")  # the last line is not whole
    second = corpus.follow()
    assert second.removed is not None
    assert (second.removed.documents, second.shards) == (1, first.shards)
    corpus.add(7)  # a document of it is listed
    third = corpus.follow()
    assert third.removed is not None
    assert third.removed.documents == 2
    assert third.removed.takedowns[:1] == second.removed.takedowns
    corpus.add(8)
    begun = begin_generation(corpus.root, third, {"web": ("08.jsonl",)})
    take_down(corpus.root, [f"web/01.jsonl:{corpus.position(1)}"])
    assert begun_generation(corpus.root, corpus.snapshot) == begun
    fourth = corpus.follow()
    assert fourth.removed is not None
    assert (fourth.removed.documents, _parts(fourth), corpus.num_runs) == (3, {0, 1, 2}, 2)
    told = [event.taken_down for event in corpus.events if isinstance(event, Published)]
    assert told == [1, 1, 0]  # of the list, with a generation, and none: the third was taken down by hand
    with closing(Loader(corpus.root.url, global_batch_size=4, fields=("document_keys",))) as loader:
        keys = {bytes(key) for step in range(60) for key in loader.batch(step)["document_keys"].reshape(-1, 16)}
    assert not keys & {key.tobytes() for key in read_removed(corpus.root, fourth).keys}
    listed.write_text("web/00.jsonl:0\nweb/07.jsonl:0\n")
    assert corpus.whole_run(rebuilds=True) is None
    assert corpus.snapshot.removed == fourth.removed
    assert not verify_snapshot(corpus.root, corpus.snapshot)


@pytest.mark.slow
def test_a_second_follower_of_an_output_is_refused_and_status_reports_of_the_first(corpus):
    corpus.add(2)
    first, told = corpus.follower(), []

    def second(mixture, generation):
        told.append(read_status(corpus.root)["following"])
        with pytest.raises(UserError, match="another run"):
            corpus.follow(1)
        corpus.run_one(mixture, generation)

    first.run_one = second
    first.follow(2)
    assert "adding 1 new file as generation 1 of web" in told[0]["doing"]
    assert (_parts(corpus.snapshot), corpus.num_runs) == ({0, 1}, 1)


@pytest.mark.slow
def test_a_line_of_takedowns_that_names_nothing_stops_no_other(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.add(0, 1)
    listed = corpus.folder / "gone.txt"
    corpus.path.write_text(corpus.path.read_text() + f"takedown: {listed}\n")
    listed.write_text("web/00.jsonl:0\ngarbage line\n")
    with pytest.raises(UserError, match=r"gone\.txt, line 2: 'garbage line'"):
        corpus.follow()
    listed.write_text("web/00.jsonl:0\n")
    corpus.follow()
    listed.write_text("garbage line\nweb/00.jsonl:0\nweb/01.jsonl:0\n")
    corpus.add(2)
    snapshot = corpus.follow(3)
    assert snapshot.removed is not None
    assert (snapshot.removed.documents, _parts(snapshot)) == (2, {0, 1})


@pytest.mark.slow
def test_a_list_of_new_files_is_followed_line_by_line(tmp_path):
    corpus = Corpus(tmp_path)
    listed = tmp_path / "new.txt"
    corpus.path.write_text(corpus.path.read_text().replace(f"{tmp_path}/in/*.jsonl", f"'@{listed}'"))
    corpus.add(0)
    listed.write_text("in/00.jsonl\n")
    first = corpus.follow(num_listings=1)
    corpus.add(1)
    with listed.open("a") as file:
        file.write("in/01.json")  # cut within a name
    assert corpus.follow(num_listings=1).fingerprint == first.fingerprint
    with listed.open("a") as file:
        file.write("l\nin/02.jsonl\n")
    second = corpus.follow(num_listings=1)
    assert _parts(second) == {0, 1}
    assert corpus.follow(num_listings=1).fingerprint == second.fingerprint
    assert f"@{listed}, line 3: {tmp_path}/in/02.jsonl may still be written" in corpus.lines[-1]
    corpus.add(2)
    assert _parts(corpus.follow(num_listings=1)) == {0, 1, 2}
    assert corpus.num_runs == 3


def test_budget_of_tokens_holds_for_all_generations_together(tmp_path):
    corpus = Corpus(tmp_path, keep="    max_tokens: 9k\n")
    tokens, dropped = [], []
    for number in range(4):  # the last ones have no room, and publish no shard to train on
        corpus.add(number)
        corpus.follow()
        tokens.append(sum(shard.tokens for shard in corpus.snapshot.shards if shard.split == "train"))
        dropped.append(_report(corpus)["total"]["documents"]["dropped"].get("tokenize:over_max_tokens", 0))
    assert 0 < tokens[0] < tokens[1] <= tokens[2] <= tokens[3] <= 9000, (tokens, dropped)
    assert dropped[0] == 0 < dropped[1] < dropped[2] < dropped[3]
    assert _parts(corpus.snapshot) >= {0, 1} and not verify_snapshot(corpus.root, corpus.snapshot)
    report = _report(corpus)["total"]
    assert report["documents"]["read"] == report["documents"]["kept"] + sum(report["documents"]["dropped"].values())
