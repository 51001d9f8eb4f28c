"""Real runs that follow a folder: what is published, from what, and that stopping anywhere changes nothing of it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from datapipe.api import execute
from datapipe.card.whole import whole_report
from datapipe.composing.additions import Addition, begin_addition, begun_addition
from datapipe.composing.takedown import take_down
from datapipe.config import load_mixture
from datapipe.engine.clean import clean, plan_cleaning
from datapipe.engine.run import Run
from datapipe.errors import CorruptionError, DatapipeError, UserError
from datapipe.following.additions import mixture_of
from datapipe.following.follow import Follower
from datapipe.following.watch import Watch
from datapipe.index.takedown import make_index
from datapipe.inspect.text_export import parts_of_text
from datapipe.ledger.hold import Hold
from datapipe.loader import Loader
from datapipe.outages import Outage, OutageError
from datapipe.report.snapshot_list import cleaning_lines
from datapipe.shards.additions import published_additions
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.shards.removed import read_removed
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from datapipe.watching.status import read_status
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.cli_processes import start, wait_until
from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium

STAGES = "stages:\n  - normalize.unicode\n  - filter.length: {min_chars: 40}\n  - dedup.exact\n  - dedup.minhash: {}\n"
TAIL = (
    "validation: 3%\ntokenizer: {train: {vocab_size: 400}}\npack: {sequence_length: 64}\n"
    "execution: {split_bytes: 16KiB, bucket_bytes: 64KiB, check_disk: false}\n"
)
WITHOUT_TOKENIZER = TAIL.replace("tokenizer: {train: {vocab_size: 400}}\n", "")


class Corpus:
    """A folder in which files appear, and a mixture of it.

    Attributes:
        lines, events: what the follower said, to people and to programs.
    """

    def __init__(self, folder: Path, tail: str = TAIL, stages: str = STAGES) -> None:
        self.folder, self.root = folder, Root(str(folder / "out"))
        (folder / "in").mkdir(parents=True)
        self.path = runs.write_mixture(folder, f"  web:\n    path: {folder}/in/*.jsonl\n", stages, tail)
        self.lines: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.num_runs = 0

    def add(self, *numbers: int) -> None:
        for number in numbers:
            corpora.write_jsonl(self.folder / f"in/{number:02}.jsonl", corpora.documents(number, 50))

    def run_one(self, mixture, only) -> None:
        self.num_runs += 1
        problem = execute(Run(mixture, runs.InProcess, runs.Watcher(), only=only))
        if problem is not None:
            raise problem

    def follow(self, num_looks: int = 2, **options) -> Snapshot:
        self.follower(**{"wait": lambda seconds: None, **options}).follow(num_looks)
        return self.snapshot

    def follower(self, **options) -> Follower:
        def notice(event: str, **facts: Any) -> None:
            self.events.append((event, facts))

        about = self.lines.append, whole_report, lambda root, snapshot: None, notice
        return Follower(load_mixture(self.path), 1.0, self.run_one, *about, **options)

    @property
    def snapshot(self) -> Snapshot:
        snapshot = read_snapshot(self.root)
        assert isinstance(snapshot, Snapshot)
        return snapshot


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    made = Corpus(tmp_path)
    made.add(0, 1)
    return made


def test_what_is_new_becomes_a_part_and_nothing_before_is_touched(corpus):
    first = corpus.follow()
    before = {shard.path: (corpus.folder / "out" / shard.path).stat() for shard in first.shards}
    corpus.add(2, 3)
    second = corpus.follow()
    corpus.add(4)
    third = corpus.follow()
    assert third.shards[: len(second.shards)] == second.shards
    assert second.shards[: len(first.shards)] == first.shards
    assert [sorted({shard.part or 0 for shard in each.shards}) for each in (first, second, third)] == [[0], [0, 1], [0, 1, 2]]
    assert {shard.split for shard in third.shards[len(first.shards) :]} == {"train"}
    assert third.tokenizer == first.tokenizer
    published = [(facts["snapshot"], facts["tokens"]) for event, facts in corpus.events if event == "published"]
    tokens = [sum(shard.tokens for shard in each.shards) for each in (first, second, third)]
    assert published == [(second.fingerprint, tokens[1] - tokens[0]), (third.fingerprint, tokens[2] - tokens[1])]
    assert [facts["files"] for event, facts in corpus.events if event == "adding"] == [2, 1]
    for path, was in before.items():
        now = (corpus.folder / "out" / path).stat()
        assert (now.st_mtime_ns, now.st_ino) == (was.st_mtime_ns, was.st_ino)
    assert not verify_snapshot(corpus.root, corpus.snapshot)
    assert corpus.num_runs == 3


@pytest.mark.slow
def test_documents_kept_are_those_of_one_run_over_all_in_the_order_of_the_additions(tmp_path, corpus):
    """Near and exact duplicates of earlier documents are dropped, as one run that prefers earlier ones would."""
    corpus.follow()
    corpora.write_jsonl(corpus.folder / "in/50.jsonl", corpora.documents(0, 50) + corpora.documents(9, 20))
    added = corpus.follow()
    alone = Corpus(tmp_path / "alone")
    corpora.write_jsonl(alone.folder / "in/50.jsonl", corpora.documents(9, 20))
    expected = alone.follow()
    new = sum(shard.documents for shard in added.shards if shard.part)
    assert 0 < new <= sum(shard.documents for shard in expected.shards)
    again = corpora.documents(0, 50)
    assert new < len(again)


def test_an_addition_of_duplicates_alone_is_published_without_rows(corpus):
    first = corpus.follow()
    (corpus.folder / "in/99.jsonl").write_bytes((corpus.folder / "in/00.jsonl").read_bytes())
    second = corpus.follow()
    assert second.shards == first.shards
    assert second.fingerprint != first.fingerprint  # its file is known now
    assert corpus.follow().fingerprint == second.fingerprint
    assert corpus.num_runs == 2
    corpus.add(2)
    third = corpus.follow()
    assert {shard.part or 0 for shard in third.shards} == {0, 1}
    folders = [f"{corpus.root.url}/additions/{number:05}" for number in (1, 2)]
    assert [corpus.root.child_url(folder) for folder in published_additions(corpus.root, corpus.snapshot)] == folders
    later = mixture_of(load_mixture(corpus.path), corpus.root, Addition(number=3, base="", files={"web": ()}))
    against = [use.options["against"] for use in later.stages if use.name.startswith("dedup.")]
    assert against == [[corpus.root.url, *folders]] * 2


def test_a_file_is_left_alone_until_two_looks_find_it_the_same(corpus):
    first = corpus.follow()
    corpus.add(2)
    assert corpus.follow(num_looks=1).fingerprint == first.fingerprint
    assert corpus.lines[-1] == "waiting for new files; web/02.jsonl may still be written"

    def wait(seconds: float) -> None:
        with open(corpus.folder / "in/02.jsonl", "ab") as stream:
            stream.write(corpora.jsonl(corpora.documents(77, 1)))

    follower = corpus.follower(wait=wait)
    follower.follow(5)
    assert corpus.snapshot.fingerprint == first.fingerprint
    assert corpus.follow().fingerprint != first.fingerprint


def test_a_file_that_changes_or_goes_after_it_was_read_is_told_once(corpus):
    first = corpus.follow()
    os.remove(corpus.folder / "in/00.jsonl")
    with open(corpus.folder / "in/01.jsonl", "ab") as stream:
        stream.write(corpora.jsonl(corpora.documents(77, 1)))
    assert corpus.follow(4).fingerprint == first.fingerprint
    told = [line.partition(".jsonl ")[2].partition(".")[0] for line in corpus.lines if ".jsonl" in line]
    assert told == ["changed since it was read", "is gone"]


@pytest.mark.slow
def test_what_is_new_waits_until_there_is_enough_or_the_time_has_come(tmp_path):
    corpus = Corpus(tmp_path, tail=TAIL + "publish: {min_tokens: 1M, or_every: 6h}\n")
    corpus.add(0, 1)
    first = corpus.follow()
    corpus.add(2)
    assert corpus.follow(3).fingerprint == first.fingerprint
    assert "waiting for 1,000,000 tokens or 20" in corpus.lines[-1]
    published_at = (corpus.folder / "out/snapshots" / first.fingerprint / "publication.json").stat().st_mtime
    assert corpus.follow(now=lambda: published_at + 5 * 3600).fingerprint == first.fingerprint
    assert corpus.follow(now=lambda: published_at + 7 * 3600).fingerprint != first.fingerprint


def test_a_run_that_is_stopped_goes_on_with_the_same_files(corpus, tmp_path):
    corpus.follow()
    corpus.add(2)
    chosen = begin_addition(corpus.root, corpus.snapshot.fingerprint, {"web": ("02.jsonl",)})
    corpus.add(3)  # after the choice
    stopped = corpus.follow(1)
    assert {shard.part or 0 for shard in stopped.shards} == {0, 1}
    assert begun_addition(corpus.root, stopped.fingerprint) is None
    other = Corpus(tmp_path / "other")
    other.add(0, 1)
    other.follow()
    other.add(2)
    other.follow()
    assert [shard.checksum for shard in other.snapshot.shards] == [shard.checksum for shard in stopped.shards]
    assert chosen.number == 1


@pytest.mark.slow
def test_files_of_a_choice_that_are_gone_are_chosen_anew(corpus):
    first = corpus.follow()
    begin_addition(corpus.root, first.fingerprint, {"web": ("gone.jsonl",)})
    corpus.add(2)
    second = corpus.follow()
    assert {shard.path.split("/")[1] for shard in second.shards if shard.part} == {"00002"}
    assert any("chosen anew" in line for line in corpus.lines)


@pytest.mark.slow
def test_an_addition_that_was_built_and_never_published_is_compared_with_nothing(corpus, monkeypatch):
    """It was killed before it was published, and one of its files went; both of its names come again, one with other text."""
    corpus.follow()
    corpus.add(2)
    lost = corpora.documents(77, 20)
    corpora.write_jsonl(corpus.folder / "in/03.jsonl", lost)

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("datapipe.following.follow.publish_addition", killed)
        with pytest.raises(KeyboardInterrupt):
            corpus.follow()
    (corpus.folder / "in/03.jsonl").unlink()
    corpus.follow()
    corpora.write_jsonl(corpus.folder / "in/03.jsonl", corpora.documents(88, 20))
    corpus.follow()
    corpora.write_jsonl(corpus.folder / "in/04.jsonl", lost)
    before = sum(shard.documents for shard in corpus.snapshot.shards)
    after = sum(shard.documents for shard in corpus.follow().shards)
    assert published_additions(corpus.root, corpus.snapshot) == [f"additions/{number:05}" for number in (2, 3, 4)]
    assert after > before


def test_a_choice_that_was_edited_is_refused(corpus):
    first = corpus.follow()
    begin_addition(corpus.root, first.fingerprint, {"web": ("02.jsonl",)})
    (corpus.folder / "out/additions/00001/files.json").write_text('{"base": 3, "files": [1]}')
    with pytest.raises(DatapipeError, match="was edited or damaged"):
        corpus.follow()


@pytest.mark.slow
def test_a_whole_run_does_not_pack_parts_anew_unless_it_is_told_to(corpus):
    corpus.follow()
    corpus.add(2)
    followed = corpus.follow()
    with pytest.raises(UserError, match="--repack"):
        Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher()).execute()
    assert corpus.snapshot.fingerprint == followed.fingerprint
    Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher(), repacks=True).execute()
    assert {shard.part for shard in corpus.snapshot.shards} == {None}
    corpus.add(3)
    later = corpus.follow()
    assert {shard.path.split("/")[1] for shard in later.shards if shard.part} == {"00002"}
    assert not verify_snapshot(corpus.root, corpus.snapshot)


def test_an_addition_has_the_sources_with_new_files_alone_and_their_own_stages_are_frozen(corpus):
    corpus.follow()
    data = {
        "name": "a",
        "output": corpus.root.url,
        "sources": {"web": {"path": "w/*", "stages": ["dedup.exact"], "weight": 7}, "code": {"path": "c/*"}},
    }
    addition = begin_addition(corpus.root, corpus.snapshot.fingerprint, {"web": ("02.jsonl",)})
    mixture = mixture_of(load_mixture(data), corpus.root, addition)
    assert list(mixture.sources) == ["web"]
    [use] = mixture.stages_of("web")
    assert use.options["against"] == [corpus.root.url]
    assert mixture.weight_phases()[0].weights == {"web": 1}


def test_texts_of_additions_are_refused_and_not_left_out(corpus):
    corpus.follow()
    corpus.add(2)
    followed = corpus.follow()
    with pytest.raises(UserError, match=r"added to web in parts.*additions/00001"):
        parts_of_text(corpus.root, followed, None, None, lambda path: None)


@pytest.mark.slow
def test_cleaning_deletes_additions_that_nothing_needs_and_no_others(corpus):
    corpus.follow()
    corpus.add(2)
    followed = corpus.follow()
    assert clean(corpus.root, 1).additions == ()  # the newest snapshot has its shards
    assert not verify_snapshot(corpus.root, followed)
    corpus.add(3)
    assert corpus.follow().fingerprint != followed.fingerprint  # which reads the rows of the addition before
    last = begin_addition(corpus.root, corpus.snapshot.fingerprint, {"web": ("04.jsonl",)})
    assert clean(corpus.root, 1).additions == ()  # a run goes on with the last one
    Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher(), repacks=True).execute()
    assert plan_cleaning(corpus.root, 2).additions == tuple(  # an earlier snapshot has the others
        (path, size) for path, size in corpus.root.list_files("additions") if path.startswith(last.folder)
    )
    deleted = clean(corpus.root, 1)
    assert {path.split("/")[1] for path, _ in deleted.additions} == {"00001", "00002", "00003"}
    assert {path.split("/")[1] for path, _ in corpus.root.list_files("additions")} == {"work"}
    assert not verify_snapshot(corpus.root, corpus.snapshot)
    assert any("additions that no kept snapshot has" in line for line in cleaning_lines(deleted))
    corpus.add(4)
    assert {shard.part for shard in corpus.follow().shards} == {None, 1}


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (TAIL.replace("{train: {vocab_size: 400}}", "none"), "tokenizer: none"),
        (TAIL.replace("sequence_length: 64", "sequence_length: [64, 128]"), "lists 2 lengths"),
        (WITHOUT_TOKENIZER + "mixture: {replay: {from: runs/old, share: 5%}}\n", "rows of other snapshots"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_runs(tmp_path, tail, message):
    corpus = Corpus(tmp_path, tail=tail)
    corpus.add(0)
    with pytest.raises(UserError, match=message):
        corpus.follow()
    assert corpus.num_runs == 0


def test_a_trainer_moves_with_the_corpus_and_its_batches_come_again(corpus):
    corpus.follow()
    loader = Loader(corpus.root.url, global_batch_size=4)
    batches = [next(loader)["input_ids"] for _ in range(5)]
    for number in (2, 3):
        corpus.add(number)
        corpus.follow()
        assert loader.advance() == corpus.snapshot.fingerprint
        batches += [next(loader)["input_ids"] for _ in range(40)]
    again = Loader(corpus.root.url, global_batch_size=4)
    again.load_state_dict(loader.state_dict())
    for step, batch in enumerate(batches):
        np.testing.assert_array_equal(again.batch(step)["input_ids"], batch)


@pytest.mark.slow
def test_command_that_is_killed_at_any_moment_publishes_the_same(tmp_path):
    expected = Corpus(tmp_path / "expected")
    expected.add(0, 1)
    expected.follow()
    expected.add(2)
    expected.follow()
    corpus = Corpus(tmp_path / "killed")
    corpus.add(0, 1)
    assert run_process(["run", str(corpus.path), "--workers", "1"]).returncode == 0
    corpus.add(2)
    moments = [
        (corpus.folder / "out/additions/00001/files.json").exists,
        lambda: any((corpus.folder / "out/additions/00001/work/ledger").glob("*.jsonl")),
        (corpus.folder / "out/additions/00001/snapshot.json").exists,
        lambda: any(shard.part for shard in corpus.snapshot.shards),
    ]
    for moment in moments:
        process = start(["run", str(corpus.path), "--workers", "1", "--follow", "0.2"])
        wait_until(lambda moment=moment, process=process: moment() or process.poll() is not None, "a moment")
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert [shard.checksum for shard in corpus.snapshot.shards] == [shard.checksum for shard in expected.snapshot.shards]
    assert not verify_snapshot(corpus.root, corpus.snapshot)


@pytest.mark.slow
def test_command_that_is_interrupted_while_it_waits_ends_at_once(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.add(0)
    process = start(["run", str(corpus.path), "--workers", "1", "--follow", "1000"])
    lines = iter(process.stdout.readline, "")
    assert any("waiting for new files" in line for line in lines)
    process.terminate()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Resume with the same command" in errors


@pytest.mark.slow
def test_command_tells_people_and_programs_of_additions(tmp_path):
    corpus, log = Corpus(tmp_path), tmp_path / "events.jsonl"
    corpus.add(0)
    process = start(["run", str(corpus.path), "--follow", "0.2", "--metrics-port", "0", "--log-json", str(log)])
    try:
        address = next(line for line in iter(process.stderr.readline, "") if "figures for Prometheus" in line).split()[-1]
        lines = iter(process.stdout.readline, "")
        assert any("waiting for new files" in line for line in lines)
        corpus.add(1)
        added = list(takewhile(lambda line: "published snapshot" not in line, lines))
        assert any("documents kept" in line for line in added)
        assert not any("Loader(" in line for line in added)  # an addition is not what one loads
        assert any("waiting for new files" in line for line in lines)
        with urlopen(address) as answer:  # served while it waits
            figures = answer.read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert 'datapipe_run_documents_total{fate="read",source="web"} 100.0' in figures
    assert "datapipe_run_published_total 2.0" in figures
    assert "datapipe_run_looked_timestamp_seconds 1" in figures
    events = [json.loads(line) for line in log.read_text().splitlines()]
    told = [event["event"] for event in events if event["event"] in ("run_started", "run_finished", "adding", "published")]
    assert told == ["run_started", "run_finished", "adding", "run_started", "run_finished", "published"]
    assert events[-1]["event"] == "waiting"
    told = datapipe(["status", str(corpus.root.local)]).stdout  # of the first run and of the addition
    [of_source] = [line for line in told.splitlines() if line.startswith("web: ")]
    assert of_source.startswith("web: 100 read")


@pytest.mark.slow
def test_documents_that_the_mixture_names_are_taken_down_between_additions(corpus):
    """The list is read at every look; a document of a file that comes later is taken down with it; an addition that was begun
    before a takedown goes on."""
    listed = corpus.folder / "gone.txt"
    listed.write_text("")
    corpus.path.write_text(corpus.path.read_text() + f"takedown: {listed}\n")
    first = corpus.follow()
    assert first.removed is None
    listed.write_text("web/00.jsonl:0\nweb/07.jsonl:0\nweb/00.jsonl:1")  # the last line is not whole
    second = corpus.follow()
    assert second.removed is not None
    assert (second.removed.documents, second.shards) == (1, first.shards)
    assert any(line.endswith("without 1 document taken down") for line in corpus.lines)
    assert sum("web/07.jsonl:0: no file of a snapshot has it so far" in line for line in corpus.lines) == 1
    corpus.add(7)
    third = corpus.follow()
    assert third.removed is not None
    assert third.removed.documents == 2
    assert third.removed.takedowns[:1] == second.removed.takedowns
    (shard,) = {shard.part for shard in third.shards} - {None, 0}
    assert shard == 1
    corpus.add(8)
    begun = begin_addition(corpus.root, third.fingerprint, {"web": ("08.jsonl",)})
    take_down(corpus.root, [f"web/01.jsonl:{_second_position(corpus, '01.jsonl')}"])
    assert begun_addition(corpus.root, corpus.snapshot.fingerprint) == begun
    fourth = corpus.follow()
    assert fourth.removed is not None
    assert fourth.removed.documents == 3
    assert corpus.num_runs == 3
    told = [facts["taken_down"] for event, facts in corpus.events if event == "published"]
    assert told == [1, 1, 0]  # of the list, with an addition, and none: the third was taken down by hand
    assert {shard.part or 0 for shard in fourth.shards} == {0, 1, 2}
    with closing(Loader(corpus.root.url, global_batch_size=4, fields=("document_keys",))) as loader:
        gone = {key.tobytes() for key in read_removed(corpus.root, fourth).keys}
        keys = {bytes(key) for step in range(60) for key in loader.batch(step)["document_keys"].reshape(-1, 16)}
    assert not keys & gone
    listed.write_text("web/00.jsonl:0\nweb/07.jsonl:0\n")
    repacked = _repacked(corpus)
    assert repacked.removed == fourth.removed
    assert not verify_snapshot(corpus.root, repacked)


def _repacked(corpus: Corpus) -> Snapshot:
    run = Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher(), repacks=True)
    assert execute(run) is None
    return corpus.snapshot


@pytest.mark.slow
def test_a_list_of_new_files_is_followed_line_by_line(tmp_path):
    """A file is added at the first look that finds its line whole and the file there; the list may be cut anywhere."""
    corpus = Corpus(tmp_path)
    listed = tmp_path / "new.txt"
    corpus.path.write_text(corpus.path.read_text().replace(f"{tmp_path}/in/*.jsonl", f"'@{listed}'"))
    corpus.add(0)
    listed.write_text("in/00.jsonl\n")
    first = corpus.follow(num_looks=1)
    corpus.add(1)
    with listed.open("a") as file:
        file.write("in/01.json")  # cut within a name
    assert corpus.follow(num_looks=1).fingerprint == first.fingerprint
    with listed.open("a") as file:
        file.write("l\nin/02.jsonl\n")
    second = corpus.follow(num_looks=1)
    assert {shard.part or 0 for shard in second.shards} == {0, 1}
    assert corpus.follow(num_looks=1).fingerprint == second.fingerprint
    assert corpus.lines[-1].startswith(f"waiting for new files; @{listed}, line 3: {tmp_path}/in/02.jsonl may still be written")
    corpus.add(2)
    third = corpus.follow(num_looks=1)
    assert {shard.part or 0 for shard in third.shards} == {0, 1, 2}
    assert corpus.num_runs == 3


@pytest.mark.slow
def test_sources_that_cannot_be_listed_for_a_while_are_waited_for(corpus):
    corpus.follow()
    hidden = corpus.folder / "hidden"
    (corpus.folder / "in").rename(hidden)
    waited = []

    def come_back(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            hidden.rename(corpus.folder / "in")
            corpus.add(2)

    corpus.follower(wait=come_back).follow(num_looks=5)
    assert {shard.part or 0 for shard in corpus.snapshot.shards} == {0, 1}
    assert sum(line.startswith("looking again in 1 s: ") and "matches no file" in line for line in corpus.lines) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report.json", "snapshot.json"])
def test_a_publication_that_is_killed_before_any_of_its_files_is_finished(corpus, tmp_path, monkeypatch, name):
    corpus.follow()
    corpus.add(2)
    replace = Hold.replace

    def killed(hold, files):
        paths = list(files)
        if "mixture.yaml" not in paths:  # the addition's own
            return replace(hold, files)
        replace(hold, {path: files[path] for path in paths[: paths.index(name)]})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Hold, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            corpus.follow()
    other = Corpus(tmp_path / "other")
    other.add(0, 1)
    other.follow()
    other.add(2)
    expected = [shard.checksum for shard in other.follow().shards]
    assert [shard.checksum for shard in corpus.follow().shards] == expected


@pytest.mark.slow
def test_a_run_over_all_files_that_was_stopped_while_it_published_is_finished_first(corpus, monkeypatch):
    corpus.follow()
    corpus.add(2)

    def killed(hold, files):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Hold, "replace", killed)
        assert isinstance(execute(Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher())), KeyboardInterrupt)
    with pytest.raises(UserError, match=r"stopped while it published, among them web/02\.jsonl"):
        corpus.follow()
    assert execute(Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher())) is None
    corpus.add(3)
    assert {shard.part or 0 for shard in corpus.follow().shards} == {0, 1}


@pytest.mark.slow
def test_a_repack_that_is_stopped_leaves_additions_compared(corpus, monkeypatch):
    corpus.follow()
    corpus.add(2)
    before = corpus.follow()

    def stopped(driver, *given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_execute", stopped)
        repack = Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher(), repacks=True)
        assert isinstance(execute(repack), KeyboardInterrupt)
    (corpus.folder / "in/03.jsonl").write_bytes((corpus.folder / "in/02.jsonl").read_bytes())
    assert corpus.follow().shards == before.shards
    assert not plan_cleaning(corpus.root, 1).additions


@pytest.mark.slow
def test_a_damaged_manifest_is_restored_and_takedowns_stay(corpus):
    corpus.follow()
    corpus.add(2)
    corpus.follow()
    taken_down = take_down(corpus.root, [f"web/02.jsonl:{_second_position(corpus)}"]).snapshot
    path = corpus.folder / "out/snapshot.json"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="--repack"):
        Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher()).execute()
    assert corpus.follow().fingerprint == taken_down.fingerprint
    path.write_bytes(path.read_bytes()[:-40])
    Run(load_mixture(corpus.path), runs.InProcess, runs.Watcher(), repacks=True).execute()
    assert corpus.snapshot.removed is not None


def _second_position(corpus: Corpus, file: str = "02.jsonl") -> int:
    """The position of the second document of a file; of 01.jsonl and 02.jsonl it is kept."""
    return len((corpus.folder / "in" / file).read_bytes().splitlines(keepends=True)[0])


@pytest.mark.slow
def test_an_addition_by_itself_leaves_out_what_was_taken_down(corpus):
    """It can be loaded and exported as any output."""
    corpus.follow()
    corpus.add(2)
    corpus.follow()
    done = take_down(corpus.root, [f"web/02.jsonl:{_second_position(corpus)}", "web/02.jsonl:3"])
    assert done.rowless == ("web/02.jsonl:3",)
    addition = corpus.root.within("additions/00001")
    assert len(read_removed(addition, read_snapshot(addition))) == 1
    assert not verify_snapshot(addition, read_snapshot(addition))
    assert take_down(corpus.root, [f"web/02.jsonl:{_second_position(corpus)}"]).num_new == 0
    assert len(read_removed(addition, read_snapshot(addition))) == 1


@pytest.mark.slow
def test_later_runs_compare_with_the_additions_of_an_output_too(corpus, tmp_path):
    corpus.follow()
    corpus.add(2)
    corpus.follow()
    make_index([corpus.root.url], str(tmp_path / "index"))
    for name, against in (("of", corpus.root.url), ("by", str(tmp_path / "index"))):
        stages = (
            f"stages:\n  - normalize.unicode\n  - filter.length: {{min_chars: 40}}\n  - dedup.exact: {{against: {against}}}\n"
        )
        later = Corpus(tmp_path / name, stages=stages)
        corpora.write_jsonl(later.folder / "in/later-0.jsonl", corpora.documents(1, 50)[:5] + corpora.documents(2, 50)[:5])
        corpora.write_jsonl(later.folder / "in/later-1.jsonl", corpora.documents(8, 20))
        alone = Corpus(tmp_path / f"{name}-alone", stages=stages)
        corpora.write_jsonl(alone.folder / "in/later-1.jsonl", corpora.documents(8, 20))
        counts = [sum(shard.documents for shard in each.follow().shards) for each in (later, alone)]
        assert counts[0] == counts[1] > 0


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_waited_for(corpus, monkeypatch):
    corpus.follow()
    corpus.add(2)
    look, left = Watch.look, [2]

    def failing(watch, snapshot):
        left[0] -= 1
        if left[0] >= 0:
            raise OutageError(Outage(where="s3://crawl/in", cause="no answer"))
        return look(watch, snapshot)

    monkeypatch.setattr(Watch, "look", failing)
    assert {shard.part or 0 for shard in corpus.follow(4).shards} == {0, 1}
    assert sum("looking again in 1 s: s3://crawl/in: no answer" in line for line in corpus.lines) == 1


@pytest.mark.slow
def test_documents_taken_down_while_an_addition_is_built_let_it_be_built_again(corpus):
    corpus.follow()
    corpus.add(2)
    run_one, calls = corpus.run_one, []

    def disturbed(mixture, only):
        calls.append(only)
        if len(calls) == 1:
            take_down(corpus.root, ["web/00.jsonl:0"])
            raise CorruptionError("a file of an index is gone")
        run_one(mixture, only)

    corpus.run_one = disturbed
    snapshot = corpus.follow(3)
    assert {shard.part or 0 for shard in snapshot.shards} == {0, 1}
    assert snapshot.removed is not None
    assert len(calls) == 2


@pytest.mark.slow
def test_two_followers_of_one_output_are_refused_and_status_tells_of_one(corpus):
    first = corpus.follower(wait=lambda seconds: None)
    told = []

    def second(mixture, only):
        told.append(read_status(corpus.root)["following"])
        with pytest.raises(UserError, match="another run is using this output"):
            corpus.follower().follow(1)
        corpus.run_one(mixture, only)

    corpus.follow(1)
    corpus.add(2)
    first.run_one = second
    first.follow(2)
    assert "adding 1 new file as part 1 of web" in told[0]["doing"]
    assert {shard.part or 0 for shard in corpus.snapshot.shards} == {0, 1}


@pytest.mark.parametrize(
    ("before", "after", "name"), [("400", "300", "tokenizer.train"), ("64", "128", "pack.sequence_length")]
)
def test_what_rows_were_made_with_cannot_change_while_following(corpus, before, after, name):
    corpus.follow(1)
    corpus.path.write_text(corpus.path.read_text().replace(f": {before}}}", f": {after}}}"))
    corpus.add(2)
    with pytest.raises(UserError, match=f"--follow: {name} was .*{before}"):
        corpus.follow()
    assert corpus.num_runs == 1


@pytest.mark.slow
def test_a_line_of_takedowns_that_names_nothing_stops_no_other(corpus):
    listed = corpus.folder / "gone.txt"
    listed.write_text("web/00.jsonl:0\ngarbage line\n")
    corpus.path.write_text(corpus.path.read_text() + f"takedown: {listed}\n")
    with pytest.raises(UserError, match=r"gone\.txt, line 2: 'garbage line': expected"):
        corpus.follow()
    listed.write_text("web/00.jsonl:0\n")
    corpus.follow()
    listed.write_text("garbage line\nweb/00.jsonl:0\nweb/01.jsonl:0\n")
    corpus.add(2)
    snapshot = corpus.follow(3)
    assert snapshot.removed is not None
    assert snapshot.removed.documents == 2
    assert {shard.part or 0 for shard in snapshot.shards} == {0, 1}
    assert sum("gone.txt, line 1: 'garbage line'" in line for line in corpus.lines) == 1
