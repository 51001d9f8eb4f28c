"""Runs compared with earlier ones: decisions on new documents equal those of one run over all; the old run does not change."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from datapipe.errors import CorruptionError, UserError
from datapipe.exchange.partitions import read_documents, read_table
from datapipe.exchange.ranges import read_range
from datapipe.index import write as indexes
from datapipe.index.takedown import make_index, take_down
from datapipe.index.write import open_index
from datapipe.inspect.documents import DocumentQuery, Inspector
from datapipe.inspect.duplicates import ClusterQuery, find_clusters
from datapipe.inspect.originals import NOT_FOUND
from datapipe.metrics import TaskMetrics
from datapipe.plan.splits import file_hash
from datapipe.plan.work import HASH_SPACE, MapTask, MergeTask
from datapipe.storage import Root
from tests.support import cli_processes, corpora, runs

pytestmark = pytest.mark.medium

TAIL = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}
pack: {sequence_length: 64}
shards: {target_bytes: 64KiB}
execution: {split_bytes: 16KiB, bucket_bytes: 64KiB}
"""
STAGES = {
    "dedup.exact": "keep: source_order",
    "dedup.minhash": "keep: source_order, components_bytes: 0",
}
CUTTING = {
    "dedup.lines": "keep: source_order, unit: line, max_removed_share: 0.3",
    "dedup.substring": "keep: source_order, length: 12, max_removed_share: 0.6",
}
_TABLES = {"dedup.exact": "texts", "dedup.minhash": "signatures", "dedup.lines": "units", "dedup.substring": "passages"}


FORGOTTEN = corpora.prose(random.Random(77), 90)
"""A text of both runs without near duplicates; the old run kept one of its three copies."""


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("against")
    for name, texts in zip(("old", "new"), _texts()):
        corpora.write_jsonl(folder / name / "0.jsonl", [{"text": text} for text in texts[::2]])
        corpora.write_jsonl(folder / name / "1.jsonl", [{"text": text} for text in texts[1::2]])
    return folder


def _run(
    folder: Path, name: str, sources: str, against: str = "", more: str = "", named: dict[str, str] = STAGES, **options: Any
) -> runs.Finished:
    output = folder / name
    output.mkdir(exist_ok=True)
    listed = "".join(f"  {source}: {{path: {folder}/{source}/*.jsonl}}\n" for source in sources.split())
    held = f", against: {against}" if against else ""
    stages = "stages:\n" + "".join(f"  - {stage}: {{{given}{held}{more}}}\n" for stage, given in named.items())
    return runs.run_mixture(runs.write_mixture(output, listed, stages, TAIL), **{"make_engine": runs.InProcess, **options})


@pytest.fixture(scope="module")
def old(folder: Path) -> runs.Finished:
    return _run(folder, "of-old", "old")


@pytest.fixture(scope="module")
def new(folder: Path, old: runs.Finished) -> runs.Finished:
    return _run(folder, "of-new", "new", against=f"{folder}/of-old/out")


def _drops(finished: runs.Finished, source: str) -> dict[bytes, tuple[Any, ...]]:
    """Stage, rule, value and survivor of each dropped document of a source, by key."""
    root, found = Root(finished.mixture.output), {}
    for step in finished.plan.of_kind("map", source):
        for output in step.outputs("drops"):
            for batch in read_table(root, output):
                for row in batch.to_pylist():
                    found[row["key"]] = row["stage"], row["rule"], row["value"], row["survivor"]
    return found


def _kept(finished: runs.Finished, source: str) -> dict[bytes, str]:
    """The text that the run kept of each document, by key."""
    [step] = finished.plan.of_kind("map", source)[-1:]
    rows = read_documents(Root(finished.mixture.output), step.outputs("documents"), TaskMetrics())
    return {key: text for batch in rows for key, text in zip(batch.keys.to_pylist(), batch.texts.to_pylist())}


