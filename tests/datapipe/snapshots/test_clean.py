"""`datapipe clean --work`: it leaves what `execution.keep_work: none` leaves, and the snapshot is whole."""

import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from datapipe.cli.main import app
from datapipe.config import load_mixture
from datapipe.engine.run import Run
from datapipe.engine.run_report import run_and_report
from datapipe.errors import UserError
from datapipe.loader import Loader
from datapipe.records.names import ATTEMPTS, BEGUN, WORK
from datapipe.report.report import read_report
from datapipe.shards.manifest import read_snapshot
from datapipe.snapshots.clean import clean, plan_cleaning
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.root import Root
from tests.support import dedup_runs, runs
from tests.support.killed_changes import is_killed

pytestmark = pytest.mark.medium

LENGTHS = ["pack.sequence_length=[64, 32]"]


def _run(mixture: Path, *overrides: str) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess)


def _left(root: Root) -> set[str]:
    """The files of tasks, without the names of attempts."""
    return {re.sub(r"-[0-9a-f]{12}/", "/", path) for path, _ in root.list_files(ATTEMPTS)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return dedup_runs.write_corpus(tmp_path_factory.mktemp("dedup"), num_pages=40)


@pytest.fixture(scope="module")
def once(tmp_path_factory, corpus) -> Path:
    folder = tmp_path_factory.mktemp("once")
    run = Run(load_mixture(dedup_runs.write_mixture(folder, corpus)), runs.Watcher(), make_engine=runs.InProcess)
    run_and_report(run).raise_problem()
    return folder / "out"


@pytest.fixture
def mixture(tmp_path, corpus, once) -> Path:
    shutil.copytree(once, tmp_path / "out")
    return dedup_runs.write_mixture(tmp_path, corpus)


@pytest.fixture
def root(mixture) -> Root:
    return Root(str(mixture.parent / "out"))


@pytest.mark.slow
def test_clean_work_leaves_what_none_leaves_and_the_snapshot_is_whole(mixture, root, corpus, tmp_path):
    snapshot, report = read_snapshot(root), read_report(root)
    cleaning = clean(root, 1, work=True)
    assert cleaning.unread_bytes > 0
    fresh = _run(dedup_runs.write_mixture(tmp_path / "fresh", corpus), "execution.keep_work=none")
    assert _left(root) == _left(Root(fresh.mixture.output))
    assert not root.exists(f"{WORK}/index.json")
    assert verify_snapshot(root, snapshot) == []
    assert read_report(root) == report
    with closing(Loader(root.url, global_batch_size=4, prefetch=0)) as loader:
        assert next(iter(loader))
    export_snapshot(root, snapshot, Root(str(tmp_path / "to")), ExportRequest(format="arrow"))
    assert plan_cleaning(root, 1, work=True).is_empty
    again = _run(mixture)
    assert (again.watcher.records, again.snapshot) == ([], snapshot)
    assert _run(mixture, *LENGTHS).snapshot == _run(dedup_runs.write_mixture(tmp_path / "fresh", corpus), *LENGTHS).snapshot


@pytest.mark.parametrize("num_changes", [1, 10, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 2))])
def test_clean_work_that_is_killed_leaves_a_whole_snapshot_and_is_done_by_the_next(mixture, root, num_changes):
    snapshot = read_snapshot(root)
    assert is_killed(lambda: clean(root, 1, work=True), num_changes)
    assert verify_snapshot(root, snapshot) == []
    again = _run(mixture)
    assert (again.watcher.records, again.snapshot) == ([], snapshot)
    clean(root, 1, work=True)
    assert plan_cleaning(root, 1, work=True).is_empty
    assert not root.exists(f"{WORK}/index.json")


def test_clean_work_lists_what_is_no_longer_possible_and_asks(root):
    runner, before = CliRunner(), _left(root)
    listed = runner.invoke(app, ["clean", root.url, "--work", "--dry-run"])
    assert listed.exit_code == 0
    for what in ("inspect`, `sql", "export --text", "another tokenizer", "run --follow"):
        assert what in listed.output
    asked = runner.invoke(app, ["clean", root.url, "--work"])
    assert isinstance(asked.exception, UserError) and "nothing was deleted" in str(asked.exception)
    assert _left(root) == before
    done = runner.invoke(app, ["clean", root.url, "--work", "--yes"])
    assert done.exit_code == 0 and "deleted files of" in done.output
    assert _left(root) < before


def test_clean_work_is_refused_while_a_run_needs_the_files(root):
    root.write_atomic(BEGUN, b"")
    with pytest.raises(UserError, match=r"goes on with the files under work/.*Nothing was deleted"):
        clean(root, 1, work=True)
