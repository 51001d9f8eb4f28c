"""Finding input files by globs, on a local disk and on an object store, through links, each file once."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import UserError
from datapipe.inputs import local_folders
from datapipe.inputs.discovery import discover
from datapipe.inputs.entries import Notes, same_files
from datapipe.stage import InputFile, Reader
from datapipe.storage.root import Root
from stages.read.jsonl import Jsonl
from stages.read.parquet import Parquet
from stages.read.text import Text
from tests.support.object_store import object_store
from tests.support.reader_results import read_file

_TREE = [
    "web/b.jsonl",
    "web/a.jsonl",
    "web/2024/c.jsonl.gz",
    "web/2024/01/d.jsonl.zst",
    "web/.hidden.jsonl",
    "web/.git/e.jsonl",
    "web/__pycache__/f.jsonl",
    "web/notes.txt",
    "web/x[1].jsonl",
    "web/x1.jsonl",
    "web/sp ace?#%.jsonl",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in _TREE:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


def _reader_for(path: str) -> Reader:
    return Parquet() if path.endswith(".parquet") else Text() if path.endswith(".txt") else Jsonl()


def _files(*patterns: str, fingerprint: str = "stat", exclude: tuple[str, ...] = ()) -> list[InputFile]:
    return [file for file, _ in discover(patterns, _reader_for, fingerprint, "mixture.yaml:7: sources.web.path", exclude)]


def _paths(*patterns: str, **options: Any) -> list[str]:
    return [file.path for file in _files(*patterns, **options)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("web/*.jsonl", ["a.jsonl", "b.jsonl", "sp ace?#%.jsonl", "x1.jsonl", "x[1].jsonl"]),
        ("web/?.jsonl", ["a.jsonl", "b.jsonl"]),
        ("web/[!a].jsonl", ["b.jsonl"]),
        ("web/x[[]1].jsonl", ["x[1].jsonl"]),
        ("web/[]-a].jsonl", ["a.jsonl"]),
        ("web/[[:a].jsonl", ["a.jsonl"]),
        (
            "web/**/*.jsonl*",
            ["2024/01/d.jsonl.zst", "2024/c.jsonl.gz", "a.jsonl", "b.jsonl", "sp ace?#%.jsonl", "x1.jsonl", "x[1].jsonl"],
        ),
        ("web/2024/**", ["01/d.jsonl.zst", "c.jsonl.gz"]),
        ("*/2024/*.gz", ["web/2024/c.jsonl.gz"]),
        ("web/.*.jsonl", [".hidden.jsonl"]),
        ("web/__pycache__/*", ["f.jsonl"]),
        ("web/.git/*", ["e.jsonl"]),
        ("web/a.jsonl", ["a.jsonl"]),
        ("web/.hidden.jsonl", [".hidden.jsonl"]),
        ("web/x[1].jsonl", ["x[1].jsonl"]),
        ("web/sp ace?#%.jsonl", ["sp ace?#%.jsonl"]),
    ],
)
def test_discover_pattern_finds_files_relative_to_its_fixed_part(tree: Path, pattern: str, expected: list[str]) -> None:
    assert _paths(f"{tree}/{pattern}") == expected
    assert _paths(f"file://{tree}/{pattern}") == expected


def test_discover_file_carries_what_planning_needs(tree: Path) -> None:
    (file,) = _files(f"{tree}/web/2024/*.gz")
    path = tree / "web/2024/c.jsonl.gz"
    assert (file.url, file.path, file.num_bytes) == (str(path), "c.jsonl.gz", len("web/2024/c.jsonl.gz"))
    assert (file.stamp, file.compression, file.row_groups) == (str(path.stat().st_mtime_ns), "gzip", ())
    assert [one.compression for one in _files(f"{tree}/web/2024/01/*", f"{tree}/web/a.jsonl")] == [None, "zstd"]


def test_discover_relative_pattern_is_from_the_working_directory(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "web")
    assert [file.url for file in _files("./a.*", "../web/b.jsonl")] == [f"{tree}/web/a.jsonl", f"{tree}/web/b.jsonl"]


def test_discover_overlapping_patterns_give_each_file_once_but_what_is_excluded(tree: Path) -> None:
    assert _paths(f"{tree}/web/*.jsonl", f"{tree}/web/a.jsonl", f"{tree}/web/?.jsonl") == _paths(f"{tree}/web/*.jsonl")
    assert _paths(f"{tree}/web/*.jsonl", exclude=("**/x*", f"{tree}/web/sp*")) == ["a.jsonl", "b.jsonl"]


def test_discover_two_files_of_one_relative_path_are_refused(tree: Path) -> None:
    (tree / "other").mkdir()
    (tree / "other/a.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match=r"'a\.jsonl'"):
        _files(f"{tree}/web/a.jsonl", f"{tree}/other/a.jsonl")


def test_discover_content_fingerprint_follows_the_bytes_and_not_the_time(tree: Path) -> None:
    path = tree / "web/a.jsonl"
    first = _files(str(path), fingerprint="content")[0].stamp
    os.utime(path, ns=(1, 1))
    assert _files(str(path), fingerprint="content")[0].stamp == first
    assert _files(str(path))[0].stamp == "1"
    path.write_bytes(b"web/A.jsonl")
    assert _files(str(path), fingerprint="content")[0].stamp != first


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("web/*.parquet", ["matches no file", "web exists"]),
        ("wbe/*.jsonl", ["matches no file", "Did you mean 'web'?"]),
        ("web/a.json", ["matches no file", "Did you mean 'a.jsonl'?"]),
        ("web", ["is a folder", "web/**"]),
        ("web/2024/01/", ["is a folder", "web/2024/01/**"]),
        ("web/[z-a].jsonl", ["is not a glob"]),
        ("web/[q].jsonl", ["matches no file"]),
    ],
)
def test_discover_nothing_found_reports_what_is_there(tree: Path, pattern: str, said: list[str]) -> None:
    with pytest.raises(UserError) as raised:
        _files(f"{tree}/{pattern}")
    assert str(raised.value).startswith("mixture.yaml:7: sources.web.path: '") and "\n" not in str(raised.value)
    assert [part for part in said if part not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("[D]/*.txt", ["a.txt"]),
        ("[D]/**", ["[x]/b[1].txt", "a.txt"]),
        ("[D]/[x]/b[1].txt", ["b[1].txt"]),
        ("[D]/[x]/b[[][0-9]].txt", ["b[1].txt"]),
        ("[D]/[a-c].txt", ["a.txt"]),
        ("[[]D]/*.txt", ["[D]/a.txt"]),
        ("[E]/*.txt", ["E/c.txt"]),
    ],
)
def test_discover_part_with_brackets_that_exists_is_taken_as_written(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    for name in ("[D]/a.txt", "[D]/[x]/b[1].txt", "D/wrong.txt", "E/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert _paths(f"{tmp_path}/{pattern}") == expected
    assert _paths(f"{tmp_path}/[D]/**", exclude=(f"{tmp_path}/[D]/[x]/*",)) == ["a.txt"]
    with pytest.raises(UserError, match="is a folder"):
        _paths(f"{tmp_path}/[D]/[x]")


def test_discover_broken_link_and_pipe_by_name_are_distinguished_from_what_is_missing(tree: Path) -> None:
    (tree / "gone.jsonl").symlink_to(tree / "nowhere")
    os.mkfifo(tree / "pipe.jsonl")
    for name in ("gone", "pipe"):
        with pytest.raises(UserError, match="broken link"):
            _files(f"{tree}/{name}.jsonl")


@pytest.mark.parametrize("name", ["two words", "new\nline", "quote'\"", "back\\slash", "%20", "ünï中", "a#b?c=d&e", "-", "~"])
def test_discover_file_of_an_odd_name_is_found_and_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / f"{name}.txt").write_bytes(b"text")
    for pattern in (f"{tmp_path}/*/*.txt", f"{tmp_path}/**"):
        (file,) = _files(pattern)
        assert (file.path, read_file(Text(), file).texts) == (f"{name}/{name}.txt", ["text"])
    (file,) = _files(f"{tmp_path}/{name}/{name}.txt")
    assert (file.path, read_file(Text(), file).texts) == (f"{name}.txt", ["text"])


def test_discover_name_that_is_not_utf8_is_an_error_only_where_it_matches(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_bytes(b"")
    with open(os.fsencode(tmp_path) + b"/bad\xff.txt", "wb"):
        pass
    assert _paths(f"{tmp_path}/g*.txt") == ["good.txt"]
    assert _paths(f"{tmp_path}/*.txt", exclude=("**/bad*",)) == ["good.txt"]
    with pytest.raises(UserError, match=r"bad\\udcff\.txt' is not UTF-8"):
        _files(f"{tmp_path}/*.txt")


@pytest.fixture
def closed() -> Iterator[Path]:
    """A file, one that may not be read and a folder that may not be opened, for a user whom permissions bind."""
    with tempfile.TemporaryDirectory() as name:
        folder, is_root = Path(name), os.geteuid() == 0
        folder.chmod(0o755)
        (folder / "a.txt").write_bytes(b"")
        (folder / "b.md").write_bytes(b"text")
        (folder / "b.md").chmod(0)
        (folder / "closed").mkdir(0)
        if is_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            (folder / "closed").chmod(0o700)


def test_discover_folder_and_file_that_may_not_be_read_are_errors_where_the_pattern_takes_them(closed: Path) -> None:
    assert _paths(f"{closed}/*.txt") == ["a.txt"]
    for pattern, refused in (("**", "closed"), ("*.md", "b.md")):
        with pytest.raises(UserError, match=f"{closed}/{refused}: Permission denied"):
            _paths(f"{closed}/{pattern}")


def test_discover_folder_of_the_ending_that_a_pattern_asks_for_is_an_error(tree: Path) -> None:
    """Spark writes such folders, whose documents would be missing in silence."""
    (tree / "web/part.jsonl").mkdir()
    (tree / "web/part.jsonl/part-0.jsonl").write_bytes(b"")
    for pattern in ("web/*.jsonl", "*/part*.jsonl", "web/p?rt.jsonl"):
        with pytest.raises(UserError, match=rf"here: .*{tree}/web/part\.jsonl is a folder"):
            discover([f"{tree}/{pattern}"], _reader_for, "stat", "here")
    assert "part.jsonl/part-0.jsonl" in _paths(f"{tree}/web/**/*.jsonl")
    assert "part.jsonl" not in _paths(f"{tree}/web/*")
    assert _paths(f"{tree}/web/*.jsonl", exclude=("**/part.jsonl",)) == _paths(f"{tree}/web/[!p]*.jsonl")


@pytest.mark.parametrize("pattern", ["web/*.jsonl", "web/**/*.jsonl", "*/g*.jsonl"])
def test_discover_broken_link_of_the_ending_that_a_pattern_asks_for_is_an_error(tree: Path, pattern: str) -> None:
    (tree / "web/gone.jsonl").symlink_to(tree / "nowhere")
    with pytest.raises(UserError, match=rf"{tree}/web/gone\.jsonl is a broken link"):
        _files(f"{tree}/{pattern}")
    assert "gone.jsonl" not in _paths(f"{tree}/web/**")
    assert _paths(f"{tree}/web/*.jsonl", exclude=("**/gone*",)) == _paths(f"{tree}/web/[!g]*.jsonl")


def test_discover_broken_links_and_closed_folders_do_not_stop_it(tree: Path) -> None:
    (tree / "web/gone.jsonl").symlink_to(tree / "nowhere")
    (tree / "web/loop.jsonl").symlink_to(tree / "web/loop.jsonl")
    (tree / "web/link.jsonl").symlink_to(tree / "web/a.jsonl")
    assert "link.jsonl" in _paths(f"{tree}/web/**")
    assert not {"gone.jsonl", "loop.jsonl"} & set(_paths(f"{tree}/web/**"))
    notes = Notes()
    discover([f"{tree}/web/**"], _reader_for, "stat", "here", (f"{tree}/web/l*",), notes=notes)
    assert notes.passed_over == [f"{tree}/web/gone.jsonl"]


def test_discover_parquet_knows_its_row_groups_and_a_broken_one_does_not_stop_planning(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"] * 10}), tmp_path / "a.parquet", row_group_size=4)
    (tmp_path / "b.parquet").write_bytes(b"broken")
    good, broken = _files(f"{tmp_path}/*.parquet")
    assert [rows for rows, _ in good.row_groups] == [4, 4, 2]
    assert broken.row_groups == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_discover_object_store_is_listed_and_read_like_a_disk() -> None:
    with object_store("corpus") as query:
        for name in ("web/a.jsonl", "web/b/c.jsonl", "web/b/.d.jsonl", "web/e.txt", "[D]/f.jsonl"):
            Root(f"s3://corpus{query}").write_atomic(name, b'{"text": "%s"}\nbad\n' % name.encode())
        assert _paths(f"s3://corpus/web/*.jsonl{query}") == ["a.jsonl"]
        assert _paths(f"s3://corpus/web/**{query}") == ["a.jsonl", "b/c.jsonl", "e.txt"]
        assert _paths(f"s3://corpus/[D]/*.jsonl{query}") == ["f.jsonl"]
        assert _paths(f"s3://corpus/*/b/?.jsonl{query}") == ["web/b/c.jsonl"]
        (file,) = _files(f"s3://corpus/web/b/c.jsonl{query}")
        assert (file.path, file.url) == ("c.jsonl", f"s3://corpus/web/b/c.jsonl{query}")
        found = read_file(Jsonl(), file)
        assert (found.texts, found.rejected_places) == (["web/b/c.jsonl"], [26])
        with pytest.raises(UserError, match="matches no file"):
            _files(f"s3://corpus/web/*.parquet{query}")
        with pytest.raises(UserError, match="is a folder"):
            _files(f"s3://corpus/web{query}")


def _tree(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def _listed(pattern: str, exclude: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    notes = Notes()
    found = discover([pattern], lambda path: Text(), "stat", "here", exclude, notes=notes)
    return [file.path for file, _ in found], notes.linked_again


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.txt", ["a.txt", "l/deep/y.txt", "l/x.txt"]),
        ("*/*.txt", ["l/x.txt"]),
        ("*/*/*.txt", ["l/deep/y.txt"]),
        ("*.txt", ["a.txt"]),
        ("l/*.txt", ["x.txt"]),
    ],
)
def test_folders_link_to_another_folder_is_followed(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    _tree(tmp_path, "data/a.txt", "elsewhere/x.txt", "deep/y.txt")
    (tmp_path / "data/l").symlink_to("../elsewhere")
    (tmp_path / "elsewhere/deep").symlink_to("../deep")
    assert _listed(f"{tmp_path}/data/{pattern}") == (expected, [])


def test_folders_linked_twice_gives_its_files_once_and_is_reported(tmp_path: Path) -> None:
    """A folder's own path comes first, then the first link by its path."""
    _tree(tmp_path, "data/real/a.txt", "elsewhere/b.txt")
    for name, target in (("again", "real"), ("m", "../elsewhere"), ("l", "../elsewhere")):
        (tmp_path / "data" / name).symlink_to(target)
    paths, told = _listed(f"{tmp_path}/data/**/*.txt")
    assert paths == ["l/b.txt", "real/a.txt"]
    pairs = (("data/again", "data/real"), ("data/m", "elsewhere"))
    assert [again in line and once in line for line, (again, once) in zip(told, pairs, strict=True)] == [True, True]


