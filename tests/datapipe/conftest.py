"""A small corpus of two sources in several formats, and its mixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from datapipe.storage import file_cache
from tests.support import corpora, runs
from tests.support.object_store import object_store
from tests.support.task_processes import FreshTasks, fresh_tasks
from tests.support.unreliable_store import UnreliableStore, unreliable


def write_corpus(folder: Path) -> str:
    """Two sources under `folder`; returns the `sources:` part of a mixture."""
    for number in range(3):
        corpora.write_jsonl(folder / f"web/plain-{number}.jsonl", corpora.documents(number, 120))
    corpora.write_jsonl(folder / "web/deep/zipped.jsonl.gz", corpora.documents(10, 80))
    corpora.write_jsonl(folder / "web/deep/zstd.jsonl.zst", corpora.documents(11, 80))
    corpora.write_parquet(folder / "books/books.parquet", corpora.documents(1, 150))
    return f"""
  web:
    path: {folder}/web/**/*.jsonl*
    weight: 0.7
  books:
    path: {folder}/books/*.parquet
    weight: 0.3
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def mixture(tmp_path, corpus) -> Path:
    return runs.write_mixture(tmp_path, corpus)


@pytest.fixture(scope="session")
def tasks() -> Iterator[FreshTasks]:
    """Runs tasks in their own processes."""
    with fresh_tasks() as found:
        yield found


@pytest.fixture(scope="module")
def query() -> Iterator[str]:
    """The query of URLs of an S3 server on loopback with the bucket `outputs`."""
    with object_store("outputs") as query:
        yield query


@pytest.fixture
def store(query: str) -> Iterator[UnreliableStore]:
    """A proxy of that server, which fails as a test asks."""
    with unreliable(query) as proxy:
        yield proxy


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the cache of files of a machine that has none yet."""
    monkeypatch.setattr(file_cache, "cache_home", lambda: tmp_path / "home")
    return tmp_path / "home"
