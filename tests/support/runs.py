"""Runs of whole mixtures for tests: a small mixture file, and the run of it in this process with local workers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from datapipe.config import Mixture, load_mixture
from datapipe.engine.events import Committed, Event, Observer, Retried, UserMessage
from datapipe.engine.local import LocalEngine
from datapipe.engine.protocol import Attempt, Engine, Failure
from datapipe.engine.run import Run, RunOptions
from datapipe.records.outputs import Record
from datapipe.report.report import Report
from datapipe.report.summary import summarize
from datapipe.shards.manifest import Snapshot
from datapipe.snapshots.publish import MakeReport
from datapipe.steps.kind import Plan, Task
from datapipe.steps.run_task import run_task
from datapipe.steps.warnings import RunWarning, run_warnings

STAGES = """
stages:
  - normalize.unicode
  - filter.gopher_quality
  - dedup.exact
  - dedup.minhash
  - redact.pii
"""

TAIL = """
validation: 5%
tokenizer:
  train: {vocab_size: 600, sample_bytes: 1MiB}
pack: {sequence_length: 64}
shards: {target_bytes: 64KiB}
execution: {split_bytes: 64KiB, bucket_bytes: 64KiB}
"""


@dataclass
class Watcher:
    """An observer that remembers."""

    # records, tasks: of each committed attempt
    records: list[Record] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    retries: list[Failure] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    on_commit: Callable[[Record], None] = lambda record: None

    def __call__(self, event: Event) -> None:
        match event:
            case Committed():
                for attempt in event.attempts:
                    assert attempt.record is not None
                    self.records.append(attempt.record)
                    self.tasks.append(attempt.task)
                    self.on_commit(attempt.record)
            case Retried() if event.attempt.failure is not None:
                self.retries.append(replace(event.attempt.failure, message=event.text))
            case UserMessage():
                self.lines.append(event.line)
            case _:
                pass

    @property
    def steps(self) -> list[str]:
        return [record.step for record in self.records]


class InProcess(Engine):
    """An engine that runs each task where it is asked for: no worker to start, for corpora this small."""

    slots = 1

    def __init__(self, root, request):
        self.root, self.tasks = root, []

    def submit(self, task, attempt):
        self.tasks.append((task, attempt))

    def next_attempt(self, timeout_s) -> Attempt | None:
        task, attempt = self.tasks.pop(0)
        return Attempt(task=task, attempt=attempt, record=run_task(task, self.root, attempt))

    def cancel(self, attempt): ...

    def messages(self):
        return ()

    def close(self): ...


class LastFirst(InProcess):
    """Runs the task that was handed in last before the others."""

    slots = 8

    def next_attempt(self, timeout_s):
        self.tasks.insert(0, self.tasks.pop())
        return super().next_attempt(timeout_s)


@dataclass
class Finished:
    """A run that ended well."""

    mixture: Mixture
    snapshot: Snapshot
    watcher: Watcher
    plan: Plan
    warnings: list[RunWarning] = field(default_factory=list)

    @property
    def summary(self) -> Report:
        sources, snapshot, warnings = self.mixture.sources, self.snapshot, self.warnings
        return summarize(self.mixture.name, self.plan, sources, snapshot=snapshot, warnings=warnings)

    @property
    def report(self) -> dict[str, Any]:
        """report.json, without what comes from files of the run."""
        return self.summary.model_dump(mode="json")

    @property
    def told(self) -> list[str]:
        """The texts of all warnings of its report."""
        return [warning["text"] for warning in self.report["warnings"]]

    @property
    def checksums(self) -> dict[str, str]:
        return {shard.path: shard.checksum for shard in self.snapshot.shards}


def write_mixture(folder: Path, sources: str, stages: str = STAGES, tail: str = TAIL, name: str = "mixture.yaml") -> Path:
    """A mixture file in `folder`, whose output is `folder/out` unless a run asks for another."""
    path = folder / name
    path.write_text(f"name: test\nseed: 3\noutput: {folder}/out\nsources:\n{sources}\n{stages}\n{tail}", encoding="utf-8")
    return path


def run_mixture(
    path: Path | Mapping[str, Any],
    *,
    output: Path | str | None = None,
    overrides: Sequence[str] = (),
    workers: int = 2,
    limit: int | None = None,
    make_engine: Callable[..., Any] | None = None,
    watcher: Watcher | None = None,
    observer: Observer | None = None,
    replaces: bool = False,
    trusts_records: bool = False,
    report: MakeReport | None = None,
) -> Finished:
    """Runs a mixture, of a file or built by a test, to its end with local workers, or on the engine given.

    Args:
        observer: gets the events in place of the watcher.
    """
    mixture = load_mixture(path, overrides, None if output is None else str(output))
    watcher = watcher or Watcher()
    engine = make_engine or (lambda root, request: LocalEngine(root.url, workers, request.mixture.execution))
    options = RunOptions(limit=limit, replaces=replaces, trusts_records=trusts_records)
    run = Run(mixture, observer or watcher, options, engine, make_report=report)
    snapshot = run.execute()
    assert run.plan is not None
    assert run.request is not None
    warnings = run_warnings(run.request, run.plan, run.of_snapshot)
    return Finished(mixture=mixture, snapshot=snapshot, watcher=watcher, plan=run.plan, warnings=warnings)