def test_folders_link_by_a_name_that_the_pattern_asks_for_is_entered_again(tmp_path: Path) -> None:
    _tree(tmp_path, "data/all/a.txt", "data/all/sub/b.txt")
    (tmp_path / "data/train").symlink_to("all")
    assert _listed(f"{tmp_path}/data/**/train/**/*.txt") == (["train/a.txt", "train/sub/b.txt"], [])


def test_folders_loops_end_and_are_reported(tmp_path: Path) -> None:
    _tree(tmp_path, "data/x/a.txt", "elsewhere/b.txt")
    (tmp_path / "data/x/up").symlink_to("..")
    (tmp_path / "data/out").symlink_to("../elsewhere")
    (tmp_path / "elsewhere/back").symlink_to("../data")
    paths, told = _listed(f"{tmp_path}/data/**/*.txt")
    assert paths == ["out/b.txt", "x/a.txt"]
    assert [line.split()[0] for line in told] == [f"{tmp_path}/data/x/up", f"{tmp_path}/data/out/back"]


def test_folders_hidden_link_is_entered_by_name_alone(tmp_path: Path) -> None:
    _tree(tmp_path, "data/a.txt", "elsewhere/b.txt")
    (tmp_path / "data/.cache").symlink_to("../elsewhere")
    assert _listed(f"{tmp_path}/data/**")[0] == ["a.txt"]
    assert _listed(f"{tmp_path}/data/**/.cache/*")[0] == [".cache/b.txt"]


