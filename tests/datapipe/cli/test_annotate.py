"""`datapipe classifier annotate`: real processes, killed at the worst moment, and what the user gives."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import corpora
from tests.support.chat_server import ChatServer, chat_server
from tests.support.cli_processes import DEADLINE_S, start, wait_until
from tests.support.cli_processes import run as run_process
from tests.support.command_line import datapipe

RUBRIC = Path(__file__).resolve().parents[3] / "mixtures" / "educational.md"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as chat:
        chat.answer = lambda message: f"Words.\nScore: {len(message) % 6}"
        yield chat


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A mixture whose stages change texts and drop one of two sources' documents."""
    rng = random.Random(1)
    long = [f"Cafe\u0301 {corpora.prose(rng, 60)}" for _ in range(30)]
    corpora.write_jsonl(tmp_path / "web.jsonl", [{"text": text} for text in [*long, *["too short"] * 5]])
    corpora.write_jsonl(tmp_path / "books.jsonl", [{"text": corpora.prose(rng, 60)} for _ in range(10)])
    path = tmp_path / "mixture.yaml"
    path.write_text(
        f"name: small\noutput: {tmp_path}/run\nsources:\n  web: {{path: {tmp_path}/web.jsonl, weight: 0.5}}\n"
        f"  books: {{path: {tmp_path}/books.jsonl, weight: 0.5}}\n"
        "stages:\n  - normalize.unicode\n  - filter.length: {min_chars: 100}\n"
        "tokenizer:\n  train: {vocab_size: 600}\n"
    )
    return path


def arguments(mixture: Path, server: ChatServer, output: Path, *more: str) -> list[str]:
    options = {"--rubric": RUBRIC, "--endpoint": server.url, "--model": "m", "--output": output, "--workers": 1}
    return ["classifier", "annotate", str(mixture), *(str(part) for option in options.items() for part in option), *more]


@pytest.mark.slow
def test_annotate_killed_between_an_answer_and_the_cache_asks_for_that_one_again(tmp_path, mixture, server):
    """SIGKILL when the seventh answer has been written to the client's file and not yet synced, then the same command."""
    kill = (
        "import os, signal\n"
        "from datapipe.classifier.annotation import cache\n"
        "real, calls = cache._write_all, []\n"
        "def write(descriptor, content, offset):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 7:\n"
        "        real(descriptor, content[: len(content) // 2], offset)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(descriptor, content, offset)\n"
        "cache._write_all = write\n"
    )
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os\nif os.environ.get('KILL'):\n" + "".join(f"    {line}\n" for line in kill.splitlines())
    )
    paths = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    command = arguments(mixture, server, tmp_path / "out", "--source", "web", "--sample", "20", "--concurrency", "1")
    killed = run_process(command, env=os.environ | {"PYTHONPATH": paths, "KILL": "1"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(server.requests) == 7
    done = run_process(command)
    assert done.returncode == 0, done.stderr
    assert "6 answered already, 14 to ask" in done.stdout
    assert len(server.requests) == 7 + 14
    content = (tmp_path / "out" / "labelled.jsonl").read_bytes()
    again = datapipe(command)
    assert (again.returncode, len(server.requests)) == (0, 21)
    assert (tmp_path / "out" / "labelled.jsonl").read_bytes() == content
    whole = datapipe(arguments(mixture, server, tmp_path / "whole", "--source", "web", "--sample", "20"))
    assert whole.returncode == 0
    assert (tmp_path / "whole" / "labelled.jsonl").read_bytes() == content
    rows = [json.loads(line) for line in content.splitlines()]
    assert all(row["text"].startswith("Caf\u00e9 ") and row["id"].startswith("web/") for row in rows)


@pytest.mark.slow
def test_annotate_stops_at_a_signal_and_refuses_a_second_process(tmp_path, mixture, server):
    server.fail("stall", text="", times=None)
    process = start(arguments(mixture, server, tmp_path / "out", "--sample", "3"))
    try:
        wait_until(lambda: len(server.requests) == 3, "three requests")
        second = run_process(arguments(mixture, server, tmp_path / "out", "--sample", "3"))
        assert second.returncode == 2
        assert "another run is using this output" in second.stderr
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert "stopped. All answers are kept" in errors
        assert "Traceback" not in errors
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--format", "csv"], "--format csv: expected jsonl or parquet"),
        (["--max-cost", "3"], "--max-cost requires prices"),
        (["--max-tokens", "many"], "--max-tokens many: expected"),
        (["--max-unparsed", "200%"], "--max-unparsed 200%: expected"),
        (["--api-key-env", "DATAPIPE_NO_SUCH_KEY"], "--api-key-env DATAPIPE_NO_SUCH_KEY: the environment variable is not set"),
        (["--rubric", "none.md"], "--rubric none.md: cannot be read"),
        (["--endpoint", "host"], "--endpoint host: expected a URL"),
    ],
)
def test_annotate_tells_what_is_wrong_before_anything_runs(tmp_path, server, options, expected):
    done = datapipe([*arguments(tmp_path / "none.yaml", server, tmp_path / "out"), *options])
    assert done.returncode == 2
    assert expected in done.stderr
    assert not (tmp_path / "out").exists()
