"""The small modules that all packages use: columns, storage, libraries, activity, figures, memory of a process, samples
and outages."""

import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.columns import read_only, text_buffers
from datapipe.config import StageUse, catalogue
from datapipe.engine.watching.state import Figures, Pauses
from datapipe.errors import UserError
from datapipe.machine import activity
from datapipe.machine.activity import BLOCK_BYTES, Activity, ActivityBlock
from datapipe.machine.cache import cache_home, read_checked, write_checked
from datapipe.machine.libraries import require
from datapipe.metrics import TaskMetrics
from datapipe.quantities import counted
from datapipe.storage.outages import (
    Outage,
    OutageError,
    StoreRefusedError,
    StoreSilentError,
    free_bytes,
    may_write,
    outage_of,
    refusal_of,
)
from datapipe.storage.root import Root, resolve

# ------------------------------------------------------------------------------------------------ columns

COLUMNS = {
    "large strings": pa.array(["a", None, "", "ä" * 50], pa.large_string()),
    "strings": pa.array(["a", None, "b"]),
    "no strings": pa.array([], pa.large_string()),
    "bool": pa.array([True, None, False]),
    "int64": pa.array(range(1000)),
    "float32": pa.array([0.5, None], pa.float32()),
    "times": pa.array([1, 2, None], pa.timestamp("us")),
    "decimals": pa.array([1, 2], pa.int64()).cast(pa.decimal128(20)),
    "keys": pa.array([b"x" * 16, b"y" * 16], pa.binary(16)),
    "bytes": pa.array([b"x", b""], pa.large_binary()),
    "lists": pa.array([[["a", None], []], None, [["b"]]], pa.large_list(pa.list_(pa.string()))),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_read_only_column_equals_the_column_and_cannot_be_written(name: str) -> None:
    for column in (COLUMNS[name], COLUMNS[name].slice(1), COLUMNS[name].slice(1, 1), COLUMNS[name].slice(0, 0)):
        locked = read_only(column)
        locked.validate(full=True)
        assert locked.equals(column)
        assert (locked.type, locked.null_count, locked.to_pylist()) == (column.type, column.null_count, column.to_pylist())
        assert not any(buffer.is_mutable for buffer in locked.buffers() if buffer is not None)


@pytest.mark.parametrize("column", [pa.nulls(3), pa.array([{"a": 1}]), pa.array(["a"]).dictionary_encode()])
def test_read_only_leaves_columns_of_other_types_as_they_are(column: pa.Array) -> None:
    assert read_only(column) is column


def test_read_only_column_lives_longer_than_the_column_that_it_was_made_of() -> None:
    column = pa.array(["text"] * 10_000, pa.large_string())
    locked = read_only(column)
    del column
    offsets, data = text_buffers(locked)
    assert bytes(data[offsets[9_999] : offsets[10_000]]) == b"text"
    with pytest.raises(ValueError):
        data.flags.writeable = True


# ------------------------------------------------------------------------------------------------ storage

STORE = "s3://bucket/folder?region=us-east-1"


def test_url_with_limits_names_the_same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = f"{STORE}&endpoint_override=http://127.0.0.1:1"
    plain, limited = Root(url), Root(f"{url}&request_timeout=2.5&connect_timeout=1&max_attempts=2")
    assert limited.path("a") == plain.path("a") == "folder/a"
    assert limited.local is None
    assert limited.within("b").path("a") == "folder/b/a"


@pytest.mark.parametrize(
    "wrong",
    [
        *("request_timeout=soon", "request_timeout=0", "max_attempts=0", "connect_timeout=-1", "no_such_limit=1"),
    ],
)
def test_url_with_a_wrong_limit_is_refused_by_its_name(wrong: str) -> None:
    with pytest.raises(UserError, match=wrong.partition("=")[0]):
        resolve(f"{STORE}&{wrong}")


def test_relative_path_is_of_the_working_directory_at_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "out" / "file").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert Root("out").read_bytes("file") == name.encode()


def test_user_without_a_home_keeps_nothing_and_gets_no_folder_of_that_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id without an entry, and without HOME
    path = cache_home() / "kernel.bin"
    assert read_checked(path) is None
    with pytest.raises(OSError):
        write_checked(path, b"compiled")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ libraries


def _refusal(library: str) -> str:
    with pytest.raises(UserError) as caught:
        require(library, "extract.html")
    return str(caught.value)


def test_missing_library_names_the_extra_to_install_or_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert require("pyarrow", "read.jsonl") == metadata.version("pyarrow")
    assert _refusal("not-there").endswith("pip install not-there")
    requires = ['trafilatura==2.3.1; extra == "test"', "trafilatura; extra == 'web'"]
    monkeypatch.setattr(sys, "path", [])  # where nothing is installed
    monkeypatch.setattr(metadata, "requires", lambda name: requires)
    assert _refusal("trafilatura").endswith("pip install 'datapipe[web]'")


