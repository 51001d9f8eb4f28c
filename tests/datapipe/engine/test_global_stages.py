"""Global stages in whole runs: the same documents are dropped for the same reasons, however the run went."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from datapipe.columns import key_halves
from datapipe.errors import DatapipeError
from datapipe.exchange.partitions import read_table
from datapipe.plan.runs import MOST_RUNS
from datapipe.plan.work import MapTask
from datapipe.storage import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

TAIL = """
tokenizer:
  train: {vocab_size: 300, sample_bytes: 16KiB}
pack: {sequence_length: 64}
shards: {target_bytes: 64KiB}
execution: {split_bytes: 16KiB, bucket_bytes: 64KiB}
"""
MINHASH = "dedup.minhash: {size_column: copies}"
IN_ROUNDS = "stages=[dedup.exact, dedup.minhash: {size_column: copies, components_bytes: 0}]"


def _chains(seed: int) -> list[dict[str, str]]:
    """Families in which each document is like the one before it, copies, and documents that are like no other."""
    rng = random.Random(seed)
    texts = []
    for _ in range(3):
        words = corpora.prose(rng, 200).split()
        for _ in range(8):
            words[rng.randrange(len(words))] = f"word{rng.randrange(10**6)}"
            words[rng.randrange(len(words))] = f"word{rng.randrange(10**6)}"
            texts.append(" ".join(words))
    texts += texts[::7] + [corpora.prose(rng, 150) for _ in range(5)]
    rng.shuffle(texts)
    return [{"id": f"{seed}-{number}", "text": text} for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chains")
    for number in range(3):
        corpora.write_jsonl(folder / f"{number}.jsonl", _chains(number // 2))  # two files are equal
    return folder


def _run(folder: Path, output: Path, *overrides: str, paths: str = "[0, 1, 2]", **options: Any) -> runs.Finished:
    listed = ", ".join(f"{folder}/{number}.jsonl" for number in paths.strip("[]").split(", "))
    stages = f"stages:\n  - dedup.exact\n  - {MINHASH}\n"
    output.mkdir(exist_ok=True)
    mixture = runs.write_mixture(output, f"  web:\n    path: [{listed}]\n", stages, TAIL)
    return runs.run_mixture(mixture, overrides=overrides, **{"make_engine": runs.InProcess, **options})


def _drops(done: runs.Finished) -> list[tuple[Any, ...]]:
    root = Root(done.mixture.output)
    outputs = [one for step in done.plan.of_kind("map") for one in step.outputs("drops")]
    rows = [row for output in outputs for batch in read_table(root, output) for row in batch.to_pylist()]
    return sorted((row["key"], row["stage"], row["rule"], row["value"], row["survivor"]) for row in rows)


@pytest.fixture(scope="module")
def reference(folder, tmp_path_factory) -> runs.Finished:
    return _run(folder, tmp_path_factory.mktemp("reference"))


def test_global_stages_reference_drops_copies_and_chains(reference):
    by_stage = reference.report["sources"]["web"]["documents"]["dropped"]
    assert set(by_stage) == {"dedup.exact:duplicate", "dedup.minhash:duplicate"}
    assert by_stage["dedup.minhash:duplicate"] >= 30
    assert all(0.719 <= value <= 1 for _, stage, _, value, _ in _drops(reference) if stage == "dedup.minhash")


class Stopping(runs.InProcess):
    """Stops the run after so many tasks."""

    left = 0

    def next_attempt(self, timeout_s):
        if type(self).left == 0:
            raise KeyboardInterrupt
        type(self).left -= 1
        return super().next_attempt(timeout_s)


@pytest.mark.parametrize("most_runs", [MOST_RUNS, pytest.param(2, marks=pytest.mark.slow)], ids=["", "merged"])
def test_global_stages_stopped_anywhere_go_on_and_nothing_runs_twice(tmp_path, folder, reference, monkeypatch, most_runs):
    monkeypatch.setattr("datapipe.plan.runs.MOST_RUNS", most_runs)
    size = "execution.bucket_bytes=" + ("16KiB" if most_runs == MOST_RUNS else "2KiB")
    ran: list[str] = []
    for number in range(40):
        watcher = runs.Watcher()
        Stopping.left = 7 if most_runs == MOST_RUNS else 29
        try:
            done = _run(folder, tmp_path / "run", IN_ROUNDS, size, make_engine=Stopping, watcher=watcher)
        except KeyboardInterrupt:
            ran += [record.fingerprint for record in watcher.records]
            continue
        ran += [record.fingerprint for record in watcher.records]
        assert number > 3
        assert bool(done.plan.of_kind("merge")) == (most_runs == 2)
        assert _drops(done) == _drops(reference)
        assert len(set(ran)) == len(ran)
        return
    pytest.fail("never finished")


@pytest.mark.slow
def test_global_stages_give_a_map_task_the_decisions_on_its_own_files(tmp_path, folder):
    done = _run(folder, tmp_path / "run", "execution.bucket_bytes=1KiB")
    root = Root(done.mixture.output)
    step = next(one for one in done.plan.steps if one.id == "web/apply-dedup.minhash")
    decisions = next(one for one in done.plan.steps if one.id == "dedup.minhash/decisions").outputs("drops")
    given = set()
    for task in step.tasks or ():
        assert isinstance(task, MapTask)
        assert task.decisions is not None
        batches = [batch for output in task.documents for batch in read_table(root, output)]
        own = {one for batch in batches for one in key_halves(batch.column("key"))[0].tolist()}
        for output in task.decisions.tables["drops"]:
            assert any(output.first <= one <= output.last for one in own)
            given.add(output.path)
    assert given == {output.path for output in decisions}
    assert len(decisions) > 1
    assert any(len(task.decisions.tables["drops"]) < len(decisions) for task in step.tasks or ())  # type: ignore[union-attr]


@pytest.mark.parametrize("scope", ["run", "source"])
def test_global_stages_scope_source_compares_no_documents_of_other_sources(tmp_path, folder, scope):
    sources = "".join(f"  {name}:\n    path: {folder}/0.jsonl\n" for name in ("one", "two"))
    stages = f"stages: [dedup.minhash: {{scope: {scope}}}]\n"
    done = runs.run_mixture(runs.write_mixture(tmp_path, sources, stages, TAIL), make_engine=runs.InProcess)
    kept = {name: entry["documents"]["kept"] for name, entry in done.report["sources"].items()}
    assert (kept["one"] == kept["two"]) == (scope == "source")
    assert min(kept.values()) == (0 if scope == "run" else kept["one"])


@pytest.mark.slow
def test_global_stages_report_rows_bytes_and_seconds_of_each_round(tmp_path, folder):
    done = _run(folder, tmp_path / "run", IN_ROUNDS)
    tasks, dropped = done.report["tasks"], done.report["sources"]["web"]["documents"]["dropped"]
    rounds = [name for name in tasks if name.startswith("dedup.minhash/components-")]
    assert rounds == [f"dedup.minhash/components-{number}" for number in range(1, len(rounds) + 1)]
    assert all({"rows", "bytes", "seconds"} <= set(tasks[name]) for name in rounds)
    assert tasks["dedup.minhash/decisions"]["rows"] >= dropped["dedup.minhash:duplicate"]
    assert "rows" not in tasks["web/read"]


ENDLESS = """
from collections.abc import Mapping
from datapipe.stage.tables import DROP_SCHEMA, OPEN, OPEN_SCHEMA, Exchange
from datapipe.stage.global_stage import Global
import pyarrow as pa

class Endless(Global):
    \"\"\"Always asks for another round.\"\"\"

    def emits(self):
        return {"rows": OPEN_SCHEMA}

    def emit(self, batch):
        return {"rows": pa.record_batch([pa.array([7] * batch.num_docs, pa.uint64())], schema=OPEN_SCHEMA)}

    def exchanges(self):
        return [Exchange(name="turn", inputs=("rows",), outputs={"drops": DROP_SCHEMA, OPEN: OPEN_SCHEMA}, rounds=3)]

    def reduce(self, exchange, bucket):
        return {OPEN: bucket["rows"].slice(0, 1)}
"""


def test_global_stages_that_never_come_to_an_end_are_told_of(tmp_path, folder, monkeypatch):
    (tmp_path / "endless_stage.py").write_text(ENDLESS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {folder}/0.jsonl\n", "stages: ['endless_stage:Endless']\n", TAIL)
    with pytest.raises(DatapipeError, match=r"turn: not finished after 3 rounds"):
        runs.run_mixture(mixture, make_engine=runs.InProcess)
