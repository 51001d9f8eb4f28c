"""Outputs on an object store: the lease that one run holds, and conditional writes."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import DatapipeError, UserError
from datapipe.metrics import TaskMetrics
from datapipe.records.ledger import Ledger
from datapipe.records.names import ATTEMPTS
from datapipe.records.outputs import Content, Record, TableFile
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage import conditional
from datapipe.storage import lock as lease_module
from datapipe.storage.conditional import ConditionalStore, ConflictError
from datapipe.storage.lock import LEASE, Lease, LeaseLostError
from datapipe.storage.root import Root
from tests.support import cli_processes, corpora, runs
from tests.support.unreliable_store import Kind, UnreliableStore, unreliable

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def root(query: str, tmp_path: Path) -> Root:
    return Root(f"s3://outputs/{tmp_path.name}{query}")


def _taken(root: Root) -> Lease:
    lease = Lease(root)
    lease.take()
    return lease


@pytest.fixture
def paused(root: Root, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Lease, Callable[[], Lease]]]:
    """A lease whose process does not renew it, and what takes it over."""
    first, later = _taken(root), []

    def take() -> Lease:
        monkeypatch.setattr(lease_module, "LEASE_S", -1.0)
        later.append(_taken(root))
        monkeypatch.undo()
        return later[-1]

    yield first, take
    for lease in (first, *later):
        lease.release()


def _state(root: Root) -> dict[str, Any]:
    return json.loads(root.read_bytes(LEASE))


def test_lease_is_held_by_one_until_it_is_released(root: Root) -> None:
    first = _taken(root)
    with pytest.raises(UserError, match=r"another run is using this output \(process \d+"):
        _taken(root)
    first.release()
    second = _taken(root)
    assert (second.state["epoch"], _state(root)["holder"]) == (2, second.state["holder"])
    second.release()
    assert [path for path, _ in root.list_files("")] == [LEASE]


def test_lease_that_was_lost_deletes_and_replaces_nothing(root: Root, paused) -> None:
    first, take = paused
    root.write_atomic("snapshot.json", b"old")
    second = take()
    with pytest.raises(LeaseLostError, match="another run"), first.deleting(["a"]):
        pytest.fail("the block must not run")
    for harmful in (first.check, lambda: first.replace({"snapshot.json": b"first"})):
        with pytest.raises(LeaseLostError):
            harmful()
    second.replace({"snapshot.json": b"second", "new.json": b"1"})
    first.release()
    assert (root.read_bytes("snapshot.json"), root.read_bytes("new.json")) == (b"second", b"1")
    assert _state(root)["holder"] == second.state["holder"]


def test_run_that_is_paused_between_fence_and_write_replaces_nothing(root: Root, paused, monkeypatch) -> None:
    first, take = paused
    root.write_atomic("snapshot.json", b"old")
    write = first.store.write

    def wakes_late(path: str, content: bytes, expected: Any) -> Any:
        if path == "snapshot.json":
            take().replace({"snapshot.json": b"second"})
        return write(path, content, expected)

    monkeypatch.setattr(first.store, "write", wakes_late)
    with pytest.raises(LeaseLostError, match=r"snapshot\.json"):
        first.replace({"snapshot.json": b"first"})
    assert root.read_bytes("snapshot.json") == b"second"


def _record(root: Root, name: str) -> Record:
    path = f"{ATTEMPTS}/step/{name}/out.bin"
    root.write_atomic(path, name.encode())
    output = TableFile(path=path, rows=1, bytes=len(name), checksum="x", row_bytes=3)
    return Record("step", "ab" * 32, Content({"documents": (output,)}, TaskMetrics()))


def test_run_that_is_paused_while_it_sweeps_takes_nothing_from_the_next(root: Root, paused) -> None:
    """A record names an attempt that the paused run is deleting: the next run does not rely on it."""
    first, take = paused
    record = _record(root, f"{'a' * 16}-late")
    sweeping = first.deleting([f"{ATTEMPTS}/step/{'a' * 16}-late"], ATTEMPTS)
    sweeping.__enter__()
    Ledger(root).commit([record])  # by a third run that was paused before both
    second = take()
    ledger = Ledger(root, second.pending_deletions)
    ledger.load()
    assert ledger.look_up(record.fingerprint) is None
    root.delete_folder(f"{ATTEMPTS}/step/{'a' * 16}-late")
    with pytest.raises(LeaseLostError):
        sweeping.__exit__(None, None, None)
    again = _record(root, f"{'a' * 16}-again")
    ledger.commit([again])
    assert ledger.delete_orphans(second) == 0
    assert second.state["pending_deletions"] == []
    assert [path for path, _ in root.list_files("work") if "deleting" in path] == []
    later = Ledger(root)
    later.load()
    assert later.look_up(record.fingerprint) == again


def test_cleaning_that_did_not_end_keeps_its_files_from_being_published(root: Root, paused) -> None:
    first, take = paused
    first.deleting(["shards/web/part-0.arrow"]).__enter__()
    second = take()
    second.check_pending_deletions(["shards/web/part-1.arrow"])
    with pytest.raises(DatapipeError, match=r"shards/web/part-0\.arrow"):
        second.check_pending_deletions(["shards/web/part-1.arrow", "shards/web/part-0.arrow"])
    with second.deleting([], ATTEMPTS):
        pass
    assert len(second.state["pending_deletions"]) == 1  # a sweep does not settle it
    with second.deleting([]):
        pass
    assert second.state["pending_deletions"] == []


def test_renewal_whose_answer_is_lost_is_no_loss_and_silence_is_none_either(root: Root, paused, monkeypatch) -> None:
    first, _ = paused
    write, failures = first.store.write, ["silent", "unanswered"]

    def fails(path: str, content: bytes, expected: Any) -> Any:
        failure = failures.pop() if failures else ""
        version = None if failure == "silent" else write(path, content, expected)
        if failure:
            raise OSError("no answer")
        return version

    monkeypatch.setattr(first.store, "write", fails)
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            first.renew()
    first.renew()
    first.check()


# ---------------------------------------------------------------------------------------------------- two processes

_DRIVER = """
import sys, time
import datapipe.storage.lock as lease
lease.LEASE_S, lease._RENEW_S = 10.0, 0.5
now, jump = time.time, float(sys.argv.pop(1))
time.time = lambda: now() + jump
from datapipe.cli.main import main
main()
"""


def _files_but_of_tasks(root: Root) -> set[str]:
    return {path for path, _ in root.list_files("") if not path.startswith((ATTEMPTS, "work/ledger"))} | {LEASE}


@pytest.mark.slow
def test_driver_that_wakes_after_another_took_its_output_ends_and_harms_nothing(root: Root, tmp_path: Path) -> None:
    for number in range(4):
        corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 60))
    overrides = "execution: {split_bytes: 8KiB}"
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n", "stages: [dedup.exact]", overrides)
    expected = runs.run_mixture(mixture, make_engine=runs.InProcess).snapshot
    with ExitStack() as started:

        def start(jump_s: float) -> subprocess.Popen[str]:
            run = ["run", str(mixture), "--output", root.url, "--workers", "1"]
            command = [sys.executable, "-c", _DRIVER, str(jump_s), *run]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            started.callback(cli_processes.end, process)
            return process

        first = start(0.0)
        cli_processes.wait_until(lambda: bool(root.list_files("work/ledger")) or first.poll() is not None, "a commit")
        jumped = start(86_400.0)  # the clock of the machine says that the lease is old
        _, errors = jumped.communicate()
        assert (jumped.returncode, "another run is using this output" in errors) == (2, True), errors
        first.send_signal(signal.SIGSTOP)
        assert first.poll() is None
        second = start(-86_400.0)
        while second.wait() == 2:  # the lease of the paused one is not old enough yet
            second = start(-86_400.0)
        _, errors = second.communicate()
        assert second.returncode == 0, errors
        published = _files_but_of_tasks(root)
        first.send_signal(signal.SIGCONT)
        _, errors = first.communicate()
        assert first.returncode == 1, errors
        assert "another run has taken the output since" in " ".join(errors.split())
    assert _files_but_of_tasks(root) == published
    again = runs.run_mixture(mixture, output=root.url, make_engine=runs.InProcess)
    assert again.watcher.records == []
    assert again.snapshot == expected
    assert verify_snapshot(root, again.snapshot) == []


def test_conditional_write_fails_unless_the_object_is_the_expected_one(query: str) -> None:
    root = Root(f"s3://outputs/expected{query}")
    objects = ConditionalStore(root)
    assert objects.read("a") is None
    first = objects.write("a", b"one", None)
    assert objects.write("a", b"one", None) == first  # sent again, since the answer was lost
    second = objects.write("a", b"two", first)
    for expected in (None, first):
        with pytest.raises(ConflictError):
            objects.write("a", b"three", expected)
    root.delete("a")
    with pytest.raises(ConflictError):
        objects.write("a", b"three", second)
    assert objects.read("a") is None


def test_first_write_creates_the_bucket_where_the_url_allows_it_and_reports_of_it_elsewhere(query: str) -> None:
    with pytest.raises(UserError, match="no-such-bucket"):
        ConditionalStore(Root(f"s3://no-such-bucket/out{query}")).write("lease", b"a", None)
    allowed = ConditionalStore(Root(f"s3://new-bucket/out{query}&allow_bucket_creation=true"))
    version = allowed.write("lease", b"a", None)
    assert allowed.read("lease") == (b"a", version)
    with pytest.raises(ConflictError):
        allowed.write("lease", b"b", None)


@pytest.fixture
def impatient(query: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnreliableStore]:
    backoff = {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.02), "base": 2}
    monkeypatch.setattr(conditional, "_CLIENT", conditional._CLIENT | {"timeout": "0.3s"})
    monkeypatch.setattr(conditional, "_RETRY", conditional._RETRY | {"backoff": backoff})
    with unreliable(query) as proxy:
        yield proxy


@pytest.mark.parametrize(("kind", "times"), [("lost", 1), ("lost", 5), ("silent", 1), ("status", 5)])
@pytest.mark.parametrize("is_new", [True, False])
def test_conditional_write_without_an_answer_is_looked_up(
    impatient: UnreliableStore, kind: Kind, times: int, is_new: bool
) -> None:
    objects = ConditionalStore(Root(f"s3://outputs/{kind}-{times}-{is_new}{impatient.query}"))
    expected = None if is_new else objects.write("object", b"before", None)
    fault = impatient.fail(kind, method="PUT", path="object", times=times)
    version = objects.write("object", b"ours", expected)
    assert fault.hits > 0
    assert objects.read("object") == (b"ours", version)
    impatient.heal()
    assert objects.write("object", b"next", version) == objects.version("object")


def test_conditional_write_that_another_process_came_before_is_a_conflict(impatient: UnreliableStore) -> None:
    root = Root(f"s3://outputs/conflict{impatient.query}")
    objects = ConditionalStore(root)
    expected = objects.write("object", b"before", None)
    root.write_atomic("object", b"of another")
    impatient.fail("lost", method="PUT", path="object")
    with pytest.raises(ConflictError):
        objects.write("object", b"ours", expected)
    assert root.read_bytes("object") == b"of another"


def test_conditional_write_to_a_store_that_never_answers_ends(impatient: UnreliableStore) -> None:
    objects = ConditionalStore(Root(f"s3://outputs/never{impatient.query}"))
    impatient.fail("status", method="PUT", times=None)
    with pytest.raises(OSError, match="503"):
        objects.write("object", b"ours", None)
