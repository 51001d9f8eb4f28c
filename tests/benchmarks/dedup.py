"""`dedup.minhash`: the speed of signatures, and how the whole grows with documents.

Near duplicates by the document: made-up documents (`tests/support/scale_corpus.py`) of 504 bytes, three in ten of which
belong to families of near duplicates, in two sizes. Every task is a task of a run, in its own process.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from datapipe.records.outputs import ExchangeFile, TableFile
from datapipe.stage.documents import DocumentBatch
from stages.dedup.minhash import Minhash
from tests.benchmarks.tables import Bound, Settings, Table, best_s
from tests.benchmarks.texts import batches, megabytes, read_texts
from tests.support import global_stages, scale_corpus
from tests.support.task_processes import Measured, fresh_tasks, run_to_decisions

_RUNS = 6
_DOCUMENTS = 100_000
_EXECUTION = {"split_bytes": "32MiB", "bucket_bytes": "64MiB"}


def tables(settings: Settings) -> Iterator[Table]:
    yield _minhash(settings)
    num_docs = 10_000 if settings.quick else settings.documents or _DOCUMENTS
    yield _by_the_document(settings.folder, num_docs)


def bounds(folder: Path) -> Iterator[Bound]:
    small, large = (near_duplicates(folder / str(count), count) for count in (10_000, 40_000))
    for step in ("compare", "cluster"):
        ratio = large.us(step) / small.us(step)
        yield Bound(name=f"dedup.minhash, {step}: µs a document, four times the documents", ratio=ratio, most=2)
    ratio = sum(large.seconds.values()) / large.num_docs / (sum(small.seconds.values()) / small.num_docs)
    yield Bound(name="dedup.minhash: µs a document, four times the documents", ratio=ratio, most=1.5)
    yield Bound(name="dedup.minhash, signatures of the time to read", ratio=large.us("signatures") / large.us("read"), most=0.6)


# ------------------------------------------------------------------------------------------------ speed


def _minhash(settings: Settings) -> Table:
    texts = read_texts(settings.web)
    corpus = list(batches(texts))

    def fresh() -> list[DocumentBatch]:
        return [DocumentBatch(batch.record) for batch in corpus]

    stages = {name: global_stages.opened(Minhash(shingle=name), "dedup.minhash") for name in ("word", "char")}
    seconds = {
        "signatures, words": best_s(lambda: [stages["word"].emit(batch) for batch in fresh()], _RUNS),
        "signatures, characters": best_s(lambda: [stages["char"].emit(batch) for batch in fresh()], _RUNS),
        "words, all exchanges in memory": best_s(lambda: global_stages.reduce_all(stages["word"], fresh()), _RUNS),
    }
    return Table(
        title="MinHash",
        note=f"14 bands of 8 rows over 5-grams, {megabytes(corpus):.1f} MB of English web text in {len(texts):,} "
        f"documents; CPU time, the best of {_RUNS}.",
        header=("work", "MB/s"),
        rows=[(name, f"{megabytes(corpus) / taken_s:,.1f}") for name, taken_s in seconds.items()],
    )


# ------------------------------------------------------------------------------------------------ growth


@dataclass
class Grown:
    """The cost of one size over all tasks, by step: seconds, bytes of rows written, and bytes of them stored."""

    num_docs: int
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    rows_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stored_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, measured: Measured) -> None:
        kind, record = measured.kind, measured.record
        self.seconds[kind] += record.metrics.seconds
        if kind == "read":
            self.seconds["signatures"] += record.metrics.work["dedup.minhash"].seconds
        for table, files in record.outputs.items():
            if table.startswith("emitted.") or not kind.startswith(("read", "apply")):
                name = table if kind == "read" else kind
                written = [file for file in files if isinstance(file, ExchangeFile | TableFile)]
                self.rows_bytes[name] += sum(file.row_bytes for file in written)
                self.stored_bytes[name] += sum(file.bytes for file in written)

    def us(self, step: str) -> float:
        """Microseconds a document."""
        return self.seconds[step] / self.num_docs * 1e6


def near_duplicates(folder: Path, num_docs: int) -> Grown:
    """A whole `dedup.minhash` over documents."""
    corpus = scale_corpus.write(folder / "corpus", num_docs)
    mixture = scale_corpus.write_mixture(folder, corpus, "dedup.minhash", {"components_bytes": 0}, _EXECUTION)
    grown = Grown(num_docs)
    with fresh_tasks() as tasks:
        for measured in run_to_decisions(mixture, tasks):
            grown.add(measured)
    shutil.rmtree(folder)
    return grown


def _by_the_document(folder: Path, num_docs: int) -> Table:
    small, large = (near_duplicates(folder / f"documents-{count}", count) for count in (num_docs // 10, num_docs))
    rows = []
    for step in dict.fromkeys([*large.seconds, *large.rows_bytes]):
        times = [f"{grown.us(step):.2f}" if step in grown.seconds else "" for grown in (small, large)]
        rows.append((step, *times, *(f"{each[step] / num_docs:.0f}" for each in (large.rows_bytes, large.stored_bytes))))
    return Table(
        title="Near duplicates, by the document",
        note=f"`dedup.minhash` over {num_docs // 10:,} and {num_docs:,} made-up documents of 504 bytes, three in ten of "
        "them near duplicates; the time of every task summed, one run. `--documents` measures other sizes.",
        header=("step", f"µs, {num_docs // 10:,}", f"µs, {num_docs:,}", "bytes of rows", "as stored"),
        rows=rows,
    )
