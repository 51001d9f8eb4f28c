"""A kind of work that the test adds: one class, listed among the kinds, is planned, run, killed, resumed and estimated."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from datapipe.engine.local import LocalEngine
from datapipe.records.outputs import Record
from datapipe.steps import kinds
from datapipe.steps.costs import Texts
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.late_import import late_import

pytestmark = pytest.mark.medium

TOY = '''
"""Counts the words of documents."""

import os
import signal
from datapipe.dataclass import dataclass, field
from pathlib import Path

from datapipe.exchange.tables import read_documents
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import OutputFile, TableFile
from datapipe.steps.kind import LEFT_OUT, Task, documents_of


@dataclass(slots=True)
class WordMetrics:
    words: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CountWords(Task):
    kind, version, mb_per_s, options = "count_words", 1, 200.0, ("seed",)

    before: str
    documents: tuple[TableFile, ...] = field(metadata=LEFT_OUT)

    def run(self, root, folder):
        crash = Path(f"{root.url}.crash")
        if crash.exists():
            crash.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        metrics = TaskMetrics(own=WordMetrics())
        for batch in read_documents(root, self.documents, metrics):
            with metrics.timed("count words", batch.text_bytes, batch.num_docs):
                metrics.own.words += sum(len(text.split()) for text in batch.texts.to_pylist())
        path = f"{folder}/words.txt"
        with root.open_output(path) as stream:
            stream.write(str(metrics.own.words).encode())
        file = OutputFile(path=path, rows=1, bytes=stream.num_bytes, checksum=stream.checksum)
        return {"words": (file,)}, metrics

    @classmethod
    def plan_source(cls, planning, source):
        cleaned = planning.cleaned(source)
        own = map(documents_of, cleaned.records) if cleaned.is_committed else None
        planning.add(cls, f"{source}/count-words", "count words", own, source=source)
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/toy_kind.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path / "code")
    module = importlib.import_module("toy_kind")
    monkeypatch.setattr(kinds, "KINDS", [*kinds.KINDS, module.CountWords])
    yield module
    del sys.modules["toy_kind"]


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    for number in range(4):
        corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 30))
    tail = runs.TAIL.replace("split_bytes: 64KiB", "split_bytes: 4KiB")
    return runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web/*.jsonl}}\n", "stages: [dedup.exact]", tail)


def _counted(finished: runs.Finished, toy: ModuleType) -> dict[str, tuple[int, bytes]]:
    """By task, what it counted, by its metrics and by its file."""
    root, (step,) = Root(str(finished.mixture.output)), finished.plan.of_kind("count_words")
    words = (own.words for own in step.numbers(toy.WordMetrics))
    files = (root.read_bytes(file.path) for file in step.outputs("words"))
    return {record.fingerprint: each for record, each in zip(step.records, zip(words, files, strict=True), strict=True)}


def test_kind_that_is_added_runs_and_is_estimated_and_explained_as_the_others_are(toy, mixture) -> None:
    finished = runs.run_mixture(mixture, make_engine=runs.InProcess)
    counted, (step,) = _counted(finished, toy), finished.plan.of_kind("count_words")
    assert len(counted) == len(finished.plan.of_kind("map")[-1].records) > 4
    assert all(int(content) == words > 0 for words, content in counted.values())
    texts = Texts(input={}, of_steps={}, cleaned={"web": 4e8}, packed={"web": 4e8}, sampled={}, token_bytes=0.5)
    assert sum(cost.seconds for cost in step.work.cost(finished.plan, step, texts)) == 2.0
    assert finished.report["total"]["steps"]["count words"]["documents"] == finished.report["total"]["documents"]["kept"]


def _is_resumed_after_kills(toy: ModuleType, mixture: Path, make_engine: Callable[..., Any]) -> None:
    """A worker is killed in a task of the kind, then the run is stopped between two tasks, and goes on."""
    expected = _counted(runs.run_mixture(mixture, output=mixture.parent / "expected", make_engine=runs.InProcess), toy)
    mixture.parent.joinpath("out.crash").touch()
    committed: list[str] = []

    def note(record: Record) -> None:
        if record.step == "web/count-words":
            committed.append(record.fingerprint)
            if len(committed) > 1 and watcher.retries:  # at the latest with the task whose worker was killed
                raise KeyboardInterrupt

    watcher = runs.Watcher(on_commit=note)
    with pytest.raises(KeyboardInterrupt):
        runs.run_mixture(mixture, make_engine=make_engine, watcher=watcher)
    assert not mixture.parent.joinpath("out.crash").exists()
    again = runs.Watcher()
    finished = runs.run_mixture(mixture, make_engine=make_engine, watcher=again)
    assert _counted(finished, toy) == expected
    assert not {record.fingerprint for record in again.records} & set(committed)


@pytest.mark.slow
def test_kind_that_is_added_is_killed_and_resumed_on_local_workers(toy, mixture) -> None:
    _is_resumed_after_kills(toy, mixture, lambda root, request: LocalEngine(root.url, 2, request.mixture.execution))


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_kind_that_is_added_is_killed_and_resumed_on_ray(toy, mixture) -> None:
    from ray.cluster_utils import Cluster

    ray_engine = late_import("datapipe.engine.ray")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        _is_resumed_after_kills(toy, mixture, lambda root, request: ray_engine.RayEngine(root, request, cluster.address))
    finally:
        cluster.shutdown()


def imported_by(*modules: str) -> list[str]:
    """The modules of a process that imports some."""
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    command = [sys.executable, "-c", script, *modules]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


@pytest.mark.medium
def test_workers_read_no_mixture_and_import_nothing_that_does() -> None:
    modules = {kind.__module__ for kind in kinds.KINDS}
    imported = imported_by("datapipe.engine.protocol", "datapipe.steps.run_task", *modules)
    assert modules <= set(imported)
    unneeded = ("datapipe.config", "datapipe.loader", "datapipe.report", "datapipe.snapshots", "datapipe.tokens.figures")
    assert [name for name in imported if name.startswith((*unneeded, "ruamel", "rich"))] == []


@pytest.mark.medium
def test_planning_imports_no_loader() -> None:
    imported = imported_by("datapipe.engine.history", "datapipe.engine.prepare")
    assert "datapipe.snapshots.snapshot_sources" in imported
    assert [name for name in imported if name.startswith("datapipe.loader.")] == []