def test_library_that_cannot_be_imported_names_the_reason_and_the_extra(tmp_path: Path, monkeypatch) -> None:
    package, info = tmp_path / "trafilatura", tmp_path / "trafilatura-9.0.dist-info"  # as pip writes them
    for folder in (package, info):
        folder.mkdir()
    (package / "__init__.py").write_text("raise ImportError('lxml.html.clean is a project of its own')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trafilatura\nVersion: 9.0\n")
    (info / "RECORD").write_text("trafilatura/__init__.py,,\ntrafilatura-9.0.dist-info/METADATA,,\n")
    monkeypatch.delitem(sys.modules, "trafilatura", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    text = _refusal("trafilatura")
    assert "lxml.html.clean is a project of its own" in text
    assert text.endswith("pip install 'datapipe[web]'")
    stage = catalogue.build_stage(StageUse(name="extract.html", alias="extract.html", options={"engine": "trafilatura"}))
    with pytest.raises(UserError, match=r"extract\.html needs trafilatura"):
        catalogue.libraries_of(stage)


# ------------------------------------------------------------------------------------------------ activity


def _new_page() -> tuple[ActivityBlock, int]:
    descriptor = activity.shared_file(BLOCK_BYTES)
    return ActivityBlock(descriptor), descriptor


@pytest.fixture
def page() -> Iterator[ActivityBlock]:
    made, descriptor = _new_page()
    os.close(descriptor)
    activity.publish_to(made)
    yield made
    activity.publish_to(None)
    made.close()


def _now(page: ActivityBlock) -> Activity:
    told = page.read()
    assert told is not None
    return told[1]


def test_activity_is_that_of_the_innermost_block_and_then_that_of_the_block_around_it(page: ActivityBlock) -> None:
    with activity.doing("filter.length", 100):
        activity.on_documents("a.jsonl:7", b"k" * 16, 3, 100)
        outer = _now(page)
        with activity.doing("compiling kernel words", is_waiting=True):
            assert _now(page) == Activity(work="compiling kernel words", is_waiting=True)
        assert _now(page) == outer
    assert str(outer) == "filter.length on 3 documents, from a.jsonl:7"
    assert outer.is_on_documents
    assert _now(page) == Activity()


def test_activity_every_message_counts(page: ActivityBlock) -> None:
    counts = []
    with TaskMetrics().timed("merge"):
        for _ in range(3):
            activity.progress()
            counts.append(page.read()[0])  # type: ignore[index]
    assert counts == [counts[0], counts[0] + 1, counts[0] + 2]


def test_activity_survives_the_process_that_told_it(page: ActivityBlock) -> None:
    child = os.fork()
    if child == 0:
        with activity.doing("redact.pii"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert _now(page).work == "redact.pii"


@pytest.mark.medium
@given(st.text(max_size=400), st.text(max_size=800), st.binary(min_size=16, max_size=16), st.integers(0, 1 << 62))
def test_page_takes_any_text_and_reads_it_printable(work: str, place: str, key: bytes, size: int) -> None:
    page, descriptor = _new_page()
    os.close(descriptor)
    page.write(Activity(work=work, place=place, key=key, num_docs=size, num_bytes=size))
    told = _now(page)
    page.close()
    assert told.num_docs == told.num_bytes == size
    assert told.key == key
    assert told.work.isprintable() and told.place.isprintable()
    if work.isascii() and work.isprintable():
        assert told.work == work[:160]


def test_page_that_is_half_written_is_no_message() -> None:
    page, descriptor = _new_page()
    assert page.read() is None
    page.write(Activity(work="read"))
    os.pwrite(descriptor, b"x", BLOCK_BYTES - 1)
    assert page.read() is None
    page.close()
    os.close(descriptor)


def test_activity_without_a_page_tells_nobody() -> None:
    with activity.doing("read"):
        activity.at_place("a.jsonl")
        activity.progress()
    assert not activity.is_published()


# ------------------------------------------------------------------------------------------------ figures


def test_histogram_counts_a_number_at_a_bound_below_it_and_those_above_every_bound() -> None:
    figures = Figures()
    for value in (0.5, 1, 2, 3, 3001):
        figures.observe("commit_records", value=value)
    counts = {bound: number for (_, bound), number in figures.items()}
    assert counts == {"1": 2, "3": 2, "+Inf": 1, "sum": 3007.5}


def test_longest_pause_is_forgotten_after_two_minutes_and_grows_while_the_driver_hangs() -> None:
    now = [1000.0]
    pauses = Pauses(lambda: now[0])
    for step_s in (0.0, 0.1, 7.0, 0.1):
        now[0] += step_s
        pauses.update()
    assert pauses.longest_s == 7.0
    for _ in range(130):
        now[0] += 1.0
        pauses.update()
    assert pauses.longest_s == 1.0
    now[0] += 40.0
    assert pauses.longest_s == 40.0
    pauses.end()
    now[0] += 500.0
    assert pauses.longest_s == 0.0  # while --follow waits for the next run, perhaps for hours


def test_counted_noun_is_singular_for_one_alone() -> None:
    assert [counted(number, "file") for number in (0, 1, 1001, -1)] == ["0 files", "1 file", "1,001 files", "-1 files"]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


def test_work_is_not_charged_for_what_only_its_first_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 19.0, 20.0])
    monkeypatch.setattr(activity, "perf_counter", lambda: next(now))
    metrics = TaskMetrics()
    with metrics.timed("read"), activity.starting():
        pass
    assert metrics.work["read"].seconds == 2.0


