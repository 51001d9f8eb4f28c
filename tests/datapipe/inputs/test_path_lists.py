"""Lists of input files: `@files.txt`, on a disk, a web server and an object store."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from datapipe.errors import UserError
from datapipe.inputs import path_lists
from datapipe.inputs.discovery import discover
from datapipe.inputs.entries import Notes
from datapipe.stage import InputFile
from datapipe.storage.outages import OutageError
from stages.read.text import Text
from tests.support.object_store import object_store, put_public
from tests.support.unreliable_store import unreliable
from tests.support.web_server import web_server

pytestmark = pytest.mark.medium

WHERE = "mixture.yaml:7: sources.web.path"


def _discover(
    *patterns: str, prefix: str | None = None, exclude: tuple[str, ...] = (), twice: list[str] | None = None
) -> list[InputFile]:
    notes = Notes(named_twice=[] if twice is None else twice)
    found = discover(patterns, lambda path: Text(), "stat", WHERE, exclude, prefix=prefix, notes=notes)
    return [file for file, _ in found]


def _refused(*patterns: str, **options: object) -> str:
    with pytest.raises(UserError) as raised:
        _discover(*patterns, **options)  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"{WHERE}: ")
    return str(raised.value).removeprefix(f"{WHERE}: ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files a.txt, b.txt, deep/c.txt, each with its name as content."""
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "paths"),
    [
        (b"deep/c.txt\na.txt\n", ["a.txt", "deep/c.txt"]),
        (b"\xef\xbb\xbf# files\r\n\r\n  a.txt \r\n\t\r\n#b.txt\r\ndeep/c.txt", ["a.txt", "deep/c.txt"]),
        (b"x[1]*?.txt\n", ["x[1]*?.txt"]),
    ],
    ids=["relative", "comments and blank lines", "names and no patterns"],
)
def test_list_lines_name_files_below_the_list(folder: Path, content: bytes, paths: list[str]) -> None:
    (folder / "x[1]*?.txt").write_text("odd")
    (folder / "list.txt").write_bytes(content)
    files = _discover(f"@{folder}/list.txt")
    assert [(file.path, file.url, file.num_bytes) for file in files] == [
        (name, f"{folder}/{name}", (folder / name).stat().st_size) for name in paths
    ]


def test_list_lines_are_relative_to_the_prefix(folder: Path) -> None:
    (folder / "deep" / "list.txt").write_text("./a.txt\ndeep/c.txt")
    for prefix in (str(folder), f"{folder}/", f"file://{folder}"):
        assert [file.path for file in _discover(f"@{folder}/deep/list.txt", prefix=prefix)] == ["a.txt", "deep/c.txt"]


def test_list_local_lines_may_be_absolute_or_above(folder: Path) -> None:
    (folder / "deep" / "list.txt").write_text(f"{folder}/a.txt\nfile://{folder}/deep/c.txt\n../b.txt\n")
    files = _discover(f"@{folder}/deep/list.txt")
    below = str(folder).lstrip("/")
    assert {file.path: file.url for file in files} == {
        f"{below}/a.txt": f"{folder}/a.txt",
        f"{below}/b.txt": f"{folder}/b.txt",
        "c.txt": f"{folder}/deep/c.txt",
    }


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("", bytes), (".gz", gzip.compress), (".zst", zstandard.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_list_may_be_compressed_and_a_cut_one_is_refused(folder: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    path = folder / f"warc.paths{ending}"
    path.write_bytes(pack(b"a.txt\nb.txt\n"))
    assert [file.path for file in _discover(f"@{path}")] == ["a.txt", "b.txt"]
    if ending:
        path.write_bytes(pack(b"a.txt\nb.txt\n" * 100)[:-4])
        assert "cut off" in _refused(f"@{path}")


def test_list_missing_file_is_named_with_its_line(folder: Path) -> None:
    (folder / "list.txt").write_text("# files\na.txt\nnone/x.txt\nnone/y.txt\ndeep\n")
    error = _refused(f"@{folder}/list.txt")
    assert f"'@{folder}/list.txt', line 3: {folder}/none/x.txt" in error and "2 other lines" in error
    assert "line 5" in _refused(f"@{folder}/list.txt", exclude=(f"{folder}/none/*",))
    assert [file.path for file in _discover(f"@{folder}/list.txt", exclude=(f"{folder}/none/*", f"{folder}/deep"))] == ["a.txt"]
    assert "leaves out all" in _refused(f"@{folder}/list.txt", exclude=(f"{folder}/**",))


def test_list_file_named_again_is_reported_and_read_once(folder: Path) -> None:
    (folder / "list.txt").write_text("a.txt\nb.txt\n./a.txt\n")
    twice: list[str] = []
    assert [file.path for file in _discover(f"@{folder}/list.txt", f"{folder}/a.txt", twice=twice)] == ["a.txt", "b.txt"]
    assert twice == [f"{folder}/list.txt, line 3: {folder}/a.txt"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "names no file"),
        (b"# nothing\n\n", "names no file"),
        (b"a.txt\nb\0.txt\n", "line 2: found a NUL byte"),
        (b"a.txt\n\xff.txt\n", "line 2: not UTF-8"),
        (b"x" * 20_000, "line 1: found a line of 20,000 bytes"),
        (gzip.compress(b"a.txt\n", mtime=0), "gzip archive"),
    ],
)
def test_list_that_is_none_is_refused(folder: Path, content: bytes, error: str) -> None:
    (folder / "list.txt").write_bytes(content)
    assert error in _refused(f"@{folder}/list.txt")


