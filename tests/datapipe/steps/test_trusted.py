"""Another version of a library: what runs again, what `--trust-records` keeps, and where it is written that it was kept."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datapipe.config import load_mixture
from datapipe.engine.history import why
from datapipe.engine.run import Run, RunOptions, planned
from datapipe.engine.run_report import run_and_report
from datapipe.loader import Loader
from datapipe.machine import libraries
from datapipe.records import versions
from datapipe.records.versions import EqualVersions, TrustedRecords
from datapipe.report.report import read_report
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.steps.tokenize import TokenizeTask
from datapipe.storage.root import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

STAGES = "stages: [normalize.unicode, dedup.exact]"
TAIL = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 64KiB}}
pack: {sequence_length: 64}
execution: {split_bytes: 16KiB, bucket_bytes: 32KiB, check_disk: false}
"""
SOURCES = "  web: {{path: {folder}/web/*.jsonl}}\n"

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Sets versions of libraries for this process."""

    def set_versions(**installed: str) -> None:
        def version(library: str) -> str:
            return installed.get(library) or libraries.installed_version(library)

        for module in ("records.versions", "tokens.encoder", "tokens.proof"):
            monkeypatch.setattr(f"datapipe.{module}.installed_version", version)
        versions.version_here.cache_clear()

    monkeypatch.setattr(versions, "EQUAL", ())
    yield set_versions
    versions.version_here.cache_clear()


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    for name in ("web", "books"):
        for number in range(3):
            corpora.write_jsonl(tmp_path / f"{name}/{number}.jsonl", corpora.documents(10 * number + len(name), 25, exact=0.2))
    return runs.write_mixture(tmp_path, SOURCES.format(folder=tmp_path), STAGES, TAIL)


def _run(mixture: Path, watcher: runs.Watcher | None = None, trusts: bool = False, **options: Any) -> runs.Finished:
    return runs.run_mixture(mixture, make_engine=runs.InProcess, watcher=watcher, trusts_records=trusts, **options)


def _grown(mixture: Path) -> Path:
    """The mixture with a further source, and longer rows."""
    folder = mixture.parent
    text = mixture.read_text().replace("sources:\n", f"sources:\n  books: {{path: {folder}/books/*.jsonl}}\n")
    text = text.replace("sequence_length: 64", "sequence_length: 32")
    (folder / "grown.yaml").write_text(text)
    return folder / "grown.yaml"


def test_another_version_runs_what_it_decides_and_names_the_option(mixture: Path, install: Install) -> None:
    install(pyarrow="26.0.0")
    first = _run(mixture)
    install(pyarrow="26.0.0", xxhash="9.9", numba="9.9")
    assert _run(mixture).watcher.steps == []
    install(pyarrow="26.0.1")
    request, plan = planned(load_mixture(mixture))
    (warning,) = (warning for warning in request.warnings if warning.kind == "other_versions")
    num_tasks = warning.details["tasks"]
    assert str(warning) == (
        f"{num_tasks} tasks ran with pyarrow 26.0.0, and this run has pyarrow 26.0.1. They, and tasks that follow, run again; "
        f"--trust-records keeps them."
    )
    again = _run(mixture)
    assert str(warning) in again.watcher.lines
    made_again = [record for record in again.watcher.records if "pyarrow=26.0.1" in record.versions]
    assert num_tasks == len(made_again)
    assert again.snapshot == first.snapshot
    assert plan.pending()


def test_trusted_records_are_kept_and_named_in_manifest_report_and_card(mixture: Path, install: Install) -> None:
    install(pyarrow="26.0.0")
    first = _run(mixture)
    output = first.mixture.output
    order = [batch["input_ids"].tolist() for batch, _ in zip(Loader(output, batch_size=2), range(8))]
    install(pyarrow="26.0.1")
    request, plan = planned(load_mixture(mixture), trusts_records=True)
    assert plan.is_committed
    assert [warning.kind for warning in request.warnings] == ["trusted_records"]
    watcher = runs.Watcher()
    run = Run(load_mixture(mixture), watcher, RunOptions(trusts_records=True), runs.InProcess)
    run_and_report(run).raise_problem()
    snapshot = read_snapshot(Root(output))
    assert watcher.steps == []
    (entry,) = snapshot.trusted
    assert entry == TrustedRecords(library="pyarrow", made_with="26.0.0", version="26.0.1", tasks=entry.tasks)
    assert {shard.path: shard.checksum for shard in snapshot.shards} == first.checksums
    assert snapshot.fingerprint != first.snapshot.fingerprint
    assert Snapshot.model_validate_json(snapshot.to_json()).trusted == snapshot.trusted
    assert [warning.kind for warning in read_report(Root(output)).warnings] == ["trusted_records"]
    card = Path(output, "README.md").read_text()
    assert f"{entry.tasks} tasks ran with `pyarrow` `26.0.0`" in card
    assert [batch["input_ids"].tolist() for batch, _ in zip(Loader(output, batch_size=2), range(8))] == order
    assert "trusted" not in json.loads(first.snapshot.to_json())


@pytest.mark.slow
def test_records_of_another_version_are_kept_with_the_option_alone(mixture: Path, install: Install) -> None:
    install(pyarrow="26.0.0")
    _run(mixture)
    install(pyarrow="26.0.1")
    assert _run(mixture, trusts=True).watcher.steps == []
    loaded = load_mixture(mixture)
    by_step = why(Root(loaded.output), *planned(loaded))
    assert by_step["web/read"] == ["other versions of libraries made it, which the last run trusted"]
    again = _run(mixture)
    assert {step.partition("/")[2] for step in again.watcher.steps} >= {"read", "train", "tokenize", "pack"}
    assert not again.snapshot.trusted
    assert not _run(mixture, trusts=True).watcher.steps


@pytest.mark.parametrize("num_commits", [0, 1, 3, 6, 12])
@pytest.mark.slow
def test_trusting_run_of_another_mixture_that_is_killed_goes_on_with_the_same_records(
    mixture: Path, install: Install, num_commits: int, tmp_path: Path
) -> None:
    install(pyarrow="26.0.0")
    first = {record.fingerprint for record in _run(mixture).watcher.records}
    grown = _grown(mixture)
    install(pyarrow="26.0.1")
    killed = runs.Watcher()

    def stop(_: object) -> None:
        if len(killed.records) > num_commits:
            raise KeyboardInterrupt

    killed.on_commit = stop
    with pytest.raises(KeyboardInterrupt):
        _run(grown, killed, trusts=True)
    resumed = _run(grown, trusts=True)
    steps = [*killed.steps, *resumed.watcher.steps]
    assert "web/read" not in steps
    assert {"books/read", "web/pack", "books/pack"} <= set(steps)
    kept = {record.fingerprint for step in resumed.plan.steps for record in step.records} & first
    assert kept
    (entry,) = resumed.snapshot.trusted
    assert entry.tasks == len(kept)
    whole = _run(grown, trusts=True)
    assert (whole.watcher.steps, whole.snapshot) == ([], resumed.snapshot)
    batches = [batch["input_ids"] for batch, _ in zip(Loader(resumed.mixture.output, batch_size=2), range(8))]
    assert all(batch.shape == (2, 32) for batch in batches)
    assert resumed.checksums == _run(grown, output=tmp_path / "copy").checksums


@pytest.mark.medium
def test_tasks_of_other_options_are_never_kept(mixture: Path, install: Install) -> None:
    install(pyarrow="26.0.0")
    first = _run(mixture)
    mixture.write_text(mixture.read_text().replace("normalize.unicode", "normalize.unicode: {form: NFKC}"))
    install(pyarrow="26.0.1")
    changed = _run(mixture, trusts=True)
    reading = [step for step in changed.plan.steps if step.id == "web/read"]
    assert changed.watcher.steps.count("web/read") == sum(len(step.tasks or ()) for step in reading)
    known = {record.fingerprint for record in first.watcher.records}
    assert not known & {record.fingerprint for step in reading for record in step.records}


@pytest.mark.slow
def test_equal_versions_run_nothing_and_leave_no_note(mixture: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(pyarrow="26.0.0", tokenizers="0.23.2", fastokens="0.3.4")
    first = _run(mixture)
    equal = [("pyarrow", "26.0.0", "26.0.1"), ("tokenizers", "0.23.2", "0.23.3"), ("fastokens", "0.3.4", "0.3.5")]
    monkeypatch.setattr(versions, "EQUAL", tuple(EqualVersions(*row, "a test") for row in equal))
    install(pyarrow="26.0.1", tokenizers="0.23.3", fastokens="0.3.5")
    again = _run(mixture)
    assert (again.watcher.steps, again.snapshot) == ([], first.snapshot)
    grown = _run(_grown(mixture))
    assert "books/tokenize" in grown.watcher.steps
    assert "web/read" not in grown.watcher.steps


@pytest.mark.slow
def test_encoder_of_another_version_is_proved_again_by_a_trusting_run(mixture: Path, install: Install) -> None:
    trained = _run(mixture, output=mixture.parent / "trained").mixture.output
    trains = "{train: {vocab_size: 300, sample_bytes: 64KiB}}"
    mixture.write_text(mixture.read_text().replace(trains, f"{{path: {trained}/tokenizer.json}}"))
    install(fastokens="0.3.4", tokenizers="0.23.2")
    _run(mixture)
    install(fastokens="0.3.5", tokenizers="0.23.3")
    corpora.write_jsonl(mixture.parent / "web/9.jsonl", corpora.documents(99, 25))
    trusting = _run(mixture, trusts=True)
    assert {entry.library for entry in trusting.snapshot.trusted} == {"fastokens", "tokenizers"}
    assert "web/tokenize" in trusting.watcher.steps
    assert "tokenizer/load" not in trusting.watcher.steps
    (step,) = trusting.plan.of_kind("tokenize")
    assert not any(task.is_proved for task in step.tasks or () if isinstance(task, TokenizeTask))
    assert trusting.checksums == _run(mixture, output=mixture.parent / "other").checksums


def test_manifest_of_trusted_records_is_refused_where_an_entry_is_damaged() -> None:
    with pytest.raises(ValueError, match="tasks"):
        TrustedRecords.model_validate({"library": "numpy", "made_with": "1", "version": "2"})
