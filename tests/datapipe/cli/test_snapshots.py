"""A pinned snapshot stays when the output is cleaned, until it is unpinned."""

from __future__ import annotations

import io
from pathlib import Path
from shutil import copytree

import pytest
from rich.console import Console
from typer.testing import CliRunner

from datapipe.cli.main import app
from datapipe.engine import clean as cleaning
from datapipe.engine.clean import clean, plan_cleaning
from datapipe.errors import SnapshotError
from datapipe.ledger.lock import exclusive
from datapipe.report.snapshot_list import print_snapshots
from datapipe.shards.manifest import fingerprints, read_snapshot
from datapipe.shards.snapshots import pin_snapshot, pins, publications, unpin_snapshot
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_TAIL = "tokenizer: {train: {vocab_size: 300, sample_bytes: 1MiB}}\npack: {sequence_length: [16, 32]}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with three snapshots of two sequence lengths."""
    folder = tmp_path_factory.mktemp("snapshots")
    corpora.write_jsonl(folder / "web" / "a.jsonl", corpora.documents(1, 20))
    for seed in range(3):
        file = runs.write_mixture(folder, f"  web: {{path: {folder}/web/*.jsonl}}\n", "", _TAIL)
        runs.run_mixture(file, overrides=[f"seed={seed}"], make_engine=runs.InProcess)
    return folder


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Root:
    copytree(made / "out", tmp_path / "out")
    return Root(str(tmp_path / "out"))


def _killed(*given, **options):
    raise KeyboardInterrupt


def test_tasks_of_a_run_that_was_killed_stay(made: Path, root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = runs.write_mixture(tmp_path, f"  web: {{path: {made}/web/*.jsonl}}\n", "", _TAIL)
    with monkeypatch.context() as patch:
        patch.setattr("datapipe.engine.run.write_run", _killed)
        with pytest.raises(KeyboardInterrupt):
            runs.run_mixture(file, overrides=["seed=9"], make_engine=runs.InProcess)
    clean(root, 1)
    again = runs.run_mixture(file, overrides=["seed=9"], make_engine=runs.InProcess)
    assert not again.watcher.steps
    cleaned = clean(root, 1)
    assert not cleaned.keeps_tasks
    assert cleaned.tasks


def test_a_cleaning_beside_a_run_says_so_and_nothing_else(root: Root) -> None:
    with exclusive(root):
        done = CliRunner().invoke(app, ["clean", root.url])
    assert "another run is using this output" in str(done.exception)
    assert "deleting" not in done.output


def _names(root: Root) -> list[str]:
    """Fingerprints by time, the oldest first."""
    return [each.fingerprint for each in publications(root)]


def test_pinned_snapshots_stay_whole_until_they_are_unpinned(root: Root) -> None:
    first, second, third = publications(root)
    (further,) = second.lengths["length-32"]
    long = root.within("length-32")
    pin_snapshot(root, first.fingerprint[:12], "the run of May", 1.6e9)
    pin_snapshot(root, further[:12], "", 1.6e9)
    dropped = clean(root, 1)
    assert [each.fingerprint for each in dropped.dropped] == [second.fingerprint]
    assert [pin.why for pin in dropped.pins] == ["the run of May", ""]
    assert _names(root) == [first.fingerprint, third.fingerprint]
    assert verify_snapshot(root, read_snapshot(root, first.fingerprint)) == []
    kept = {*first.lengths["length-32"], further, *third.lengths["length-32"]}
    assert set(fingerprints(long)) == kept
    for name in kept:
        assert verify_snapshot(long, read_snapshot(long, name)) == []
    assert plan_cleaning(root, 1).is_empty
    assert unpin_snapshot(root, first.fingerprint[:12]) == first.fingerprint
    assert unpin_snapshot(root, further) == further
    clean(root, 1)
    assert _names(root) == [third.fingerprint]
    assert set(fingerprints(long)) == third.lengths["length-32"]
    assert pins(root) == []


def test_pin_that_is_set_while_a_cleaning_is_planned_stops_it(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    first, plan, before = _names(root)[0], cleaning.plan_cleaning, sorted(root.list_files("snapshots"))

    def plan_and_pin(*given):
        planned = plan(*given)
        pin_snapshot(root, first, "", 1.6e9)
        return planned

    monkeypatch.setattr(cleaning, "plan_cleaning", plan_and_pin)
    with pytest.raises(SnapshotError, match=f"snapshot {first} was pinned while .* Nothing was deleted. Run `datapipe clean`"):
        clean(root, 1)
    assert [file for file in sorted(root.list_files("snapshots")) if not file[0].endswith("pin.json")] == before


def test_pins_are_listed_and_wrong_ones_are_refused(root: Root, tmp_path: Path) -> None:
    first, stream = publications(root)[0], io.StringIO()
    (further,) = first.lengths["length-32"]
    pin_snapshot(root, first.fingerprint, "the run of April", 1.6e9)
    pin_snapshot(root, first.fingerprint, "the run of May", 1.6e9)
    pin_snapshot(root, further, "", 1.6e9)
    print_snapshots(root, publications(root), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert lines[1] == "  pinned on 2020-09-13: the run of May"
    assert lines[2] == f"  length-32 {further[:12]} pinned on 2020-09-13"
    for name in ("x", ""):
        with pytest.raises(SnapshotError, match=f"no snapshot begins with '{name}'"):
            pin_snapshot(root, name, "", 1.6e9)
    with pytest.raises(SnapshotError, match="is not pinned"):
        unpin_snapshot(root, publications(root)[1].fingerprint)
    (tmp_path / "out" / "snapshots" / first.fingerprint / "pin.json").write_text("{")
    with pytest.raises(SnapshotError, match=r"pin.json: the file was edited or damaged.*--unpin"):
        plan_cleaning(root, 1)
    unpin_snapshot(root, first.fingerprint)
    assert [pin.fingerprint for pin in pins(root)] == [further]


def test_commands_pin_unpin_and_tell_what_a_pin_keeps(root: Root) -> None:
    runner, first = CliRunner(), _names(root)[0]
    listed = runner.invoke(app, ["snapshots", root.url, "--pin", first[:12], "--why", "the run of May"])
    assert listed.exit_code == 0 and ": the run of May" in listed.output
    told = runner.invoke(app, ["clean", root.url, "--dry-run"])
    assert f"keeps {first[:12]}: pinned on " in told.output and "keeps 2 snapshots" in told.output
    assert "pinned" not in runner.invoke(app, ["snapshots", root.url, "--unpin", first[:12]]).output
    for wrong in (["--why", "x"], ["--pin", first, "--unpin", first]):
        assert runner.invoke(app, ["snapshots", root.url, *wrong]).exit_code != 0
    assert pins(root) == []
