"""Runs compared with earlier ones: decisions on new documents equal those of one run over all; the old run does not change."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import CorruptionError, UserError
from datapipe.exchange.ranges import HASH_SPACE, read_rows
from datapipe.exchange.tables import read_documents, read_table
from datapipe.explore.clusters import find_clusters
from datapipe.explore.documents import Inspector
from datapipe.explore.located import NOT_FOUND
from datapipe.metrics import TaskMetrics
from datapipe.snapshots.index.takedown import make_index, take_down
from datapipe.snapshots.index.write import open_index
from datapipe.steps.merge import MergeTask
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.killed_changes import content_of

pytestmark = pytest.mark.medium

TAIL = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}
pack: {sequence_length: 64}
shards: {target_bytes: 64KiB}
execution: {split_bytes: 16KiB, bucket_bytes: 64KiB}
"""
STAGES = {"dedup.exact": "keep: source_order", "dedup.minhash": "keep: source_order, components_bytes: 0"}
CUTTING = {
    "dedup.lines": "keep: source_order, unit: line, max_removed_share: 0.3",
    "dedup.substring": "keep: source_order, length: 12, max_removed_share: 0.6",
}
FORGOTTEN = corpora.prose(random.Random(77), 90)
"""A text of both runs without near duplicates; the old run kept one of its three copies."""

Finished = runs.Finished


def _texts() -> tuple[list[str], list[str]]:
    """Old and new texts: chains of near copies that go from one to the other and back, copies of documents that the old run
    drops, families of either alone, and documents that are like no other."""
    rng = random.Random(5)
    old, new = [], []
    for family in range(12):
        words = corpora.prose(rng, 160).split()
        for number in range(7):
            words[rng.randrange(len(words))] = f"word{rng.randrange(10**6)}"
            words[rng.randrange(len(words))] = f"word{rng.randrange(10**6)}"
            side = [old, new][(number + family) % 2] if family < 8 else [old, new][family % 2]
            side.append(" ".join(words))
    old += old[::5] + [corpora.prose(rng, 100) for _ in range(5)]
    new += old[::4] + new[::6] + [corpora.prose(rng, 100) for _ in range(5)]
    old += [FORGOTTEN] * 3
    new += [FORGOTTEN]
    rng.shuffle(old)
    rng.shuffle(new)
    return old, new


def _write(path: Path, texts: list[str]) -> None:
    corpora.write_jsonl(path, [{"text": text} for text in texts])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("against")
    for name, texts in zip(("old", "new"), _texts()):
        _write(folder / name / "0.jsonl", texts[::2])
        _write(folder / name / "1.jsonl", texts[1::2])
    return folder


def _run(
    folder: Path, name: str, sources: str, against: str = "", more: str = "", named: dict[str, str] = STAGES, **options: Any
) -> Finished:
    """A run of sources with global stages, each compared with the outputs or indexes `against`."""
    (folder / name).mkdir(exist_ok=True)
    listed = "".join(f"  {source}: {{path: {folder}/{source}/*.jsonl}}\n" for source in sources.split())
    held = f", against: {against}" if against else ""
    stages = "stages:\n" + "".join(f"  - {stage}: {{{given}{held}{more}}}\n" for stage, given in named.items())
    mixture = runs.write_mixture(folder / name, listed, stages, TAIL)
    return runs.run_mixture(mixture, **{"make_engine": runs.InProcess, **options})


@pytest.fixture(scope="module")
def old(folder: Path) -> Finished:
    return _run(folder, "of-old", "old")


@pytest.fixture(scope="module")
def new(folder: Path, old: Finished) -> Finished:
    return _run(folder, "of-new", "new", against=old.mixture.output)


@pytest.fixture(scope="module")
def made(folder: Path, old: Finished) -> str:
    """An index of the old output, which no test changes."""
    make_index([old.mixture.output], str(folder / "index"))
    return str(folder / "index")


def _drops(finished: Finished, source: str) -> dict[bytes, tuple[Any, ...]]:
    """Stage, rule, value and survivor of each dropped document of a source, by key."""
    root, found = Root(finished.mixture.output), {}
    for step in finished.plan.of_kind("map", source):
        for output in step.outputs("drops"):
            for batch in read_table(root, output):
                for row in batch.to_pylist():
                    found[row["key"]] = row["stage"], row["rule"], row["value"], row["survivor"]
    return found


def _kept(finished: Finished, source: str) -> dict[bytes, str]:
    """The text that the run kept of each document, by key."""
    [step] = finished.plan.of_kind("map", source)[-1:]
    rows = read_documents(Root(finished.mixture.output), step.outputs("documents"), TaskMetrics())
    return {key: text for batch in rows for key, text in zip(batch.keys.to_pylist(), batch.texts.to_pylist())}


def _decisions(finished: Finished, source: str) -> tuple[Any, Any]:
    return _drops(finished, source), _kept(finished, source)


def _keys(index: str, stage: int = 0, table: str = "texts") -> set[bytes]:
    opened = open_index(index)
    rows = read_rows(opened.root, opened.of_stage(stage)[table], (0,), (HASH_SPACE,))
    assert rows is not None
    return set(rows.column("key").to_pylist())