def test_folders_links_that_cross_each_other_end_as_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_folders, "_MOST_VISITS", 100)
    for level in range(12):
        (tmp_path / f"data/{level}").mkdir(parents=True)
    for level in range(11):
        for name in ("a", "b"):
            (tmp_path / f"data/{level}/{name}").symlink_to(f"../{level + 1}")
    with pytest.raises(UserError, match="more than 100 paths"):
        _listed(f"{tmp_path}/data/**/*.txt")


def _file(url: str, num_bytes: int = 7, mtime_ns: int = 1) -> InputFile:
    return InputFile(url=url, path=url.rpartition("/")[2], num_bytes=num_bytes, stamp=str(mtime_ns), mtime_ns=mtime_ns)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s3://bucket/a.jsonl", "s3://bucket/a.jsonl", True),
        ("s3://bucket/a.jsonl?region=x", "s3://bucket/a.jsonl", True),
        ("s3://bucket/a.jsonl", "s3://other/a.jsonl", False),
        ("https://host/get?id=1", "https://host/get?id=1", True),
        ("https://host/get?id=1", "https://host/get?id=2", False),
        ("/gone/a.jsonl", "/gone/a.jsonl", False),
    ],
)
def test_url_is_the_same_file_without_the_options_of_a_store(one: str, other: str, is_same: bool) -> None:
    first, second = _file(one), _file(other)
    assert same_files({"a": [first], "b": [second]}) == ([[("a", first), ("b", second)]] if is_same else [])