@pytest.mark.slow
def test_decisions_on_new_documents_equal_those_of_one_run_over_all(
    folder: Path, old: runs.Finished, new: runs.Finished
) -> None:
    at_once = _run(folder, "of-both", "old new")
    assert _drops(new, "new") == _drops(at_once, "new")
    assert _kept(new, "new") == _kept(at_once, "new")
    assert _kept(old, "old") != _kept(at_once, "old")  # new documents were dropped for some that the old run had kept apart
    olds = {_hash("old", f"{number}.jsonl") for number in range(2)}
    for stage in ("dedup.exact", "dedup.minhash"):
        matched = [key[:8] in olds for name, *_, key in _drops(new, "new").values() if name == stage]
        assert sum(matched) > 5 and (stage == "dedup.exact" or not all(matched)), stage


@pytest.mark.slow
def test_decisions_are_the_same_where_rows_of_both_runs_are_merged_first(
    folder: Path, old: runs.Finished, new: runs.Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datapipe.plan.runs.MOST_RUNS", 2)
    small = ["execution.bucket_bytes=2KiB"]
    merged = _run(folder, "of-new-merged", "new", against=f"{folder}/of-old/out", overrides=small)
    tasks = [cast(MergeTask, task) for step in merged.plan.of_kind("merge") for task in step.tasks or ()]
    files = [file for task in tasks for file in task.files]
    assert {file.is_reference for file in files} == {True, False}
    assert _drops(merged, "new") == _drops(new, "new")
    assert _kept(merged, "new") == _kept(new, "new")


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
        corpora.write_jsonl(folder / source / "0.jsonl", [{"text": text} for text in texts])
    first = _run(folder, "of-first", "first", named=CUTTING)
    second = _run(folder, "of-second", "second", against=f"{folder}/of-first/out", named=CUTTING)
    at_once = _run(folder, "of-first-and-second", "first second", named=CUTTING)
    assert _drops(second, "second") == _drops(at_once, "second") and _kept(second, "second") == _kept(at_once, "second")
    assert _kept(first, "first") == _kept(
        at_once, "first"
    )  # an occurrence that is the first of both runs is the first of the earlier run
    alone = _run(folder, "of-second-alone", "second", named=CUTTING)
    assert {stage for stage, *_ in _drops(second, "second").values()} == set(CUTTING)
    assert sum(len(text) for text in _kept(second, "second").values()) < sum(map(len, _kept(alone, "second").values()))


def test_index_holds_documents_that_the_earlier_run_dropped(old: runs.Finished) -> None:
    index = open_index(old.mixture.output)
    assert [stage.name for stage in index.stages] == list(STAGES)
    texts, _ = _texts()
    counted = [_keys(index.root, index.of_stage(number)[_TABLES[name]]) for number, name in enumerate(STAGES)]
    dropped = _drops(old, "old")
    exact = {key for key, (stage, *_) in dropped.items() if stage == "dedup.exact"}
    assert len(counted[0]) == len(texts) and counted[0] - counted[1] == exact
    assert len(set(dropped) & counted[1]) > 5


def _keys(root: Root, outputs: Any) -> set[bytes]:
    rows = read_range(root, outputs, 0, HASH_SPACE)
    assert rows is not None
    return set(rows.column("key").to_pylist())


def test_run_against_an_earlier_one_reads_no_old_text_and_does_not_change_it(
    folder: Path, old: runs.Finished, new: runs.Finished
) -> None:
    """The old input is moved away during the new run, and no file of the old output changes."""
    before = {path: path.read_bytes() for path in Path(old.mixture.output).rglob("*") if path.is_file()}
    moved = folder / "moved"
    shutil.move(folder / "old", moved)
    try:
        again = _run(folder, "of-new-again", "new", against=f"{folder}/of-old/out")
    finally:
        shutil.move(moved, folder / "old")
    assert again.checksums == new.checksums
    assert {path: path.read_bytes() for path in Path(old.mixture.output).rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_run_against_more_rows_signs_no_document_again(folder: Path, old: runs.Finished) -> None:
    """Neither `against` nor the rows there are part of the fingerprints of the first map tasks."""
    alone = _run(folder, "later", "new")
    held = _run(folder, "later", "new", against=f"{folder}/of-old/out")
    assert "new/read" not in held.watcher.steps and "dedup.exact/match" in held.watcher.steps
    assert len(_drops(held, "new")) > len(_drops(alone, "new"))
    back = _run(folder, "later", "new")
    assert not [step for step in back.watcher.steps if "/read" in step or "dedup" in step]
    assert back.checksums == alone.checksums


@pytest.mark.slow
def test_added_file_is_the_only_one_that_is_signed(folder: Path) -> None:
    rng = random.Random(3)
    source = folder / "growing"
    for number in range(4):  # each above `split_bytes`, so a task of its own
        texts = [corpora.prose(rng, 150) for _ in range(25)]
        corpora.write_jsonl(source / f"{number}.jsonl", [{"text": text} for text in [*texts, *texts[:3]]])
    _run(folder, "of-growing", "growing", named={**STAGES, **CUTTING})
    corpora.write_jsonl(source / "4.jsonl", [{"text": corpora.prose(rng, 150)} for _ in range(25)])
    grown = _run(folder, "of-growing", "growing", named={**STAGES, **CUTTING})
    ran = {record.fingerprint for record in grown.watcher.records}
    first = next(step for step in grown.plan.steps if step.id == "growing/read")
    tasks = [task for task in first.tasks or () if isinstance(task, MapTask)]
    read = {split.file.path for task in tasks if task.fingerprint in ran for split in task.splits}
    assert read == {"4.jsonl"} and len(tasks) > 4
    whole = _run(folder, "of-grown", "growing", named={**STAGES, **CUTTING})
    assert grown.checksums == whole.checksums


@pytest.mark.slow
def test_run_against_several_runs_compares_with_all_of_them(folder: Path, old: runs.Finished, new: runs.Finished) -> None:
    for name, part in (("part-0", "0"), ("part-1", "1")):
        (folder / name).mkdir()
        shutil.copy(folder / "old" / f"{part}.jsonl", folder / name)
        _run(folder, f"of-{name}", name)
    both = _run(folder, "of-new-parts", "new", against=f"[{folder}/of-part-0/out, {folder}/of-part-1/out]")
    assert set(_drops(both, "new")) == set(_drops(new, "new"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"against": "{folder}/nowhere"}, "no index here. Expected the output of a run"),
        ({"against": "{folder}/of-old/out", "more": ", scope: source"}, "scope is run there and source here"),
    ],
)
def test_against_rows_that_are_not_comparable_is_refused(
    folder: Path, old: runs.Finished, options: dict[str, str], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        _run(folder, "refused", "new", **{name: value.format(folder=folder) for name, value in options.items()})


def test_against_rows_about_the_same_files_is_refused(folder: Path, old: runs.Finished) -> None:
    with pytest.raises(UserError, match=r"already has rows about the file '0\.jsonl' of a source 'old'"):
        _run(folder, "refused", "old", against=f"{folder}/of-old/out")


@pytest.mark.slow
def test_old_documents_may_stand_beside_those_that_are_held_against_them(
    folder: Path, old: runs.Finished, new: runs.Finished
) -> None:
    """A corpus that grew: the old source without comparisons, the new source compared with the old run."""
    held = ", ".join(f"{stage}: {{{given}, against: {folder}/of-old/out}}" for stage, given in STAGES.items())
    listed = f"  old: {{path: {folder}/old/*.jsonl, stages: []}}\n  new: {{path: {folder}/new/*.jsonl, stages: [{held}]}}\n"
    (folder / "grown").mkdir()
    grown = runs.run_mixture(runs.write_mixture(folder / "grown", listed, "", TAIL), make_engine=runs.InProcess)
    assert _drops(grown, "new") == _drops(new, "new") and len(_kept(grown, "old")) == len(_texts()[0])


def test_against_the_output_of_the_run_itself_is_refused(folder: Path, old: runs.Finished) -> None:
    """The run replaces the index there with its own, so the earlier rows would be lost."""
    shutil.copytree(folder / "of-old", folder / "itself")
    with pytest.raises(UserError, match=r"is the output of this run, which replaces the index there"):
        _run(folder, "itself", "new", against=f"{folder}/itself/out")


def test_against_a_damaged_index_is_an_error_with_a_remedy(folder: Path, old: runs.Finished) -> None:
    shutil.copytree(folder / "of-old", folder / "hurt")
    index = open_index(f"{folder}/hurt/out")
    victim = Path(index.root.path(index.of_stage(0)["texts"][0].path))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.raises(CorruptionError, match="make the index again with `datapipe index`"):
        _run(folder, "of-hurt", "new", against=f"{folder}/hurt/out")
    victim.unlink()
    with pytest.raises(UserError, match="is missing or has changed"):
        _run(folder, "of-hurt", "new", against=f"{folder}/hurt/out")


@pytest.mark.slow
def test_run_that_is_refused_for_other_options_ends_with_status_2_every_time(folder: Path, old: runs.Finished) -> None:
    """One in thirty was ended by SIGABRT while a thread of pyarrow still had the bytes of the index."""
    stage = f"stages:\n  - dedup.minhash: {{bands: 10, against: {folder}/of-old/out}}\n"
    (folder / "refused-each-time").mkdir()
    mixture = runs.write_mixture(folder / "refused-each-time", f"  new: {{path: {folder}/new/*.jsonl}}\n", stage, TAIL)
    for _ in range(8):
        done = cli_processes.run(["run", str(mixture)])
        assert (done.returncode, done.stderr.count("bands is 14 there and 10 here")) == (2, 1), done.stderr


# ---------------------------------------------------------------------------------------------------- indexes


def _made(folder: Path, name: str, *outputs: str) -> str:
    make_index(outputs, str(folder / name))
    return str(folder / name)


def test_index_gives_the_decisions_of_its_output(folder: Path, old: runs.Finished, new: runs.Finished) -> None:
    made = _made(folder, "index", old.mixture.output)
    assert _run(folder, "of-new-by-index", "new", against=made).checksums == new.checksums
    again = _run(folder, "of-new-by-index", "new", against=old.mixture.output)
    assert not again.watcher.steps  # the same rows from elsewhere
    with pytest.raises(UserError, match="the folder holds an index of other rows"):
        make_index([new.mixture.output], made)


@pytest.mark.slow
def test_index_of_several_outputs_holds_all_of_them(folder: Path, old: runs.Finished, new: runs.Finished) -> None:
    for name, part in (("half-0", "0"), ("half-1", "1")):
        (folder / name).mkdir()
        shutil.copy(folder / "old" / f"{part}.jsonl", folder / name)
        _run(folder, f"of-{name}", name)
    made = _made(folder, "halves", f"{folder}/of-half-0/out", f"{folder}/of-half-1/out")
    assert [stage.name for stage in open_index(made).stages] == list(STAGES)
    assert set(_drops(_run(folder, "of-new-by-halves", "new", against=made), "new")) == set(_drops(new, "new"))
    with pytest.raises(UserError, match=r"the file '0.jsonl' of source 'old' is in another of these outputs too"):
        make_index([old.mixture.output, old.mixture.output], str(folder / "twice"))


@pytest.mark.slow
def test_takedown_deletes_all_rows_of_documents_and_keeps_their_duplicates(
    folder: Path, old: runs.Finished, new: runs.Finished
) -> None:
    made = _made(folder, "forgetful", old.mixture.output)
    olds = {_hash("old", f"{number}.jsonl"): f"{number}.jsonl" for number in range(2)}
    groups: dict[bytes, set[bytes]] = {}
    for finished, source in ((old, "old"), (new, "new")):
        for key, (stage, _, _, survivor) in _drops(finished, source).items():
            if stage == "dedup.exact":
                groups.setdefault(survivor, {survivor}).add(key)
    copies = next(keys for keys in groups.values() if len(keys) == 4)  # of FORGOTTEN alone
    texts = {key for key in copies if key[:8] in olds}
    [newcomer] = copies - texts
    named = [f"old/{olds[key[:8]]}:{int.from_bytes(key[8:], 'big')}" for key in texts]
    done = take_down(made, [*named, *(key.hex() for key in texts)])
    assert done.num_documents == done.num_deleted == len(texts)  # each is named twice
    assert done.rows["dedup.exact"] == len(texts) and done.rows["dedup.minhash"] == 15 and not done.unknown
    index = open_index(made)
    assert {rows.output.path for rows in index.rows} == {path for path, _ in index.root.list_files("rows")}
    for number in range(len(STAGES)):
        for outputs in index.of_stage(number).values():
            assert not texts & _keys(index.root, outputs)
    later = _drops(_run(folder, "of-new-forgot", "new", against=made), "new")
    assert later == {key: decision for key, decision in _drops(new, "new").items() if key != newcomer}
    assert take_down(made, named).unknown == dict.fromkeys(named, "it has no rows")


def test_takedown_of_malformed_or_unknown_documents_changes_no_file(folder: Path, old: runs.Finished) -> None:
    made = _made(folder, "strict", old.mixture.output)
    before = {path: path.read_bytes() for path in Path(made).rglob("*") if path.is_file()}
    for named in ("old/0.jsonl", "0.jsonl:-1", "0.jsonl:x", ":7", "0" * 31):
        with pytest.raises(UserError, match="expected SOURCE/PATH:POSITION, the same as a JSON string"):
            take_down(made, [named])
    unknown = ("old/0.jsonl:1", "old/9.jsonl:0", "0" * 32, "other/0.jsonl:0")
    assert tuple(take_down(made, unknown).unknown) == unknown
    assert {path: path.read_bytes() for path in Path(made).rglob("*") if path.is_file()} == before
    with pytest.raises(UserError, match="an index that `datapipe index` made"):
        take_down(old.mixture.output, ["old/0.jsonl:0"])


@pytest.mark.parametrize("spelling", ["old/{}:{}", "{}:{}", "old  {}:{} (of /runs/of-old)  4,194 characters", " old/{}:{}\t"])
def test_takedown_takes_a_document_as_inspect_prints_it(
    folder: Path, old: runs.Finished, tmp_path: Path, spelling: str
) -> None:
    made = _made(tmp_path, "index", old.mixture.output)
    index = open_index(made)
    key = sorted(_keys(index.root, index.of_stage(0)["texts"]))[3]
    path = next(file.path for file in index.files if file.hash == int.from_bytes(key[:8], "big"))
    done = take_down(made, [spelling.format(path, int.from_bytes(key[8:], "big"))])
    assert not done.unknown and done.rows["dedup.exact"] == 1
    assert key not in _keys(index.root, open_index(made).of_stage(0)["texts"])


@pytest.mark.slow
def test_against_two_runs_about_files_of_one_name_is_refused_unless_the_rows_are_the_same(
    folder: Path, old: runs.Finished, new: runs.Finished
) -> None:
    made = _made(folder, "copy", old.mixture.output)
    twice = _run(folder, "of-new-twice", "new", against=f"[{old.mixture.output}, {made}]")
    assert twice.checksums == new.checksums
    for part in range(2):  # another crawl, of a source and files of the same names
        corpora.write_jsonl(folder / "other" / "old" / f"{part}.jsonl", [{"text": corpora.prose(random.Random(part), 90)}])
    _run(folder / "other", "of-old", "old")
    with pytest.raises(
        UserError, match=r"both have rows about a file '0.jsonl' of a source 'old'.*name the source of one run 'old-2'"
    ):
        _run(folder, "refused", "new", against=f"[{old.mixture.output}, {folder}/other/of-old/out]")
    with pytest.raises(UserError, match="Two files of one name cannot be in one index"):
        make_index([old.mixture.output, f"{folder}/other/of-old/out"], str(folder / "both"))


@pytest.mark.slow
def test_survivors_of_an_earlier_run_are_located_and_read_again(folder: Path, old: runs.Finished, new: runs.Finished) -> None:
    query = DocumentQuery(outcome="dropped", reason="dedup.exact", count=100)
    survivors = [document.survivor for document in Inspector.open(new.mixture.output).find(query)]
    assert sum(survivor.endswith(f"(of {old.mixture.output})") for survivor in survivors) > 5
    made = _made(folder, "nameless", old.mixture.output)
    by_index = _run(folder, "of-new-nameless", "new", against=made)
    for finished, has_text in ((new, True), (by_index, False)):
        key = next(
            survivor
            for *_, survivor in _drops(finished, "new").values()
            if survivor[:8] != _hash("new", "0.jsonl") and survivor[:8] != _hash("new", "1.jsonl")
        )
        located = Inspector.open(finished.mixture.output).locator.locate(key)
        assert (located.source, located.path[2:]) == ("old", "jsonl") and (located.text in _texts()[0]) == has_text
        clusters = find_clusters(Inspector.open(finished.mixture.output), ClusterQuery(stage="dedup.exact", count=100))
        reasons = {cluster.no_text for cluster in clusters if cluster.survivor.run}
        assert reasons == {"" if has_text else "an index holds no texts"}


@pytest.mark.slow
def test_survivors_of_an_earlier_run_are_located_from_any_folder_until_it_is_gone(
    folder: Path, old: runs.Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "of-old", tmp_path / "crawls" / "of-old")
    monkeypatch.chdir(tmp_path)
    new = _run(folder, "of-new-relative", "new", against="crawls/of-old/out")
    monkeypatch.chdir("/")
    key = next(survivor for *_, survivor in _drops(new, "new").values() if survivor[:8] == _hash("old", "0.jsonl"))
    assert Inspector.open(new.mixture.output).locator.locate(key, text=False).run == f"{tmp_path}/crawls/of-old/out"
    shutil.rmtree(tmp_path / "crawls" / "of-old" / "out" / "work")
    assert Inspector.open(new.mixture.output).locator.locate(key).path == NOT_FOUND


def _hash(source: str, path: str) -> bytes:
    return file_hash(source, path).to_bytes(8, "big")


@pytest.mark.slow
def test_other_limits_read_and_sign_no_document_again(folder: Path) -> None:
    loose = _run(folder, "limits", "new")
    strict = _run(folder, "limits", "new", named={**STAGES, "dedup.minhash": "keep: source_order, min_similarity: 0.99"})
    assert "new/read" not in strict.watcher.steps and "dedup.minhash/compare" in strict.watcher.steps
    assert "new/apply-dedup.exact" not in strict.watcher.steps and "dedup.minhash/match-bands" in strict.watcher.steps
    assert len(_drops(strict, "new")) < len(_drops(loose, "new"))


def test_index_that_is_replaced_while_it_is_opened_is_the_new_one(
    folder: Path, old: runs.Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _made(folder, "moving", old.mixture.output)
    key = sorted(_keys(Root(made), open_index(made).of_stage(0)["texts"]))[0]
    parsed, done = indexes._parsed, []

    def slowly(root: Root, url: str, where: str) -> Any:
        content = parsed(root, url, where)
        if not done:
            done.append(True)
            take_down(made, [key.hex()])
        return content

    monkeypatch.setattr(indexes, "_parsed", slowly)
    assert key not in _keys(Root(made), open_index(made).of_stage(0)["texts"])