def _hash(source: str, path: str) -> bytes:
    return file_hash(source, path).to_bytes(8, "big")


OLDS = {_hash("old", f"{number}.jsonl"): f"{number}.jsonl" for number in range(2)}


def test_decisions_are_the_same_against_an_index(folder: Path, old: Finished, new: Finished, made: str) -> None:
    assert _decisions(_run(folder, "by-index", "new", made), "new") == _decisions(new, "new")
    assert not _run(folder, "by-index", "new", old.mixture.output).watcher.steps  # the same rows from elsewhere


@pytest.mark.slow
def test_decisions_are_the_same_against_rows_that_are_merged_first_or_there_twice(folder, old, new, made, monkeypatch):
    twice = _run(folder, "twice", "new", f"[{old.mixture.output}, {made}]")
    monkeypatch.setattr("datapipe.steps.runs.MOST_RUNS", 2)
    merged = _run(folder, "merged", "new", old.mixture.output, overrides=["execution.bucket_bytes=2KiB"])
    tasks = [task for task in merged.watcher.tasks if isinstance(task, MergeTask)]
    files = [file for task in tasks for table in task.tables.values() for file in table]
    assert {file.is_reference for file in files} == {True, False}
    assert _decisions(twice, "new") == _decisions(merged, "new") == _decisions(new, "new")


def test_decisions_on_new_documents_equal_those_of_one_run_over_all(folder: Path, old: Finished, new: Finished) -> None:
    at_once = _run(folder, "of-both", "old new")
    assert _decisions(new, "new") == _decisions(at_once, "new")
    assert _kept(old, "old") != _kept(at_once, "old")  # new documents were dropped for some that the old run had kept apart
    for stage in STAGES:
        matched = [key[:8] in OLDS for name, *_, key in _drops(new, "new").values() if name == stage]
        assert sum(matched) > 5
        assert stage == "dedup.exact" or not all(matched)


@pytest.mark.slow
def test_old_documents_may_stand_beside_those_that_are_held_against_them(folder: Path, old: Finished, new: Finished) -> None:
    """A corpus that grew: the old source without comparisons, the new source compared with the old run."""
    held = ", ".join(f"{stage}: {{{given}, against: {old.mixture.output}}}" for stage, given in STAGES.items())
    sources = f"  old: {{path: {folder}/old/*.jsonl, stages: []}}\n  new: {{path: {folder}/new/*.jsonl, stages: [{held}]}}\n"
    (folder / "grown").mkdir()
    grown = runs.run_mixture(runs.write_mixture(folder / "grown", sources, "", TAIL), make_engine=runs.InProcess)
    assert _decisions(grown, "new") == _decisions(new, "new")
    assert sorted(_kept(grown, "old").values()) == sorted(_texts()[0])


@pytest.mark.slow
def test_cuts_of_new_documents_equal_those_of_one_run_over_all(folder: Path) -> None:
    """Lines that return, passages that begin in the middle of others, and documents made of nothing else."""
    rng = random.Random(9)
    pool = [corpora.prose(rng, 30) for _ in range(40)]
    for source in ("first", "second"):
        texts = []
        for _ in range(40):
            words = " ".join(rng.choice(pool) for _ in range(3)).split()
            start = rng.randrange(40)
            own = [corpora.prose(rng, 12) for _ in range(rng.randrange(3))]
            texts.append("\n".join([*own, rng.choice(pool), " ".join(words[start : start + 40])]))
        _write(folder / source / "0.jsonl", texts)
    first = _run(folder, "of-first", "first", named=CUTTING)
    second = _run(folder, "of-second", "second", against=first.mixture.output, named=CUTTING)
    at_once = _run(folder, "of-first-and-second", "first second", named=CUTTING)
    assert _decisions(second, "second") == _decisions(at_once, "second")
    assert _kept(first, "first") == _kept(at_once, "first")  # the first occurrence of both runs is of the earlier one
    alone = _run(folder, "of-second-alone", "second", named=CUTTING)
    assert {stage for stage, *_ in _drops(second, "second").values()} == set(CUTTING)
    assert sum(map(len, _kept(second, "second").values())) < sum(map(len, _kept(alone, "second").values()))


def test_run_against_an_earlier_one_reads_no_old_text_and_does_not_change_it(folder, old, new):
    before = content_of(Path(old.mixture.output))
    shutil.move(folder / "old", folder / "moved")
    try:
        again = _run(folder, "of-new-again", "new", against=old.mixture.output)
    finally:
        shutil.move(folder / "moved", folder / "old")
    assert again.checksums == new.checksums
    assert content_of(Path(old.mixture.output)) == before


