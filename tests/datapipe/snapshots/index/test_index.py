"""Indexes of several outputs and their files, takedowns, and both commands when they are killed or run twice at once."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from datapipe.engine.prepare import prepare
from datapipe.errors import CorruptionError, UserError
from datapipe.records.outputs import ExchangeFile
from datapipe.snapshots.index.takedown import make_index, take_down
from datapipe.snapshots.index.write import Index, IndexedFile, IndexedRows, IndexedStage, open_index, write_index
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.command_line import datapipe
from tests.support.killed_changes import content_of, is_killed

pytestmark = pytest.mark.medium

TAIL = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}
pack: {sequence_length: 64}
execution: {bucket_bytes: 64KiB}
"""
FIRST = ["left/0.jsonl:0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources `left` and `right` of five documents each, and `all` with both and two more."""
    folder, rng = tmp_path_factory.mktemp("takedown"), random.Random(29)
    texts = [corpora.prose(rng, 60) for _ in range(12)]
    for name, own in (("left", texts[:5]), ("right", texts[5:10]), ("all", texts)):
        corpora.write_jsonl(folder / name / "0.jsonl", [{"text": text} for text in own])
    return folder


def _run(folder: Path, name: str, sources: dict[str, str]) -> runs.Finished:
    """A run of sources with the stages of each."""
    (folder / name).mkdir(exist_ok=True)
    listed = "".join(f"  {each}: {{path: {folder}/{each}/*.jsonl, stages: {stages}}}\n" for each, stages in sources.items())
    return runs.run_mixture(runs.write_mixture(folder / name, listed, "", TAIL), make_engine=runs.InProcess)


@pytest.fixture(scope="module")
def left(folder: Path) -> str:
    return _run(folder, "of-left", {"left": "[dedup.exact: {as: left}]"}).mixture.output


@pytest.fixture(scope="module")
def right(folder: Path) -> str:
    return _run(folder, "of-right", {"right": "[dedup.exact: {as: right}]"}).mixture.output


@pytest.fixture
def made(left: str, tmp_path: Path) -> Root:
    """An index of `left`, for one test."""
    return make_index([left], str(tmp_path / "index")).root


def _num_dropped(folder: Path, against: str, name: str = "exact") -> int:
    """Documents of `all` that a run against an index drops."""
    held = _run(folder, f"of-all-{name}", {"all": f"[dedup.exact: {{as: {name}, against: {against}}}]"})
    records = [record for step in held.plan.of_kind("map", "all") for record in step.records]
    return sum(sum(record.metrics.document_counts.dropped.values()) for record in records)


def _content(root: Root) -> dict[str, bytes]:
    return {path: content for path, content in content_of(Path(root.path(""))).items() if "lock" not in path}


def test_index_of_outputs_with_other_names_for_a_stage_holds_all_of_them(folder: Path, left: str, right: str) -> None:
    made = str(folder / "left-and-right")
    make_index([left, right], made)
    assert [_num_dropped(folder, made, name) for name in ("left", "neither")] == [10, 10]


def test_stage_that_sources_had_with_different_options_is_compared_with_as_one(folder: Path) -> None:
    """The options change no row: the earlier run has two stages of one name, each with the documents of its source."""
    stages = {"left": "[dedup.exact]", "right": "[dedup.exact: {keep: longest}]"}
    both, made = _run(folder, "of-both-kinds", stages).mixture.output, str(folder / "of-two-kinds")
    make_index([both], made)
    assert [_num_dropped(folder, against) for against in (both, made)] == [10, 10]


def test_index_command_that_is_killed_anywhere_is_marked_and_completed_by_the_same_one(left: str, tmp_path: Path) -> None:
    expected, kills, target = _content(make_index([left], str(tmp_path / "whole")).root), 0, tmp_path / "0"
    while is_killed(partial(make_index, [left], str(target)), kills):
        there = content_of(target) if target.exists() else {}
        assert "_UNFINISHED" in there or not any("lock" not in path for path in there)
        if there and "index.json" not in there:
            (target / f".index.json.{'0' * 32}.tmp").write_text("{")  # what a killed writer leaves
        assert _content(make_index([left], str(target)).root) == expected
        kills += 1
        target = tmp_path / f"{kills}"
    assert kills > 3


def test_takedown_that_was_killed_at_any_step_is_completed_by_the_next_one(made: Root, left: str, tmp_path: Path) -> None:
    """A killed takedown leaves the old index or the new one; the same command deletes every file with rows of the document."""
    take_down(made.url, FIRST)
    checksum, kills = open_index(made.url).rows[0].output.checksum, 0
    while True:
        root = make_index([left], str(tmp_path / f"{kills}")).root
        if not is_killed(partial(take_down, root.url, FIRST), kills):
            break
        assert open_index(root.url).stages
        assert take_down(root.url, FIRST).rows in ({"left": 1}, {})
        assert len(root.list_files("rows")) == 1
        assert open_index(root.url).rows[0].output.checksum == checksum
        kills += 1
    assert kills > 3


def test_index_that_is_whole_is_reported_and_stays(left: str, tmp_path: Path) -> None:
    made = str(tmp_path / "whole")
    first = datapipe(["index", left, "--to", made])
    before = _content(Root(made))
    again = datapipe(["index", left, "--to", made])
    assert (first.returncode, again.returncode, _content(Root(made))) == (0, 0, before)
    assert "nothing was written" in again.stdout
    take_down(made, FIRST)
    assert "_UNFINISHED" not in _content(make_index([left], made).root)  # what was taken down stays out
    assert sum(rows.output.rows for rows in open_index(made).rows) == 4
    path = Path(made, open_index(made).rows[0].output.path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="missing"):
        make_index([left], made)


def test_index_of_other_rows_or_beside_other_files_is_refused_and_changes_nothing(folder, left, right, made, tmp_path):
    mine = tmp_path / "taken" / "rows" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("keep me")
    lines = _run(folder, "of-lines", {"right": "[dedup.exact: {as: right}, dedup.lines]"}).mixture.output
    before = content_of(tmp_path)
    for outputs, target, told in [
        ([right], made.url, "of-left.*in place of none"),
        ([left, right], made.url, "of-right/out none in place of"),
        ([left], str(tmp_path / "taken"), r"rows/mine\.txt"),
        ([left, lines], str(tmp_path / "uneven"), "right, dedup.lines"),  # a later dedup.lines would compare with one alone
        ([left, left], str(tmp_path / "twice"), r"'0\.jsonl' of source 'left'"),
    ]:
        with pytest.raises(UserError, match=told):
            make_index(outputs, target)
    after = content_of(tmp_path)
    assert {path: after[path] for path in before} == before
    assert not any(path.endswith("index.json") for path in after.keys() - before.keys())


def test_takedown_while_another_goes_on_is_refused(made: Root) -> None:
    """Each would delete the files that the other one writes."""
    with exclusive(made), pytest.raises(UserError, match="another run"):
        take_down(made.url, FIRST)
    assert take_down(made.url, FIRST).rows == {"left": 1}


def test_takedown_during_a_run_against_the_index_is_an_error_with_a_remedy(folder, made, monkeypatch):
    def prepared(mixture: Any, limit: int | None, show: Any) -> Any:
        request = prepare(mixture, limit)
        assert take_down(made.url, FIRST).rows
        return request

    with monkeypatch.context() as patched:
        patched.setattr("datapipe.engine.run.prepare", prepared)
        with pytest.raises(UserError, match="run the same command again"):
            _num_dropped(folder, made.url, "changing")
    assert _num_dropped(folder, made.url, "changing") == 4


def test_takedown_of_documents_that_are_not_there_lists_them_and_ends_with_status_1(folder: Path, made: Root) -> None:
    done = datapipe(["takedown", made.url, *FIRST, "left/0.jsonl:1", "left/9.jsonl:0"])
    assert done.returncode == 1
    assert all(line in done.stdout for line in ("left: 1 row deleted", "1 of 3 documents deleted"))
    assert all(f"{name}: " in done.stdout for name in ("left/0.jsonl:1", "left/9.jsonl:0"))
    second = (folder / "left" / "0.jsonl").read_bytes().index(b"\n") + 1
    assert [datapipe(["takedown", made.url, name]).returncode for name in (*FIRST, f"left/0.jsonl:{second}")] == [1, 0]


# ------------------------------------------------------------------------------------------------ the files of an index


def _index(root: Root) -> Index:
    file = ExchangeFile(
        path="rows/1.exchange", rows=2, bytes=9, checksum="xxh3:1", row_bytes=48, first=5, last=(1 << 64) - 1, runs=1
    )
    return Index(
        root=root,
        stages=(IndexedStage(name="dedup.exact", identity={"stage": "dedup.exact", "share": 0.1}),),
        rows=(IndexedRows(stage=0, group=0, table="texts", output=file),),
        files=(IndexedFile(hash=(1 << 64) - 7, source="web", path="ä.jsonl", group=0),),
    )


def test_index_is_read_as_it_was_written(tmp_path: Path):
    index = _index(Root(str(tmp_path)))
    write_index(index)
    assert open_index(str(tmp_path)) == index


@pytest.mark.parametrize("version", [1, 2, 4])
def test_index_of_another_version_is_refused(tmp_path: Path, version: int):
    (tmp_path / "index.json").write_text(json.dumps({"index": version, "stages": []}))
    with pytest.raises(UserError, match=f"version {version}"):
        open_index(str(tmp_path))


@pytest.mark.slow
def test_index_with_any_bit_flipped_is_damaged_or_of_another_version(tmp_path: Path):
    write_index(_index(Root(str(tmp_path))))
    content = (tmp_path / "index.json").read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "index.json").write_bytes(flipped)
        with pytest.raises((CorruptionError, UserError), match="index"):
            open_index(str(tmp_path))
