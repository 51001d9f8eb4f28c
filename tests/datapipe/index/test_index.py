"""Indexes of several outputs and their files, takedowns, and both commands when they are killed or run twice at once."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.engine.prepare import prepare
from datapipe.errors import CorruptionError, UserError
from datapipe.index.takedown import make_index, take_down
from datapipe.index.write import IndexedFile, IndexedRows, IndexedStage, open_index, write_index
from datapipe.ledger.lock import exclusive
from datapipe.plan.outputs import ExchangeFile
from datapipe.shards.checksum import bytes_checksum
from datapipe.storage import Root
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
            (target / ".index.json.0123.tmp").write_text("{")  # what a killed writer leaves
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
        assert [len(root.list_files(name)) for name in ("rows", "index")] == [1, 2]
        assert open_index(root.url).rows[0].output.checksum == checksum
        kills += 1
    assert kills > 4


def test_index_that_is_whole_is_told_and_stays(left: str, tmp_path: Path) -> None:
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
        ([right], made.url, "other rows"),
        ([left, right], made.url, "other rows"),
        ([left], str(tmp_path / "taken"), r"rows/mine\.txt"),
        ([left, lines], str(tmp_path / "uneven"), "right, dedup.lines"),  # a later dedup.lines would compare with one alone
        ([left, left], str(tmp_path / "twice"), r"'0\.jsonl' of source 'left'"),
    ]:
        with pytest.raises(UserError, match=told):
            make_index(outputs, target)
    after = content_of(tmp_path)
    assert {path: after[path] for path in before} == before
    assert not any(path.endswith("index.json") for path in after.keys() - before.keys())


def test_takedown_while_another_is_at_work_is_refused(made: Root) -> None:
    """Each would delete the files that the other one writes."""
    with exclusive(made), pytest.raises(UserError, match="another run"):
        take_down(made.url, FIRST)
    assert take_down(made.url, FIRST).rows == {"left": 1}


def test_takedown_during_a_run_against_the_index_is_an_error_with_a_remedy(folder, made, monkeypatch):
    def prepared(mixture: Any, limit: int | None, say: Any, only: Any) -> Any:
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

ROW = {"stage": 0, "group": 0, "table": "texts", "path": "rows/1.exchange", "rows": 2, "bytes": 9, "weight": 48}
ENDS = {"checksum": "xxh3:1", "first": 5, "last": (1 << 64) - 1, "runs": 1}
FILE = {"hash": 7, "source": "web", "path": "a.jsonl", "group": 0}
_UNSIGNED = ("first", "last", "hash")


def _write_version(root: Root, version: int, *, with_checksum: bool = True) -> None:
    """An index as version 2 was written first, by no code of today; version 1 had no checksum of its own."""
    parts = {}
    for name, row in (("tables", ROW | ENDS), ("files", FILE)):
        sink = io.BytesIO()
        columns = {key: pa.array([value], pa.uint64() if key in _UNSIGNED else None) for key, value in row.items()}
        pq.write_table(pa.table(columns), sink)
        root.write_atomic(f"index/{name}.parquet", sink.getvalue())
        parts[name] = {"path": f"index/{name}.parquet", "checksum": bytes_checksum(sink.getvalue())}
    stages = [{"name": "dedup.exact", "identity": {"stage": "dedup.exact"}}]
    content = {"index": version, "stages": stages, **parts}
    checksum = {"checksum": bytes_checksum(json.dumps(content, sort_keys=True).encode())} if with_checksum else {}
    root.write_atomic("index.json", json.dumps(content | checksum).encode())


def test_index_as_it_was_first_written_is_read_and_written_again(tmp_path: Path):
    _write_version(Root(str(tmp_path)), 2)
    index = open_index(str(tmp_path))
    file = ExchangeFile(
        path="rows/1.exchange", rows=2, bytes=9, checksum="xxh3:1", row_bytes=48, first=5, last=(1 << 64) - 1, runs=1
    )
    assert index.rows == (IndexedRows(stage=0, group=0, table="texts", output=file),)
    assert index.files == (IndexedFile(**FILE),)
    assert index.stages == (IndexedStage(name="dedup.exact", identity={"stage": "dedup.exact"}),)
    write_index(index)
    again = open_index(str(tmp_path))
    assert (again.stages, again.rows, again.files) == (index.stages, index.rows, index.files)


@pytest.mark.parametrize(("version", "with_checksum"), [(1, False), (3, True)])
def test_index_of_another_version_is_refused(tmp_path: Path, version: int, with_checksum: bool):
    _write_version(Root(str(tmp_path)), version, with_checksum=with_checksum)
    with pytest.raises(UserError, match=f"version {version}"):
        open_index(str(tmp_path))


@pytest.mark.slow
def test_index_with_any_bit_flipped_is_damaged_or_the_same(tmp_path: Path):
    """White space between the parts of index.json has no meaning; every other bit has."""
    _write_version(Root(str(tmp_path)), 2)
    index, num_same, errors = open_index(str(tmp_path)), 0, list[tuple[str, str]]()
    for path, step in [("index.json", 1), ("index/tables.parquet", 97), ("index/files.parquet", 97)]:
        content = (tmp_path / path).read_bytes()
        for bit in range(0, 8 * len(content), step):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            (tmp_path / path).write_bytes(flipped)
            try:
                assert open_index(str(tmp_path)) == index
                num_same += 1
            except CorruptionError as error:
                errors.append((path, str(error)))
        (tmp_path / path).write_bytes(content)
    assert all(path in error for path, error in errors)
    assert num_same < 100


def test_index_is_read_in_no_thread_that_may_outlive_the_reading(tmp_path: Path):
    """A thread of Arrow that lets go of Python's bytes while the interpreter ends aborts the process, with status 134."""
    _write_version(Root(str(tmp_path)), 2)
    threads, opened = "set(os.listdir('/proc/self/task'))", "import os, sys; from datapipe.index.write import open_index"
    program = f"{opened}; before = {threads}; open_index(sys.argv[1]); print(len({threads} - before))"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_index_without_one_of_its_files_is_damaged(tmp_path: Path):
    _write_version(Root(str(tmp_path)), 2)
    (tmp_path / "index/files.parquet").unlink()
    with pytest.raises(CorruptionError, match=r"files\.parquet"):
        open_index(str(tmp_path))
