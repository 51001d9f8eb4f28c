"""Options of type `Path`: URLs become local files, patterns the files that match, and errors name option and line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from datapipe.config.option_paths import forget_urls, local_options
from datapipe.errors import DatapipeError, UserError
from datapipe.storage import file_cache
from datapipe.storage.outages import OutageError
from datapipe.storage.root import Root
from tests.support.service import free_port
from tests.support.web_server import WebServer, web_server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_cache, "cache_home", lambda: tmp_path / "home")
    forget_urls()
    return tmp_path / "home"


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["/a.bin"], server.files["/b.bin"] = b"a", b"b"
        yield server


class _Set(BaseModel):
    file: Path | tuple[Path, ...] = Field(alias="path")
    name: str = ""


class _Options(BaseModel):
    model: Path | None = None
    models: dict[str, Path] = {}
    lists: tuple[Path, ...] = ()
    sets: tuple[Path | _Set, ...] = ()
    region: Literal["auto"] | Annotated[Path, Field(description="A file.")] = "auto"
    site: str = ""
    sites: tuple[str, ...] = ()


def _local(options: dict[str, Any]) -> dict[str, Any]:
    return dict(local_options(_Options, options, lambda path: f"mixture.yaml:7: {'.'.join(map(str, path))}").options)


def test_urls_of_path_options_become_local_files_and_other_texts_stay(web: WebServer) -> None:
    a, b = web.url("/a.bin"), web.url("/b.bin")
    options = {"model": a, "models": {"one": b}, "lists": [a, "c.bin"], "sets": [a, {"path": [b, "d"], "name": a}], "region": b}
    local = local_options(_Options, options | {"site": a, "sites": [a]}, str)
    of = {path.read_bytes(): str(path) for path in local.origins}
    assert local.options == {
        "model": of[b"a"],
        "models": {"one": of[b"b"]},
        "lists": [of[b"a"], "c.bin"],
        "region": of[b"b"],
        "sets": [of[b"a"], {"path": [of[b"b"], "d"], "name": a}],
        "site": a,
        "sites": [a],
    }
    assert local.named(f"{of[b'a']} is no model") == f"{a} is no model"
    assert _local({"region": "auto", "model": "file:///x/y.bin"}) == {"region": "auto", "model": "/x/y.bin"}


def test_patterns_become_the_files_that_match_where_an_option_takes_several(tmp_path: Path, query: str) -> None:
    store = Root(f"s3://outputs/{tmp_path.name}{query}")
    for name in ("b.txt", "a.txt", "c.md", "deep/d.txt"):
        for root in (Root(str(tmp_path / "lists")), store):
            root.write_atomic(name, name.encode())
    here, there = f"{tmp_path}/lists", f"s3://outputs/{tmp_path.name}"
    local = _local({"lists": [f"{here}/*.txt", "own.txt"], "sets": [{"path": f"{here}/**/*.txt"}]})
    assert local["lists"] == [f"{here}/a.txt", f"{here}/b.txt", "own.txt"]
    assert sorted(local["sets"][0]["path"]) == [f"{here}/a.txt", f"{here}/b.txt", f"{here}/deep/d.txt"]
    sets = [f"{there}/**/d.*{query}", {"path": f"{there}/[bc].*{query}"}]
    remote = _local({"lists": [f"{there}/*.txt{query}"], "sets": sets})
    read = [[Path(path).name for path in paths] for paths in (remote["lists"], remote["sets"][:1], remote["sets"][1]["path"])]
    assert read == [["a.txt", "b.txt"], ["d.txt"], ["b.txt", "c.md"]]
    (tmp_path / "odd[1].txt").write_text("")
    assert _local({"lists": [f"{tmp_path}/odd[1].txt"], "model": "no*pattern"})["lists"] == [f"{tmp_path}/odd[1].txt"]


@pytest.mark.parametrize(
    ("options", "key", "expected"),
    [
        ({"model": "{web}/none.bin"}, "model", "check the URL"),
        ({"models": {"one": "s3://none-such/x.bin{query}"}}, "models.one", "s3://none-such"),
        ({"lists": ["a.txt", "s3://outputs/none/x.txt{query}"]}, "lists.1", "check the URL"),
        ({"lists": ["s3://outputs/none/*.txt{query}"]}, "lists.0", "no file matches"),
        ({"sets": [{"path": "none/*.jsonl"}]}, "sets.0.path", "no file matches none/*.jsonl"),
        ({"model": "ftp://host/x.bin"}, "model", "found the scheme ftp"),
        ({"model": "s3://***@outputs/x.bin{query}"}, "model", "credentials are not stored"),
    ],
)
def test_url_that_cannot_be_read_is_named_with_option_and_line(
    web: WebServer, query: str, options: dict[str, Any], key: str, expected: str
) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return list(map(filled, value))
        return value.replace("{web}", web.url("")).replace("{query}", query)

    with pytest.raises(UserError) as raised:
        _local(filled(options))
    assert str(raised.value).startswith(f"mixture.yaml:7: {key}: ") and expected in str(raised.value)


@pytest.mark.slow
def test_server_that_does_not_answer_is_an_outage_that_names_option_and_line_and_no_secret() -> None:
    with pytest.raises(OutageError) as raised:
        _local({"model": f"http://me:Zq81Secret@127.0.0.1:{free_port()}/edu.bin"})
    assert isinstance(raised.value, DatapipeError)
    assert str(raised.value).startswith("mixture.yaml:7: model: http://***@127.0.0.1")
    assert "no answer" in str(raised.value) and "Zq81" not in str(raised.value)


def test_url_is_asked_once_a_plan(web: WebServer) -> None:
    first = _local({"model": web.url("/a.bin")})
    web.files["/a.bin"], web.etag = b"changed", '"two"'
    assert _local({"model": web.url("/a.bin")}) == first
    lines: list[str] = []
    forget_urls(lines.append)
    assert Path(_local({"model": web.url("/a.bin")})["model"]).read_bytes() == b"changed"
    assert lines == [f"  fetching {web.url('/a.bin')}, 7 B …"]
    forget_urls(lines.append)
    assert _local({"model": web.url("/a.bin")}) and len(lines) == 1  # it is in the cache
