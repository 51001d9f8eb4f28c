"""Commands beside others: pinned snapshots and cleaning, annotation by real processes, and stores that do not answer."""

import json
import os
import random
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree

import pytest
from typer.testing import CliRunner

from datapipe.cli.main import app
from datapipe.errors import SnapshotError
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.snapshots import pin_snapshot, pins, publications, unpin_snapshot
from datapipe.snapshots import clean as cleaning
from datapipe.snapshots.clean import clean, plan_cleaning
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.chat_server import ChatServer, chat_server
from tests.support.cli_processes import DEADLINE_S, start, wait_until
from tests.support.cli_processes import run as run_process
from tests.support.command_line import datapipe

_LENGTHS = "tokenizer: {train: {vocab_size: 300, sample_bytes: 1MiB}}\npack: {sequence_length: [16, 32]}\n"


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with three snapshots of two sequence lengths."""
    folder = tmp_path_factory.mktemp("snapshots")
    corpora.write_jsonl(folder / "web" / "a.jsonl", corpora.documents(1, 20))
    for seed in range(3):
        file = runs.write_mixture(folder, f"  web: {{path: {folder}/web/*.jsonl}}\n", "", _LENGTHS)
        runs.run_mixture(file, overrides=[f"seed={seed}"], make_engine=runs.InProcess)
    return folder


@pytest.fixture
def snapshots_root(of_three: Path, tmp_path: Path) -> Root:
    copytree(of_three / "out", tmp_path / "out")
    return Root(str(tmp_path / "out"))


@pytest.mark.medium
def test_a_cleaning_beside_a_run_reports_it_and_nothing_else(snapshots_root: Root) -> None:
    with exclusive(snapshots_root):
        done = CliRunner().invoke(app, ["clean", snapshots_root.url])
    assert "another run is using this output" in str(done.exception)
    assert "deleting" not in done.output


def _names(snapshots_root: Root) -> list[str]:
    """Fingerprints by time, the oldest first."""
    return [each.fingerprint for each in publications(snapshots_root)]


@pytest.mark.medium
def test_pinned_snapshots_stay_whole_until_they_are_unpinned(snapshots_root: Root) -> None:
    first, second, third = publications(snapshots_root)
    pin_snapshot(snapshots_root, first.fingerprint[:12], "the run of May", 1.6e9)
    pin_snapshot(snapshots_root, third.fingerprint[:12], "", 1.6e9)
    dropped = clean(snapshots_root, 1)
    assert [each.fingerprint for each in dropped.dropped] == [second.fingerprint]
    assert [pin.why for pin in dropped.pins] == ["the run of May"]
    assert _names(snapshots_root) == [first.fingerprint, third.fingerprint]
    for each in (first, third):
        assert each.snapshot.sequence_lengths == (16, 32)
        assert verify_snapshot(snapshots_root, read_snapshot(snapshots_root, each.fingerprint)) == []
    assert plan_cleaning(snapshots_root, 1).is_empty
    for each in (first, third):
        assert unpin_snapshot(snapshots_root, each.fingerprint[:12]) == each.fingerprint
    clean(snapshots_root, 1)
    assert _names(snapshots_root) == [third.fingerprint]
    assert pins(snapshots_root) == []


@pytest.mark.medium
def test_pin_that_is_set_while_a_cleaning_is_planned_stops_it(snapshots_root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    first, plan, before = _names(snapshots_root)[0], cleaning.plan_cleaning, sorted(snapshots_root.list_files("snapshots"))

    def plan_and_pin(*given, **options):
        planned = plan(*given, **options)
        pin_snapshot(snapshots_root, first, "", 1.6e9)
        return planned

    monkeypatch.setattr(cleaning, "plan_cleaning", plan_and_pin)
    with pytest.raises(SnapshotError, match=f"snapshot {first} was pinned while .* Nothing was deleted. Run `datapipe clean`"):
        clean(snapshots_root, 1)
    assert [file for file in sorted(snapshots_root.list_files("snapshots")) if not file[0].endswith("pin.json")] == before


@pytest.mark.medium
def test_pin_of_no_snapshot_and_a_damaged_one_are_refused(snapshots_root: Root, tmp_path: Path) -> None:
    first, _, third = publications(snapshots_root)
    pin_snapshot(snapshots_root, first.fingerprint, "", 1.6e9)
    pin_snapshot(snapshots_root, third.fingerprint, "", 1.6e9)
    for name in ("x", ""):
        with pytest.raises(SnapshotError, match=f"no snapshot begins with '{name}'"):
            pin_snapshot(snapshots_root, name, "", 1.6e9)
    with pytest.raises(SnapshotError, match="is not pinned"):
        unpin_snapshot(snapshots_root, publications(snapshots_root)[1].fingerprint)
    (tmp_path / "out" / "snapshots" / first.fingerprint / "pin.json").write_text("{")
    with pytest.raises(SnapshotError, match=r"pin.json: the file was edited or damaged.*--unpin"):
        plan_cleaning(snapshots_root, 1)
    unpin_snapshot(snapshots_root, first.fingerprint)
    assert [pin.fingerprint for pin in pins(snapshots_root)] == [third.fingerprint]


@pytest.mark.medium
def test_commands_pin_unpin_and_report_what_a_pin_keeps(snapshots_root: Root) -> None:
    runner, first = CliRunner(), _names(snapshots_root)[0]
    listed = runner.invoke(app, ["snapshots", snapshots_root.url, "--pin", first[:12], "--why", "the run of May"])
    assert listed.exit_code == 0 and ": the run of May" in listed.output
    told = runner.invoke(app, ["clean", snapshots_root.url, "--dry-run"])
    assert f"keeps {first[:12]}: pinned on " in told.output and "keeps 2 snapshots" in told.output
    assert "pinned" not in runner.invoke(app, ["snapshots", snapshots_root.url, "--unpin", first[:12]]).output
    for wrong in (["--why", "x"], ["--pin", first, "--unpin", first]):
        assert runner.invoke(app, ["snapshots", snapshots_root.url, *wrong]).exit_code != 0
    assert pins(snapshots_root) == []


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
        "from datapipe.language_model import cache\n"
        "real, calls = cache.write_at, []\n"
        "def write(descriptor, content, offset):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 7:\n"
        "        real(descriptor, content[: len(content) // 2], offset)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(descriptor, content, offset)\n"
        "cache.write_at = write\n"
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
        (["--max-cost", "3"], "--max-cost requires prices"),
        (["--max-unparsed", "200%"], "--max-unparsed 200%: expected"),
        (["--api-key-env", "DATAPIPE_NO_SUCH_KEY"], "--api-key-env DATAPIPE_NO_SUCH_KEY: the environment variable is not set"),
        (["--rubric", "none.md"], "--rubric none.md: cannot be read"),
        (["--endpoint", "host"], "--endpoint host: expected a URL"),
    ],
)
def test_annotate_reports_what_is_wrong_before_anything_runs(tmp_path, server, options, expected):
    done = datapipe([*arguments(tmp_path / "none.yaml", server, tmp_path / "out"), *options])
    assert done.returncode == 2
    assert expected in done.stderr
    assert not (tmp_path / "out").exists()


NOBODY = "http://127.0.0.1:1"
"""An address where no one listens."""

_ENVIRONMENT = {
    "HF_ENDPOINT": NOBODY,
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_STORE = f"?endpoint_override={NOBODY}&region=us-east-1&connect_timeout=1&max_attempts=1"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if find_spec("huggingface_hub") is not None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", NOBODY)


def _told(arguments: list[str], folder: Path, status: int = 1) -> str:
    done = datapipe(arguments, cwd=folder)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("datapipe: ")
    for blame in ("defect", "traceback", "Traceback"):
        assert blame not in done.stderr
    return done.stderr


@pytest.mark.medium
@pytest.mark.needs("huggingface_hub")
@pytest.mark.parametrize("command", ["plan", "run"])
def test_hub_that_does_not_answer_is_reported_with_its_address(unreachable, tmp_path, command):
    mixture = runs.write_mixture(tmp_path, "  web: {path: 'hf://datasets/me/data/*.jsonl'}", "stages: [filter.length]")
    printed = _told([command, str(mixture)], tmp_path)
    assert f"{NOBODY}/api/datasets/me/data" in printed
    assert "no answer" in printed


@pytest.mark.needs("huggingface_hub")
@pytest.mark.parametrize(
    "url", ["hf://user:SECRET@datasets/x", "hf://foo", "hf://datasets/me", "hf://", "gs://", "hf://data sets/x/*"]
)
def test_url_that_no_store_can_have_is_the_users_error_with_a_right_one(unreachable, tmp_path, url):
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: '{url}'}}", "stages: [filter.length]")
    printed = _told(["plan", str(mixture)], tmp_path, 2)
    assert f"{mixture}:5: sources.web.path: cannot open {url.partition(':')[0]}://" in printed
    assert (
        f"Expected a URL such as {'gs://bucket/' if url == 'gs://' else 'hf://datasets/OWNER/NAME/'}folder/*.parquet" in printed
    )
    assert "SECRET" not in printed


@pytest.mark.medium
def test_input_on_a_store_that_does_not_answer_is_reported(unreachable, tmp_path):
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: 's3://bucket/in/*.jsonl{_STORE}'}}", "stages: [filter.length]")
    printed = _told(["plan", str(mixture)], tmp_path)
    assert "s3://bucket/in/*.jsonl: no answer: HEAD: HTTP error" in printed


@pytest.mark.medium
@pytest.mark.parametrize("command", [["verify"], ["inspect"], ["report"]])
def test_store_that_does_not_answer_is_reported(unreachable, tmp_path, command):
    assert "no answer: GET: HTTP error" in _told([*command, f"s3://bucket/out{_STORE}"], tmp_path)


@pytest.mark.medium
def test_output_on_a_store_that_does_not_answer_is_reported(unreachable, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n')
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/a.jsonl}}", "stages: [filter.length]")
    printed = _told(["run", str(mixture), "--output", f"s3://bucket/out{_STORE}"], tmp_path)
    assert "s3://bucket/out/work/lock.json: no answer" in printed
    assert "run the same command again" in printed
