"""Files under work/ that go while the run goes on: the snapshot is the same, nothing runs twice, and what needs a file that is
gone makes it again, or is refused with a reason."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from datapipe.config import load_mixture
from datapipe.engine.following.follow import Follower
from datapipe.engine.freeing import Freeing
from datapipe.engine.history import why
from datapipe.engine.run import Run, planned
from datapipe.errors import UserError
from datapipe.explore.documents import Inspector
from datapipe.records.ledger import Ledger
from datapipe.records.names import ATTEMPTS, WORK
from datapipe.records.outputs import OutputFile, Record
from datapipe.shards.manifest import read_snapshot
from datapipe.snapshots.export.text import parts_of_text
from datapipe.snapshots.index.write import open_index
from datapipe.snapshots.takedown import take_down
from datapipe.snapshots.verify import verify_snapshot
from datapipe.steps.reasons import FREED
from datapipe.storage.root import Root
from tests.support import corpora, dedup_runs, runs
from tests.support.ledger_files import stored_records

pytestmark = pytest.mark.medium

NONE, INSPECT, RESUME = ([f"execution.keep_work={level}"] for level in ("none", "inspect", "resume"))
LEFT = {"measured.arrow", "borderline.parquet", "survivors.arrow", "used-ids.bin", "tokenizer.json"}


def _run(mixture: Path, overrides: Sequence[str] = (), **options: Any) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, **{"make_engine": runs.InProcess, **options})


def _files(root: Root) -> dict[str, int]:
    return dict(root.list_files(ATTEMPTS))


def _names(root: Root) -> set[str]:
    return {path.rpartition("/")[2] for path in _files(root)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return dedup_runs.write_corpus(tmp_path_factory.mktemp("dedup"), num_pages=60)


@pytest.fixture(scope="module")
def kept(tmp_path_factory, corpus) -> runs.Finished:
    """A run that keeps everything, with all four stages of deduplication, in rounds."""
    return _run(dedup_runs.write_mixture(tmp_path_factory.mktemp("kept"), corpus))


@pytest.fixture(scope="module")
def freed(tmp_path_factory, corpus) -> runs.Finished:
    return _run(dedup_runs.write_mixture(tmp_path_factory.mktemp("freed"), corpus), NONE)


@pytest.fixture
def mixture(tmp_path, corpus) -> Path:
    return dedup_runs.write_mixture(tmp_path, corpus)


@pytest.fixture
def again(tmp_path, mixture, freed) -> Root:
    """A copy of the output of `freed`, which is that of `mixture`."""
    shutil.copytree(Root(freed.mixture.output).path(), tmp_path / "out")
    return Root(str(tmp_path / "out"))


def test_none_leaves_what_the_report_counts_and_publishes_the_same(kept, freed):
    root = Root(freed.mixture.output)
    assert freed.snapshot == kept.snapshot
    assert verify_snapshot(root, freed.snapshot) == []
    assert _names(root) <= LEFT
    assert not root.exists(f"{WORK}/index.json")
    assert not [path for path in Path(root.path(ATTEMPTS)).rglob("*") if path.is_dir() and not any(path.iterdir())]


def test_none_repeats_nothing_when_the_run_is_done(again, mixture, freed):
    before = _files(again)
    finished = _run(mixture, NONE)
    assert (finished.watcher.records, finished.snapshot, _files(again)) == ([], freed.snapshot, before)
    finished = _run(mixture, RESUME)
    assert (finished.watcher.records, finished.snapshot, _files(again)) == ([], freed.snapshot, before)


@pytest.mark.slow
def test_files_go_while_the_run_goes_on(mixture, kept):
    root, most, seen = Root(str(mixture.parent / "out")), 0, dict[str, set[str]]()

    def look(record: Record) -> None:
        nonlocal most
        most = max(most, sum(_files(root).values()))
        seen[record.step] = {path.partition(f"{ATTEMPTS}/")[2].partition("/")[0] for path in _files(root) if _is_unread(path)}

    _run(mixture, NONE, watcher=runs.Watcher(on_commit=look))
    assert most < sum(_files(Root(kept.mixture.output)).values()) / 2
    assert not [step for step in seen["tokenizer/train"] if step.startswith("dedup.")]
    assert not [step for step in seen["dedup.substring/match"] if step.startswith(("web.read", "dedup.exact", "dedup.minhash"))]


def _is_unread(path: str) -> bool:
    return path.rpartition("/")[2] not in LEFT


@pytest.mark.slow
def test_documents_go_with_their_last_reader_before_the_step_ends(mixture, monkeypatch):
    monkeypatch.setattr("datapipe.engine.freeing._DUE_FILES", 1)
    monkeypatch.setattr("datapipe.engine.attempts.MOST_RECORDS", 1)  # each record is committed by itself
    root, left = Root(str(mixture.parent / "out")), []

    def look(record: Record) -> None:
        if record.step == "web/apply-dedup.exact":
            left.append(
                sum(path.startswith(f"{ATTEMPTS}/web.read/") and path.endswith("documents.arrow") for path in _files(root))
            )

    _run(mixture, NONE, watcher=runs.Watcher(on_commit=look))
    assert left and left[-1] < left[0]


@pytest.mark.parametrize("level", [NONE, pytest.param(INSPECT, marks=pytest.mark.slow)], ids=["none", "inspect"])
def test_a_run_that_is_stopped_anywhere_runs_no_task_twice(mixture, kept, level):
    def stop(record: Record) -> None:
        if len(watcher.records) % 7 == 0:
            raise KeyboardInterrupt

    ran: list[str] = []
    for _ in range(100):
        watcher = runs.Watcher(on_commit=stop)
        try:
            finished = _run(mixture, level, watcher=watcher)
        except KeyboardInterrupt:
            ran += [record.fingerprint for record in watcher.records]
        else:
            break
    ran += [record.fingerprint for record in watcher.records]
    assert finished.snapshot == kept.snapshot
    assert len(ran) == len(set(ran))
    assert stored_records(mixture.parent / "out").keys() == {
        task.fingerprint for step in kept.plan.steps for task in step.tasks or ()
    }


@pytest.mark.slow
def test_files_whose_deletion_was_killed_go_when_the_next_run_starts(mixture, kept, monkeypatch):
    def killed(self: Root, relative: str) -> None:
        if relative.startswith(ATTEMPTS):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Root, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            _run(mixture, NONE)
    root = Root(str(mixture.parent / "out"))
    ledger = Ledger(root)
    ledger.load()
    noted = [path for path in _files(root) if ledger.is_freed(path)]
    assert noted
    finished = _run(mixture, NONE)
    assert finished.snapshot == kept.snapshot
    assert not set(noted) & _files(root).keys()


@pytest.mark.slow
def test_a_further_sequence_length_runs_what_was_freed_again(again, mixture, corpus, tmp_path):
    lengths = [*NONE, "pack.sequence_length=[64, 32]"]
    request, plan = planned(load_mixture(mixture, lengths))
    assert why(again, request, plan)["web/read"] == [FREED]
    grown = _run(mixture, lengths)
    fresh = _run(dedup_runs.write_mixture(tmp_path / "fresh", corpus), lengths)
    assert grown.snapshot == fresh.snapshot
    assert "web/read" in grown.watcher.steps and "web/pack" not in grown.watcher.steps
    assert "tokenizer/train" not in grown.watcher.steps
    assert verify_snapshot(again, grown.snapshot) == []
    assert _names(again) <= LEFT
    assert _run(mixture, lengths).watcher.records == []


@pytest.mark.slow
def test_another_tokenizer_runs_what_was_freed_again_even_when_it_is_killed(again, mixture, corpus, tmp_path):
    changed = [*NONE, "tokenizer.train.vocab_size=320"]

    def stop(record: Record) -> None:
        if record.step == "dedup.minhash/decisions":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(mixture, changed, watcher=runs.Watcher(on_commit=stop))
    finished = _run(mixture, changed)
    assert finished.snapshot == _run(dedup_runs.write_mixture(tmp_path / "fresh", corpus), changed).snapshot
    assert "web/read" not in finished.watcher.steps
    assert _names(again) <= LEFT


@pytest.mark.slow
def test_inspect_keeps_documents_with_their_facts_and_rows_to_compare_with(mixture, kept):
    finished = _run(mixture, INSPECT)
    assert finished.snapshot == kept.snapshot
    root = Root(finished.mixture.output)
    own, whole = Inspector.open(root.url), Inspector.open(Root(kept.mixture.output).url)
    for outcome in ("kept", "dropped"):
        documents = own.find(outcome, count=30)
        assert documents and documents == whole.find(outcome, count=30)
    assert {part.source for part in parts_of_text(root, finished.snapshot, None, None)} == {"web", "books"}
    open_index(root.url)
    assert sum(_files(root).values()) < sum(_files(Root(kept.mixture.output)).values()) * 0.9
    relabelled = _run(mixture, [*INSPECT, "tokenizer.train.vocab_size=320"])
    assert {step.partition("/")[2] for step in relabelled.watcher.steps} == {"sample", "train", "tokenize", "pack"}


@pytest.mark.slow
def test_what_none_has_deleted_is_named_by_the_commands_that_need_it(again, mixture, tmp_path):
    with pytest.raises(UserError, match=r"keep_work: none.*keep_work=inspect"):
        Inspector.open(again.url).find("dropped")
    with pytest.raises(UserError, match=r"has lost the texts.*tokenizer=none"):
        parts_of_text(again, read_snapshot(again), None, None)
    with pytest.raises(UserError, match=r"no index here.*keep_work: inspect"):
        open_index(again.url)
    taken = _run(mixture, [*NONE, "tokenizer=none"])
    assert taken.snapshot.shards and "web/write" in taken.watcher.steps


def test_a_takedown_after_none_leaves_documents_out(again, mixture):
    snapshot = read_snapshot(again)
    name = next(f"web/{path}:0" for path in ("a.jsonl", "b.jsonl", "c.jsonl"))
    after, done = take_down(again, [name])
    assert done.num_new == 1 and after.fingerprint != snapshot.fingerprint
    assert verify_snapshot(again, after) == []


@pytest.mark.slow
def test_a_shard_that_is_gone_is_packed_again_after_its_committed_file_was_freed(again, mixture, freed):
    lost = freed.snapshot.shards[0].path
    Path(again.path(lost)).unlink()
    finished = _run(mixture, NONE)
    assert finished.snapshot == freed.snapshot
    assert verify_snapshot(again, finished.snapshot) == []
    assert _names(again) <= LEFT


@pytest.mark.slow
def test_none_frees_no_files_of_another_snapshot_or_of_an_index(tmp_path, corpus):
    mixture = dedup_runs.write_mixture(tmp_path, corpus)
    before = _run(mixture)
    root, files = Root(before.mixture.output), _files(Root(before.mixture.output))
    _run(mixture, [*NONE, "tokenizer.train.vocab_size=320"])
    assert files.items() <= _files(root).items()
    index = open_index(root.url)
    assert all(index.root.size(rows.output.path) == rows.output.bytes for rows in index.rows)


def test_rows_of_another_output_stay(tmp_path, corpus, kept):
    files = _files(Root(kept.mixture.output))
    corpora.write_jsonl(tmp_path / "more/new.jsonl", [{"text": text} for text in dedup_runs.pages(8, 20)])
    stages = f"stages: [dedup.exact: {{against: [{kept.mixture.output}]}}]"
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/more/*.jsonl}}\n", stages, dedup_runs.TAIL)
    _run(mixture, NONE)
    assert _files(Root(kept.mixture.output)) == files


@pytest.mark.slow
def test_a_mixture_that_is_followed_keeps_its_rows(tmp_path):
    corpora.write_jsonl(tmp_path / "in/0.jsonl", corpora.documents(0, 30))
    sources = f"  web: {{path: {tmp_path}/in/*.jsonl}}\n"
    tail = runs.TAIL.replace("execution: {", "execution: {keep_work: LEVEL, ")

    def follower(level: str) -> Follower:
        path = runs.write_mixture(tmp_path, sources, "stages: [dedup.exact]", tail.replace("LEVEL", level))

        def run_one(mixture, generation) -> None:
            Run(mixture, runs.Watcher(), make_engine=runs.InProcess, generation=generation).execute()

        return Follower(load_mixture(path), 1.0, run_one, lambda event: None, wait=lambda seconds: None)

    with pytest.raises(UserError, match=r"keep_work: none deletes the rows that dedup\.exact .* inspect or resume"):
        follower("none").follow(1)
    follower("inspect").follow(1)
    for number, level in enumerate(("inspect", "none"), 1):  # none: the output has an index, whose rows stay
        corpora.write_jsonl(tmp_path / f"in/{number}.jsonl", corpora.documents(number, 30))
        follower(level).follow(2)
    root = Root(str(tmp_path / "out"))
    snapshot, index = read_snapshot(root), open_index(root.url)
    assert {shard.part or 0 for shard in snapshot.shards} == {0, 1, 2}
    assert all(index.root.size(rows.output.path) == rows.output.bytes for rows in index.rows)
    assert verify_snapshot(root, snapshot) == []


_RANKED = "stages: [dedup.exact, tests.support.ranked_stages:ByScore: {keep_share: 1/2}, dedup.minhash]"
_STRATA = "{by: score, bounds: [0.3, 0.6]}"


@pytest.mark.parametrize(
    ("stages", "overrides"),
    [
        pytest.param(_RANKED, ["validation=10%", f"sources.web.strata={_STRATA}"], id="shares-and-strata"),
        pytest.param("stages: [dedup.exact]", ["tokenizer=none", "documents.target_bytes=4KiB"], id="documents"),
        pytest.param("stages: []", ["pack.sequence_length=[64, 32]", "pack.method=concat"], id="lengths"),
    ],
)
@pytest.mark.slow
def test_every_kind_of_run_is_the_same_and_leaves_as_little(tmp_path, monkeypatch, stages, overrides):
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 2)  # rows and token rows are merged, and small files folded
    monkeypatch.setattr("datapipe.steps.fold.MOST_FILES", 2)
    for number in range(3):
        rows = [{**row, "score": (7 * index % 10) / 10} for index, row in enumerate(corpora.documents(number, 30))]
        corpora.write_jsonl(tmp_path / f"in/{number}.jsonl", rows)
    sources = f"  web: {{path: {tmp_path}/in/*.jsonl, keep: [score]}}\n"
    (tmp_path / "kept").mkdir()
    (tmp_path / "none").mkdir()
    kept = _run(runs.write_mixture(tmp_path / "kept", sources, stages, dedup_runs.TAIL), overrides)
    mixture = runs.write_mixture(tmp_path / "none", sources, stages, dedup_runs.TAIL)
    freed = _run(mixture, [*overrides, *NONE])
    assert freed.snapshot == kept.snapshot
    texts = {"training_texts.exchange", "held_out_texts.exchange"}
    folded = {name for left in (*LEFT, *texts) for name in (left, left.replace("used-ids", "used_ids"))}
    assert _names(Root(freed.mixture.output)) <= folded
    again = _run(mixture, [*overrides, *NONE])
    assert (again.watcher.records, again.told) == ([], kept.told)


def test_files_that_tasks_which_run_again_may_read_are_not_freed_before_the_next_plan(kept):
    freed: list[str] = []

    def free(files: Sequence[OutputFile], lock: Any) -> None:
        freed.extend(file.path for file in files)

    ledger: Any = SimpleNamespace(is_freed=lambda path: False, free=free)
    freeing = Freeing(ledger, cast(Any, None), "none", keeps_index=False)
    freeing.plan(kept.plan)
    freeing.again()
    freeing.free()
    assert freed == []
    freeing.plan(kept.plan)
    freeing.free()
    assert any(path.endswith("documents.arrow") for path in freed) and len(freed) == len(set(freed))