@pytest.mark.parametrize(
    ("source", "against", "more", "told"),
    [
        ("new", "nowhere", "", "nowhere"),
        ("new", "of-old/out", ", scope: source", "scope is run there and source here"),
        ("old", "of-old/out", "", r"'0\.jsonl' of a source 'old'"),  # rows about the same files
        ("new", "[of-old/out, other/of-old/out]", "", r"'0\.jsonl' of a source 'old'"),  # another crawl, with the same names
    ],
)
def test_against_rows_that_are_not_comparable_is_refused(folder, old, source, against, more, told):
    if "other" in against and not (folder / "other").exists():
        for part in range(2):
            _write(folder / f"other/old/{part}.jsonl", [corpora.prose(random.Random(part), 90)])
        other = _run(folder / "other", "of-old", "old").mixture.output
        with pytest.raises(UserError, match="Two files of one name"):
            make_index([old.mixture.output, other], str(folder / "both"))
    listed = [f"{folder}/{name}" for name in against.strip("[]").split(", ")]
    with pytest.raises(UserError, match=told):
        _run(folder, "refused", source, f"[{', '.join(listed)}]", more)


def test_against_a_damaged_index_or_the_output_of_the_run_itself_is_refused(folder: Path, old: Finished) -> None:
    shutil.copytree(folder / "of-old", folder / "hurt")
    hurt = f"{folder}/hurt/out"
    with pytest.raises(UserError, match="is the output of this run"):  # it would replace the earlier rows with its own
        _run(folder, "hurt", "new", against=hurt)
    index = open_index(hurt)
    victim = Path(index.root.path(index.of_stage(0)["texts"][0].path))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.raises(CorruptionError, match="`datapipe index`"):
        _run(folder, "of-hurt", "new", against=hurt)
    victim.unlink()
    with pytest.raises(UserError, match="missing"):
        _run(folder, "of-hurt", "new", against=hurt)


def test_takedown_deletes_all_rows_of_documents_and_keeps_their_duplicates(folder, old, new, made):
    shutil.copytree(made, folder / "forgetful")
    made = str(folder / "forgetful")
    groups: dict[bytes, set[bytes]] = {}
    for finished, source in ((old, "old"), (new, "new")):
        for key, (stage, _, _, survivor) in _drops(finished, source).items():
            if stage == "dedup.exact":
                groups.setdefault(survivor, {survivor}).add(key)
    copies = next(keys for keys in groups.values() if len(keys) == 4)  # of FORGOTTEN alone
    texts = {key for key in copies if key[:8] in OLDS}
    [newcomer] = copies - texts
    named = [f"old/{OLDS[key[:8]]}:{int.from_bytes(key[8:], 'big')}" for key in texts]
    done = take_down(made, [*named, *(key.hex() for key in texts)])
    assert done.num_documents == done.num_new == len(texts)  # each is named twice
    assert (done.rows, done.unknown) == ({"dedup.exact": len(texts), "dedup.minhash": 15}, {})
    index = open_index(made)
    assert {rows.output.path for rows in index.rows} == {path for path, _ in index.root.list_files("rows")}
    for number in range(len(STAGES)):
        assert not any(texts & _keys(made, number, table) for table in index.of_stage(number))
    later = _drops(_run(folder, "of-new-forgot", "new", against=made), "new")
    assert later == {key: decision for key, decision in _drops(new, "new").items() if key != newcomer}
    assert take_down(made, named).unknown.keys() == set(named)


def test_takedown_of_malformed_or_unknown_documents_changes_no_file(old: Finished, made: str) -> None:
    before = content_of(Path(made))
    with pytest.raises(UserError):
        take_down(made, ["old/0.jsonl"])
    unknown = ("old/0.jsonl:1", "old/9.jsonl:0", "0" * 32, "other/0.jsonl:0")
    assert tuple(take_down(made, unknown).unknown) == unknown
    assert content_of(Path(made)) == before
    with pytest.raises(UserError, match="`datapipe index`"):
        take_down(old.mixture.output, ["old/0.jsonl:0"])


@pytest.mark.slow
def test_survivors_of_an_earlier_run_are_located_and_read_until_it_is_gone(folder, new, made, tmp_path, monkeypatch):
    shutil.copytree(folder / "of-old", tmp_path / "crawls" / "of-old")
    monkeypatch.chdir(tmp_path)
    moved = _run(folder, "of-new-relative", "new", against="crawls/of-old/out")
    monkeypatch.chdir("/")
    key = next(survivor for *_, survivor in _drops(new, "new").values() if survivor[:8] in OLDS)
    for finished, has_text in ((moved, True), (_run(folder, "of-new-nameless", "new", against=made), False)):
        looked = Inspector.open(finished.mixture.output)
        located = looked.locator.locate(key)
        assert (located.source, located.path[2:]) == ("old", "jsonl")
        assert (located.text in _texts()[0]) == has_text
        survivors = [cluster["survivor"] for cluster in find_clusters(looked, stage="dedup.exact", count=100)]
        assert {bool(survivor["no_text"]) for survivor in survivors if survivor["run"]} == {not has_text}
    found = Inspector.open(moved.mixture.output).find("dropped", reason="dedup.exact", count=100)
    survivors = [document["survivor"] for document in found]
    assert sum(survivor.endswith(f"(of {tmp_path}/crawls/of-old/out)") for survivor in survivors) > 5
    shutil.rmtree(tmp_path / "crawls" / "of-old" / "out" / "work")
    assert Inspector.open(moved.mixture.output).locator.locate(key).path == NOT_FOUND
