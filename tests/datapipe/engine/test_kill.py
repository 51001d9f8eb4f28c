"""SIGKILL at random moments, then the same command: no worker is left, nothing runs twice, and all that was committed is the
same, byte for byte. The run has all four stages of deduplication, with components in rounds (`tests/support/dedup_runs.py`)."""

import os
import random
import signal
from pathlib import Path

import pytest

from datapipe.records.ledger import Ledger
from datapipe.records.names import ATTEMPTS
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.storage.root import Root
from tests.support import cell_runs, dedup_runs, runs
from tests.support.cli_processes import children, is_running, run, start, wait_until
from tests.support.ledger_files import stored_records, stored_text

pytestmark = pytest.mark.slow

NUM_KILLS = 6

Outcome = tuple[Snapshot, dict[str, list[str]]]


def _outcome(output: Path) -> Outcome:
    """The snapshot, and what each committed task has made: checksums of its outputs, drops and documents among them."""
    ledger = Ledger(Root(str(output)))
    ledger.load()
    records = {name: record for name in stored_records(output) if (record := ledger.look_up(name))}
    made = {
        name: [file.checksum for kind in sorted(record.outputs) for file in record.of(kind)] for name, record in records.items()
    }
    snapshot = read_snapshot(Root(str(output)))
    assert snapshot.has_tokens
    return snapshot, made


def _files_of_no_record(output: Path) -> list[str]:
    """Files and empty folders below work/attempts that no record names, and files on their way to a final name."""
    root = Root(str(output))
    named, ledger = stored_text(root), Ledger(root)
    ledger.load()
    freed = [path for path, _ in root.list_files(ATTEMPTS) if ledger.is_freed(path)]
    left = [path for path in (output / "work" / "attempts").rglob("*") if not (path.is_dir() and any(path.iterdir()))]
    unfinished = [path for path in output.rglob("*") if path.name.endswith(".tmp") or path.parent.name == "publish"]
    return [*freed, *(str(path) for path in [*left, *unfinished] if str(path.relative_to(output)) not in named)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return dedup_runs.write_corpus(tmp_path_factory.mktemp("dedup"), num_pages=100)


@pytest.fixture
def mixture(tmp_path, corpus) -> Path:
    return dedup_runs.write_mixture(tmp_path, corpus)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, corpus) -> Outcome:
    folder = tmp_path_factory.mktemp("undisturbed")
    runs.run_mixture(dedup_runs.write_mixture(folder, corpus), make_engine=runs.InProcess)
    return _outcome(folder / "out")


@pytest.mark.parametrize(
    ("killed", "level"), [("driver", "resume"), pytest.param("group", "resume", marks=pytest.mark.each_kind), ("group", "none")]
)
def test_kill_then_same_command_gives_the_undisturbed_snapshot(tmp_path, mixture, undisturbed, killed, level):
    command = ["run", str(mixture), "--workers", "2", "--set", f"execution.keep_work={level}"]
    output, rng = tmp_path / "out", random.Random(killed)
    most_commits = max(1, len(undisturbed[1]) // NUM_KILLS - 1)  # between two kills, so that tasks are left after the last
    kept: dict[str, str] = {}
    for _ in range(NUM_KILLS):
        wanted = len(stored_records(output)) + rng.randint(0, most_commits)
        driver = start(command)
        wait_until(
            lambda p=driver, n=wanted: (len(stored_records(output)) >= n and children(p.pid)) or p.poll() is not None, "commits"
        )
        workers = children(driver.pid)
        if killed == "group":
            os.killpg(driver.pid, signal.SIGKILL)
        else:
            driver.kill()
        driver.communicate()
        wait_until(lambda gone=workers: not any(is_running(one) for one in gone), "workers to go with their driver")
        kept |= {name: at for name, at in stored_records(output).items() if name not in kept}
    last = run(command)
    assert last.returncode == 0, last.stderr
    assert _outcome(output) == undisturbed
    records = stored_records(output)
    assert {name: records[name] for name in kept} == kept
    assert _files_of_no_record(output) == []


def test_kill_while_a_source_is_split_gives_the_undisturbed_snapshot(tmp_path):
    cell_runs.write_corpus(tmp_path)
    mixture = cell_runs.write_mixture(tmp_path, tmp_path)
    undisturbed = runs.run_mixture(mixture, output=tmp_path / "undisturbed", make_engine=runs.InProcess)
    command, output, rng = ["run", str(mixture), "--workers", "2"], tmp_path / "out", random.Random(7)
    moments = sorted(rng.sample(range(len(undisturbed.watcher.records) - 1), NUM_KILLS // 2))
    for moment in moments:
        driver = start(command)
        wait_until(lambda p=driver, n=moment: len(stored_records(output)) >= n or p.poll() is not None, "commits")
        workers = children(driver.pid)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
        wait_until(lambda gone=workers: not any(is_running(one) for one in gone), "workers to go with their driver")
    last = run(command)
    assert last.returncode == 0, last.stderr
    assert read_snapshot(Root(str(output))) == undisturbed.snapshot
    assert _files_of_no_record(output) == []


def test_kill_of_single_workers_costs_their_tasks_alone(tmp_path, mixture, undisturbed):
    output, rng, killed = tmp_path / "out", random.Random(5), 0
    driver = start(["run", str(mixture), "--workers", "2"])
    for moment in sorted(rng.sample(range(len(undisturbed[1]) - 1), NUM_KILLS)):
        wait_until(lambda n=moment: len(stored_records(output)) >= n or driver.poll() is not None, "commits")
        workers = [one for one in children(driver.pid) if is_running(one)]
        if workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
            killed += 1
    _, errors = driver.communicate()
    assert driver.returncode == 0, errors
    assert killed >= NUM_KILLS // 2
    assert _files_of_no_record(output) == []
    assert _outcome(output) == undisturbed


@pytest.mark.parametrize(
    "names", [["SIGINT"], ["SIGINT", "SIGINT"], ["SIGTERM"], ["SIGTERM", "SIGINT"], ["SIGHUP"]], ids="+".join
)
def test_signals_that_end_a_run_stop_its_workers_and_explain_how_to_go_on(tmp_path, mixture, undisturbed, names):
    heeding = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}  # also where these tests run by nohup
    driver = start(["run", str(mixture), "--workers", "2"], **heeding)
    wait_until(lambda: children(driver.pid) or driver.poll() is not None, "a worker")
    workers = children(driver.pid)
    for name in names:
        if names == ["SIGINT"]:  # as Ctrl-C on a terminal
            os.killpg(driver.pid, signal.SIGINT)
        else:
            driver.send_signal(signal.Signals[name])
    _, errors = driver.communicate()
    assert driver.returncode == 130
    assert "Resume with the same command" in errors
    assert not any(is_running(one) for one in workers)
    if names == ["SIGINT"]:
        assert run(["run", str(mixture)]).returncode == 0
        assert _outcome(tmp_path / "out") == undisturbed


def test_hangup_that_the_caller_ignores_stops_nothing(tmp_path, mixture):
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}  # as nohup does
    driver = start(["run", str(mixture), "--workers", "2", "--limit", "5"], **ignoring)
    wait_until(lambda: children(driver.pid) or driver.poll() is not None, "a worker")
    driver.send_signal(signal.SIGHUP)
    _, errors = driver.communicate()
    assert driver.returncode == 0, errors
