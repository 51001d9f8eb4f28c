"""Indexes of several outputs, takedowns, and both commands when they are killed or run twice at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.index.takedown import make_index, take_down
from datapipe.index.write import open_index
from datapipe.ledger.lock import exclusive
from datapipe.storage import Root
from tests.support import corpora, runs
from tests.support.command_line import datapipe

pytestmark = pytest.mark.medium

TAIL = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 16KiB}}
pack: {sequence_length: 64}
execution: {bucket_bytes: 64KiB}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources `left` and `right` of five documents each, and `all` with both and two more."""
    folder, rng = tmp_path_factory.mktemp("takedown"), random.Random(29)
    texts = [corpora.prose(rng, 60) for _ in range(12)]
    for name, own in (("left", texts[:5]), ("right", texts[5:10]), ("all", texts)):
        corpora.write_jsonl(folder / name / "0.jsonl", [{"text": text} for text in own])
    return folder


@pytest.fixture(scope="module")
def left(folder: Path) -> str:
    return _run(folder, "of-left", {"left": "[dedup.exact: {as: left}]"}).mixture.output


def _run(folder: Path, name: str, sources: dict[str, str]) -> runs.Finished:
    """A run of sources with the stages of each."""
    (folder / name).mkdir(exist_ok=True)
    listed = "".join(
        f"  {source}: {{path: {folder}/{source}/*.jsonl, stages: {stages}}}\n" for source, stages in sources.items()
    )
    return runs.run_mixture(runs.write_mixture(folder / name, listed, "", TAIL), make_engine=runs.InProcess)


def _num_dropped(folder: Path, against: str, name: str = "exact") -> int:
    """Documents of `all` that a run against an index drops."""
    held = _run(folder, f"of-all-{name}", {"all": f"[dedup.exact: {{as: {name}, against: {against}}}]"})
    records = [record for step in held.plan.of_kind("map", "all") for record in step.records]
    return sum(sum(record.metrics.document_counts.dropped.values()) for record in records)


def test_index_of_outputs_with_other_names_for_a_stage_holds_all_of_them(folder: Path, left: str) -> None:
    right = _run(folder, "of-right", {"right": "[dedup.exact: {as: right}]"})
    made = str(folder / "left-and-right")
    make_index([left, right.mixture.output], made)
    assert [_num_dropped(folder, made, name) for name in ("left", "right", "neither")] == [10, 10, 10]


def test_index_of_outputs_of_which_one_lacks_a_stage_is_refused(folder: Path, left: str) -> None:
    """A later dedup.lines would compare with one of them alone."""
    more = _run(folder, "of-right-and-lines", {"right": "[dedup.exact: {as: right}, dedup.lines]"})
    with pytest.raises(UserError, match=r"its stages are right, dedup\.lines, those of the outputs before it are left\."):
        make_index([left, more.mixture.output], str(folder / "uneven"))


def test_stage_that_sources_had_with_different_options_is_compared_with_as_one(folder: Path) -> None:
    """The options change no row: the earlier run has two stages of one name, each with the documents of its source."""
    stages = {"left": "[dedup.exact]", "right": "[dedup.exact: {keep: longest}]"}
    both, made = _run(folder, "of-both-kinds", stages).mixture.output, str(folder / "of-two-kinds")
    make_index([both], made)
    assert [_num_dropped(folder, against) for against in (both, made)] == [10, 10]


