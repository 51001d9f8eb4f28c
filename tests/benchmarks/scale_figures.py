"""The figures of runs over corpora of several sizes, the JSON file that keeps them, and how they grow with the corpus.

    {"version": 1, "records": [{"recipe": "fineweb", "target_bytes": 200000000, "keep_work": "none", …}, …]}

A record is one run; the fields of `Figures` are its names. A run that has a record is not measured again.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from datapipe.machine.files import write_atomic
from datapipe.records.ledger import Ledger
from datapipe.records.names import REPORT
from datapipe.storage.root import Root
from tests.support.measured_run import BETWEEN, MeasuredRun

Key = tuple[str, int, str, int]
VERSION = 1
START = "start"
"""The kind of what no step takes: kernels that are compiled, and the files of the snapshot."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run.

    Attributes:
        recipe: the mixture, "fineweb" or "commoncrawl".
        target_bytes: text, or web archive before compression, that was asked for.
        keep_work, split_bytes: options of `execution`.
        was_killed: whether the run was killed half-way, with its workers, and the same command ran again.
        workers: processes; the driver is one more.
        input_bytes: of the corpus before compression.
        text_bytes: UTF-8 bytes of text that was read; of web archives, that was extracted.
        documents: read.
        kept_documents, kept_bytes: of them, what filters and deduplication leave; bytes of text.
        tokens: in shards, without padding.
        wall_seconds: from the start of the command to its end.
        core_seconds: CPU of the workers, by kind of work (`datapipe/steps/kinds.py`).
        driver_seconds: CPU of the driver.
        bytes_written: of committed files by kind of work, shards included.
        bytes_read: by workers and driver, with code that is imported.
        reads: calls of the system for them.
        requests: to an object store by class, of another run over the same corpus; empty where none was measured.
        peak_work_bytes, peak_output_bytes: of the files below `work/` without published shards, and of all.
        peak_driver_bytes, peak_worker_bytes: resident memory.
        tasks: committed, by kind of work.
        steps: by step: kind, tasks, core_seconds, driver_seconds, bytes_read, bytes_written (with what was not committed).
        measured: when and on what.
    """

    recipe: str
    target_bytes: int
    keep_work: str
    split_bytes: int
    was_killed: bool = False
    workers: int
    input_bytes: int
    text_bytes: int
    documents: int
    kept_documents: int
    kept_bytes: int
    tokens: int
    wall_seconds: float
    core_seconds: Mapping[str, float]
    driver_seconds: float
    bytes_written: Mapping[str, int]
    bytes_read: int
    reads: int
    requests: Mapping[str, int] = field(default_factory=dict)
    peak_work_bytes: int
    peak_output_bytes: int
    peak_driver_bytes: int
    peak_worker_bytes: int
    tasks: Mapping[str, int]
    steps: Mapping[str, Mapping[str, Any]]
    measured: str = ""

    @property
    def key(self) -> Key:
        return self.recipe, self.target_bytes, self.keep_work, self.split_bytes

    @property
    def paid_core_seconds(self) -> float:
        """Cores of the workers, for the time of the run."""
        return self.workers * self.wall_seconds


def figures_of(run: MeasuredRun, root: Root, text_step: str = "", **facts: Any) -> Figures:
    """The figures of a finished run, from its report, its records, and what was measured from outside. `text_step`: the work
    whose input is the text, where it is not what was read."""
    report = json.loads(root.read_bytes(REPORT))
    total, tasks, usage = report["total"], report["tasks"], run.total
    steps = run.by_step({step: entry["seconds"] for step, entry in tasks.items()})
    kinds = {BETWEEN: START} | {step: entry["kind"] for step, entry in tasks.items()}
    core_seconds, written, counts = Counter[str](), Counter[str](), Counter[str]()
    for step, spent in steps.items():
        core_seconds[kinds.get(step, START)] += spent.core_seconds
    for step, num_bytes in committed_bytes(root).items():
        written[kinds.get(step, START)] += num_bytes
    for entry in tasks.values():
        counts[entry["kind"]] += entry["committed"]
    return Figures(
        text_bytes=total["steps"][text_step]["bytes"] if text_step else total["bytes"],
        documents=total["documents"]["read"],
        kept_documents=total["documents"]["kept"],
        kept_bytes=total["kept_bytes"],
        tokens=total["tokens"],
        wall_seconds=round(run.wall_seconds, 2),
        core_seconds={kind: round(seconds, 2) for kind, seconds in core_seconds.items()},
        driver_seconds=round(usage.driver_seconds, 2),
        bytes_written=dict(written),
        bytes_read=round(usage.bytes_read),
        reads=round(usage.reads),
        peak_work_bytes=run.peak_work_bytes,
        peak_output_bytes=run.peak_output_bytes,
        peak_driver_bytes=run.peak_driver_bytes,
        peak_worker_bytes=report["peak_worker_bytes"],
        tasks=dict(counts),
        was_killed=run.was_killed,
        steps={step: _step(step, spent, kinds, tasks) for step, spent in steps.items()},
        **facts,
    )


def _step(step: str, spent: Any, kinds: Mapping[str, str], tasks: Mapping[str, Any]) -> dict[str, Any]:
    about = {"kind": kinds.get(step, START), "tasks": tasks[step]["committed"] if step in tasks else 0}
    return about | {name: round(value, 3) for name, value in vars(spent).items()}


def committed_bytes(root: Root) -> Counter[str]:
    """Bytes of the files of all records of an output, by step, those that were deleted since included."""
    written: Counter[str] = Counter()
    ledger = Ledger(root)
    ledger.load()
    for record in filter(None, map(ledger.look_up, ledger.fingerprints())):
        written[record.step] += sum(file.bytes for files in record.outputs.values() for file in files)
    return written


@dataclass(frozen=True, kw_only=True)
class FiguresFile:
    """The records in a file, in the order of their keys."""

    path: Path

    def read(self) -> dict[Key, Figures]:
        if not self.path.exists():
            return {}
        content = json.loads(self.path.read_text(encoding="utf-8"))
        assert content["version"] == VERSION, f"{self.path}: version {content['version']}. Delete it, and measure again"
        return {figures.key: figures for figures in (Figures(**record) for record in content["records"])}

    def measured_once(self, key: Key, measure: Callable[[], Figures]) -> Figures:
        """The record of this key, which is measured and kept where there is none."""
        return self.read().get(key) or self.keep(measure())

    def with_requests(self, figures: Figures, count: Callable[[], Mapping[str, int]]) -> Figures:
        """The record with its requests, which are counted and kept where it has none."""
        return figures if figures.requests else self.keep(replace(figures, requests=count()))

    def keep(self, figures: Figures) -> Figures:
        records = self.read() | {figures.key: figures}
        content = {"version": VERSION, "records": [asdict(records[key]) for key in sorted(records)]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, (json.dumps(content, indent=1) + "\n").encode())
        return figures


GROWING: Mapping[str, Callable[[Figures], float]] = {
    "documents": lambda figures: figures.documents,
    "tasks": lambda figures: sum(figures.tasks.values()),
    "wall seconds": lambda figures: figures.wall_seconds,
    "core seconds": lambda figures: sum(figures.core_seconds.values()),
    "driver seconds": lambda figures: figures.driver_seconds,
    "bytes read": lambda figures: figures.bytes_read,
    "reads": lambda figures: figures.reads,
    "bytes written": lambda figures: sum(figures.bytes_written.values()),
    "requests": lambda figures: sum(figures.requests.values()),
    "peak bytes of work/": lambda figures: figures.peak_work_bytes,
    "peak bytes of OUTPUT": lambda figures: figures.peak_output_bytes,
    "peak memory of the driver": lambda figures: figures.peak_driver_bytes,
    "peak memory of a worker": lambda figures: figures.peak_worker_bytes,
}


def exponent(records: Sequence[Figures], figure: Callable[[Figures], float]) -> float | None:
    """The p of a figure that grows as n^p with the bytes of text; None for fewer than two sizes."""
    return _slope([(record.text_bytes, value) for record in records if (value := figure(record)) > 0])


def exponent_of_increase(records: Sequence[Figures], figure: Callable[[Figures], float]) -> float | None:
    """The p of a figure that grows as a + b n^p, from what each further byte of text adds; None for fewer than three sizes,
    and for a figure that falls. A large constant a hides p from `exponent`."""
    points = [(record.text_bytes, value) for record in records if (value := figure(record)) > 0]
    added = [(math.sqrt(n * m), (g - f) / (m - n)) for (n, f), (m, g) in pairwise(points)]
    slope = _slope(added) if all(each > 0 for _, each in added) else None
    return None if slope is None else 1 + slope


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the line through the logarithms of points, by least squares; None for fewer than two."""
    if len({x for x, _ in points}) < 2:
        return None
    return float(np.polyfit(*np.log(np.array(points, float)).T, 1)[0])