@pytest.mark.slow
def test_peak_memory_of_a_process_is_its_own_and_not_its_parents() -> None:
    ballast = np.ones(60_000_000)  # 480 MB in this process, which starts the other
    code = "from datapipe.machine.memory import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ballast.sum() > 0
    assert 2_000_000 < int(done.stdout) < 400_000_000


def _error(number: int, filename: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), filename) if filename else OSError(number, os.strerror(number))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="/proc is a disk without room")
def test_may_write_asks_the_nearest_folder_that_exists(tmp_path):
    assert [may_write(path) for path in (str(tmp_path / "a/b"), "/proc/none/out")] == [True, False]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_names_the_folder_and_its_free_bytes(tmp_path, number):
    outage = outage_of(_error(number, str(tmp_path / "not/yet/there.arrow")), "s3://bucket/out")
    assert outage is not None
    assert outage.where == str(tmp_path / "not/yet")
    assert outage.free_bytes is not None
    assert str(outage).startswith(f"{tmp_path}/not/yet: the disk ")


def test_full_disk_without_a_file_name_is_that_of_the_output_or_of_temporary_files(tmp_path, monkeypatch):
    outage = outage_of(_error(errno.ENOSPC), str(tmp_path))
    assert outage is not None
    assert outage.free_bytes == pytest.approx(free_bytes(outage.where), rel=0.5)

    def no_folder():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", no_folder)
    assert "the disk is full" in str(outage_of(_error(errno.ENOSPC), "s3://bucket/out"))


@pytest.mark.parametrize(
    "error",
    [
        StoreSilentError(errno.EIO, "GET: HTTP error: error sending request (Connect)", "s3://b/a"),
        StoreSilentError(errno.EIO, "PUT: 503 Service Unavailable: SlowDown", "s3://b/a"),
        _error(errno.ESTALE, "/mnt/corpus/a.jsonl"),
        ConnectionResetError("reset by peer"),
        TimeoutError("timed out"),
    ],
)
def test_store_that_does_not_answer_is_an_outage(error):
    outage = outage_of(error, "s3://KEY:secret@bucket/out")
    assert outage is not None
    assert outage.free_bytes is None
    assert "no answer" in str(outage) and "secret" not in str(outage)


def test_hub_that_does_not_answer_is_an_outage_and_one_that_refuses_a_name_is_none():
    httpx, utils = pytest.importorskip("httpx2"), pytest.importorskip("huggingface_hub.utils")
    error = httpx.ConnectError("refused", request=httpx.Request("GET", "https://user:secret@hub.example/api/models"))
    assert str(outage_of(error, "")).startswith("https://***@hub.example/api/models: no answer")
    assert outage_of(httpx.ConnectError("refused"), "") is not None
    wrong = utils.HFValidationError("Repo id must be 'namespace/name', got 'me'.")
    assert outage_of(wrong, "") is None
    assert "hf://datasets/OWNER/NAME" in str(refusal_of(wrong))


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (StoreRefusedError(errno.EIO, "PUT: 403 Forbidden: AccessDenied", "s3://b/a"), "reads a public bucket"),
        (_error(errno.EACCES, "/data/out/work"), "/data/out/work"),
        (_error(errno.EROFS), "/data/out: Read-only file system"),  # fsync and write raise errors without a name
        (_error(errno.EMFILE), f"now {resource.getrlimit(resource.RLIMIT_NOFILE)[1]} (`ulimit -n`)"),
    ],
)
def test_refusal_is_no_outage_and_says_what_to_change(error, fact):
    assert outage_of(error, "/data/out") is None
    assert fact in str(refusal_of(error, "/data/out"))


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), MemoryError(), FileNotFoundError(errno.ENOENT, "gone", "/a"), BrokenPipeError(errno.EPIPE, "pipe")],
)
def test_other_failures_are_neither(error):
    assert outage_of(error, "/data/out") is None
    assert refusal_of(error) is None


def test_outage_error_travels_between_processes():
    error = OutageError(Outage(where="/data/out", cause="the disk is full", free_bytes=12))
    copy = pickle.loads(pickle.dumps(error))
    assert copy.outage == error.outage
    assert str(copy) == "/data/out: the disk is full, 12 B free"