def test_index_command_that_was_killed_can_be_repeated(folder: Path, left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(index: Any) -> None:
        raise KeyboardInterrupt

    target = folder / "killed"
    with monkeypatch.context() as patched:
        patched.setattr("datapipe.index.takedown.write_index", killed)
        with pytest.raises(KeyboardInterrupt):
            make_index([left], str(target))
    (target / ".index.json.0123.tmp").write_text("{")
    made = make_index([left], str(target))
    assert {path for path, _ in made.root.list_files("rows")} == {rows.output.path for rows in made.rows}
    assert not (target / ".index.json.0123.tmp").exists()


def test_index_command_that_is_killed_anywhere_is_marked_and_completed_by_the_same_one(
    folder: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _content(make_index([left], str(folder / "never-killed")).root)
    steps = 0
    while _is_killed(steps, lambda target: make_index([left], target), folder / f"index-killed-{steps}", monkeypatch):
        root = Root(str(folder / f"index-killed-{steps}"))
        assert "_UNFINISHED" in _content(root) or not _content(root)
        make_index([left], root.url)
        assert _content(root) == expected
        steps += 1
    assert steps > 3


def _content(root: Root) -> dict[str, bytes]:
    return {path: root.read_bytes(path) for path, _ in root.list_files("") if "lock" not in path}


def _is_killed(step: int, act: Callable[[str], Any], target: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a command is killed before this write or delete; it has no such step otherwise."""
    left_to_do = [step]

    def dying(method: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            left_to_do[0] -= 1
            if left_to_do[0] < 0:
                raise KeyboardInterrupt
            return method(*given, **named)

        return call

    with monkeypatch.context() as patched:
        for name in ("open_output", "write_atomic", "delete"):
            patched.setattr(Root, name, dying(getattr(Root, name)))
        try:
            act(str(target))
        except KeyboardInterrupt:
            return True
    return False


def test_index_that_is_whole_is_told_and_another_one_is_refused_there(folder: Path, left: str) -> None:
    made = str(folder / "whole")
    first = datapipe(["index", left, "--to", made])
    before = _content(Root(made))
    again = datapipe(["index", left, "--to", made])
    assert (first.returncode, again.returncode, _content(Root(made))) == (0, 0, before)
    assert again.stdout == f"{first.stdout.rstrip()}. It was whole already: nothing was written\n"
    right = _run(folder, "of-right-alone", {"right": "[dedup.exact: {as: right}]"}).mixture.output
    for outputs in ([right], [left, right]):
        with pytest.raises(UserError, match="the folder holds an index of other rows, as its file _EXPORTED says"):
            make_index(outputs, made)
    take_down(made, ["left/0.jsonl:0"])
    assert not _content(Root(make_index([left], made).url)).keys() & {"_UNFINISHED"}  # what was taken down stays out
    assert sum(rows.output.rows for rows in open_index(made).rows) == 4
    path = Path(made, open_index(made).rows[0].output.path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"this file of the index is missing or has changed\. Delete"):
        make_index([left], made)


def test_index_in_a_folder_with_other_files_is_refused_and_deletes_none(folder: Path, left: str) -> None:
    mine = folder / "taken" / "rows" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("keep me")
    with pytest.raises(UserError, match=r"the folder has other files, such as rows/mine\.txt"):
        make_index([left], str(folder / "taken"))
    assert [path for path in (folder / "taken").rglob("*") if path.is_file()] == [mine]


def test_takedown_that_was_killed_at_any_step_is_completed_by_the_next_one(
    folder: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed takedown leaves the old index or the new one; the same command deletes every file with rows of the document."""
    done = make_index([left], str(folder / "done")).root
    take_down(done.url, ["left/0.jsonl:0"])
    steps = 0
    while (killed := _killed_at(steps, folder, left, monkeypatch)) is not None:
        steps += 1
        assert open_index(killed.url).stages
        assert take_down(killed.url, ["left/0.jsonl:0"]).rows in ({"left": 1}, {})
        assert [len(killed.list_files(name)) for name in ("rows", "index")] == [1, 2]
        assert open_index(killed.url).rows[0].output.checksum == open_index(done.url).rows[0].output.checksum
    assert steps > 4


def _killed_at(step: int, folder: Path, left: str, monkeypatch: pytest.MonkeyPatch) -> Root | None:
    """An index whose takedown was killed before this write or delete; None when it has no such step."""
    root = make_index([left], str(folder / f"killed-at-{step}")).root
    is_killed = _is_killed(step, lambda url: take_down(url, ["left/0.jsonl:0"]), Path(root.url), monkeypatch)
    return root if is_killed else None


def test_takedown_while_another_is_at_work_is_refused(folder: Path, left: str) -> None:
    """Each would delete the files that the other one writes."""
    made = make_index([left], str(folder / "wanted-by-two")).root.url
    with exclusive(Root(made)), pytest.raises(UserError, match="another run is using this output"):
        take_down(made, ["left/0.jsonl:0"])
    assert take_down(made, ["left/0.jsonl:0"]).rows == {"left": 1}


def test_takedown_during_a_run_against_the_index_is_an_error_with_a_remedy(
    folder: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_index([left], str(folder / "changing")).root.url

    def prepared(mixture: Any, limit: int | None, say: Any, only: Any) -> Any:
        request = prepare(mixture, limit)
        assert take_down(made, ["left/0.jsonl:0"]).rows
        return request

    with monkeypatch.context() as patched:
        patched.setattr("datapipe.engine.run.prepare", prepared)
        with pytest.raises(UserError, match=r"is gone. If documents were taken down from the index meanwhile, run the same"):
            _num_dropped(folder, made, "changing")
    assert _num_dropped(folder, made, "changing") == 4


def test_takedown_of_documents_that_are_not_there_lists_them_and_ends_with_status_1(folder: Path, left: str) -> None:
    made = make_index([left], str(folder / "asked-for-more")).root.url
    done = datapipe(["takedown", made, "left/0.jsonl:0", "left/0.jsonl:1", "left/9.jsonl:0"])
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "left: 1 row deleted",
        "1 of 3 documents deleted; not in the index:",
        "  left/0.jsonl:1: it has no rows",
        "  left/9.jsonl:0: no such input file",
    ]
    assert datapipe(["takedown", made, "left/0.jsonl:0"]).returncode == 1
    assert datapipe(["takedown", made, f"left/0.jsonl:{_second(folder)}"]).returncode == 0


def _second(folder: Path) -> int:
    """The position of the second document of `left`."""
    return (folder / "left" / "0.jsonl").read_bytes().index(b"\n") + 1
