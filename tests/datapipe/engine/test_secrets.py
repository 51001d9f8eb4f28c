"""Credentials of URLs and variables appear in no file and no line that a run or a command writes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datapipe.config import load_mixture
from datapipe.engine.history import read_history, read_mixture
from datapipe.records.names import INPUTS, MIXTURE
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.cli_processes import run as run_process
from tests.support.command_line import datapipe
from tests.support.object_store import object_store

MARKER = "Zq81UnlikelySecret"
LITERAL = "Zq81LiteralSecret"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}"


@pytest.fixture(scope="module")
def query() -> Iterator[str]:
    with object_store("corpus") as found:
        store = Root(f"s3://corpus/web{found}")
        for number in range(2):
            store.write_atomic(f"{number}.jsonl", corpora.jsonl(corpora.documents(number, 40, short=0.3)))
        yield found


@pytest.fixture
def mixture(tmp_path: Path, query: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mixture with a secret in a variable, in its input's and its output's URL."""
    monkeypatch.setenv("STORE_SECRET", MARKER)
    url = "s3://KEY:${STORE_SECRET}@corpus"
    path = tmp_path / "mixture.yaml"
    path.write_text(
        f"name: test\noutput: {url}/{tmp_path.name}{query}\nsources:\n  web: {{path: '{url}/web/*.jsonl{query}'}}\n"
        f"stages: [filter.gopher_quality]\n{_TAIL}\n"
    )
    return path


def _assert_clean(*texts: str | bytes) -> None:
    for text in texts:
        content = text if isinstance(text, bytes) else text.encode()
        assert not any(secret.encode() in content for secret in (MARKER, LITERAL)), text


def _assert_no_file_has_a_secret(root: Root) -> None:
    paths = [path for path, _ in root.list_files("")]
    assert len(paths) >= 5
    for path in paths:
        _assert_clean(path, root.read_bytes(path))
    for column in pq.read_table(root.open_input(INPUTS)).to_pylist():
        _assert_clean(repr(column))


def _run_clean(arguments: list[str], status: int = 0) -> str:
    done = datapipe(arguments)
    assert done.returncode == status, done.stderr
    _assert_clean(done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_secrets_of_a_run_are_in_no_file_and_no_line(mixture, tmp_path):
    _run_clean(["plan", str(mixture)])
    done = run_process(["run", str(mixture), "--workers", "1"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _assert_clean(done.stdout, done.stderr)
    output = load_mixture(mixture).output
    assert MARKER in output
    root = Root(output)
    _assert_no_file_has_a_secret(root)
    assert b"s3://KEY:${STORE_SECRET}@corpus/web" in root.read_bytes(MIXTURE)
    assert read_mixture(root) == load_mixture(mixture)
    assert all(MARKER in file.url for _, file, _ in read_history(root).files.values())
    assert "as it was read" in _run_clean(["inspect", output, "--dropped", "filter.gopher_quality", "-n", "1"])
    for command in ("report", "verify"):
        _run_clean([command, output])
    _run_clean(["trace", output, "--step", "0", "--global-batch-size", "4"])
    _run_clean(["export", output, "--format", "parquet", "--to", str(tmp_path / "export")])
    _run_clean(["index", output, "--to", str(tmp_path / "index")], status=2)
    _run_clean(["verify", f"{output.partition('?')[0]}/none?{output.partition('?')[2]}"], status=2)


def test_secrets_of_a_failed_run_are_in_no_file_and_no_line(mixture, tmp_path, query):
    (tmp_path / "failing.py").write_text(
        "from datapipe.stage import Map\n\nclass Leaks(Map):\n    url: str = ''\n\n"
        "    def open(self, context):\n        raise RuntimeError(f'cannot use {self.url}')\n\n"
        "    def process(self, batch):\n        return {}\n"
    )
    literal, path = f"https://user:{LITERAL}@host/a?X-Amz-Signature={LITERAL}", tmp_path / "failing.yaml"
    leaks = f"[{{failing:Leaks: {{url: '{literal}&key=${{STORE_SECRET}}'}}}}]"
    path.write_text(mixture.read_text().replace("[filter.gopher_quality]", leaks))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = run_process(["run", str(path), "--workers", "1"], cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert "cannot use https://***@host/a?***" in done.stderr
    _assert_clean(done.stdout, done.stderr)
    root = Root(load_mixture(path).output)
    _assert_no_file_has_a_secret(root)
    assert b"cannot use https://***@host/a?***" in root.read_bytes("work/failure.txt")


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("s3://KEY:{0}/slash@corpus/x.jsonl", 2),
        ("ftp://u:{0}@host/x.jsonl", 2),
        ("s3://KEY:{0}@corpus/x.jsonl?sig={0}", 2),
        ("https://u:{0}@127.0.0.1:1/x.jsonl?sig={0}", 1),  # nothing answers
        ("'@http://u:{0}@127.0.0.1:1/x.paths'", 1),
    ],
)
def test_secret_of_a_wrong_url_is_masked_where_it_is_refused(mixture, url, status):
    printed = _run_clean(["plan", str(mixture), "--set", f"sources.web.path={url.format(LITERAL)}"], status=status)
    assert "***" in printed


def test_secret_that_is_written_out_is_left_out_and_asked_for(tmp_path, query):
    sources = f"  web: {{path: 's3://KEY:{LITERAL}@corpus/web/*.jsonl{query}'}}"
    path = runs.write_mixture(tmp_path, sources, "stages: [filter.gopher_quality]", _TAIL)
    done = runs.run_mixture(path, make_engine=runs.InProcess)
    root = Root(done.mixture.output)
    _assert_no_file_has_a_secret(root)
    assert b"s3://***@corpus/web/" in root.read_bytes(MIXTURE)
    assert "written in the mixture as variables" not in _run_clean(["inspect", root.url, "--kept", "-n", "1"])
    printed = _run_clean(["inspect", root.url, "--dropped", "filter.gopher_quality", "-n", "1"], status=2)
    assert "credentials are not stored with the output" in printed


def test_another_key_runs_no_task_again(mixture, tmp_path, query, monkeypatch):
    output = str(tmp_path / "local")
    first = runs.run_mixture(mixture, output=output, make_engine=runs.InProcess)
    monkeypatch.setenv("STORE_SECRET", "another-key")
    again = runs.run_mixture(mixture, output=output, make_engine=runs.InProcess)
    assert again.watcher.records == []
    assert read_snapshot(Root(output)) == first.snapshot
    monkeypatch.delenv("STORE_SECRET")
    assert read_mixture(Root(output)).sources["web"].path[0].startswith("s3://KEY:${STORE_SECRET}@corpus")