def test_list_that_is_not_there_is_reported(folder: Path) -> None:
    assert "cannot read the list" in _refused(f"@{folder}/none.txt")
    assert "cannot read the list" in _refused(f"@{folder}")


def test_list_of_a_web_server_names_files_below_it_or_elsewhere(folder: Path) -> None:
    with web_server() as server, web_server() as other:
        server.files = {"/crawl/warc.paths.gz": b"", "/crawl/x/a.txt": b"one", "/data/x/a.txt": b"three"}
        other.files = {"/b.txt": b"two"}
        lines = f"x/a.txt\n{other.url('/b.txt')}\n"
        server.files["/crawl/warc.paths.gz"] = gzip.compress(lines.encode())
        files = _discover("@" + server.url("/crawl/warc.paths.gz"))
        assert {file.path: (file.url, file.num_bytes) for file in files} == {
            "x/a.txt": (server.url("/crawl/x/a.txt"), 3),
            f"{other.address}/b.txt": (other.url("/b.txt"), 3),
        }
        [moved] = _discover("@" + server.url("/crawl/warc.paths.gz"), prefix=server.url("/data"), exclude=(other.url("/**"),))
        assert (moved.path, moved.url, moved.num_bytes) == ("x/a.txt", server.url("/data/x/a.txt"), 5)
        (folder / "paths").write_text("x/none.txt\n")
        assert "x/none.txt: there is no such file" in _refused(f"@{folder}/paths", prefix=server.url("/data"))


@pytest.mark.parametrize(
    "line",
    ["/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "fsspec+file:///etc/passwd", "../../etc/passwd", "a/../b"],
)
def test_list_of_a_store_names_no_file_of_this_machine(folder: Path, line: str) -> None:
    with web_server() as server:
        server.files = {"/list.txt": line.encode()}
        assert "names no file of this machine" in _refused("@" + server.url("/list.txt"))
        assert "names no file of this machine" in _refused("@" + server.url("/list.txt"), prefix=str(folder))
        (folder / "list.txt").write_text(line)
        assert "names no file of this machine" in _refused(f"@{folder}/list.txt", prefix=server.url(""))


def test_list_store_that_asks_to_slow_down_is_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(path_lists, "sleep", pauses.append)
    (folder / "list.txt").write_text("a.txt\n")
    with object_store("crawl") as query, unreliable(query) as store:
        put_public(query, "crawl/a.txt", b"a")
        prefix = f"s3://anonymous@crawl{store.query}&max_attempts=1"
        store.fail("status", status=503, times=2, method="HEAD")
        assert [file.path for file in _discover(f"@{folder}/list.txt", prefix=prefix)] == ["a.txt"]
        assert pauses == [1, 2]
        store.fail("status", status=503, times=None, method="HEAD")
        with pytest.raises(OutageError, match="no answer"):
            _discover(f"@{folder}/list.txt", prefix=prefix)
        assert pauses == [1, 2, 1, 2, 4, 8]


def test_list_signed_urls_are_masked_in_errors() -> None:
    with web_server() as server:
        server.files = {"/list": (server.url("/a.txt?X-Amz-Signature=abcdef12345") + "\n").encode()}
        error = _refused("@" + server.url("/list"))
        assert "/a.txt" in error
        assert "abcdef12345" not in error
