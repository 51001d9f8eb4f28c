"""What tasks measured, folded: small files of many tasks become few, so that whoever sums up a step reads few.

    1,000,000 files ─▶ 256 at a time ─▶ 3,907 ─▶ 256 at a time ─▶ 16 ─▶ the report, the tokenizer, warnings

A file of a fold has the rows that its files have, added up (`_FOLDS`), so whoever sums up a step gets
the same result from either. Steps of few tasks have no folds.
"""

import json
import math
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import first_of_group, numbers
from datapipe.dataclass import dataclass, field
from datapipe.exchange.files import TableWriters
from datapipe.exchange.ranges import HASH_SPACE, read_slices
from datapipe.exchange.tables import FactWriter, TableWriter, committed_bytes, read_table
from datapipe.kernels.distributions import NEAREST
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import (
    CELL_SIZES,
    HELD_OUT_TEXTS,
    TRAINING_TEXTS,
    ExchangeFile,
    F,
    OutputFile,
    Outputs,
    Record,
    TableFile,
    typed,
)
from datapipe.steps.growth import Files, Growth, StepSize
from datapipe.steps.kind import Plan, Planning, Step, Task, entering
from datapipe.steps.measuring import MOST_OF_TASK, RULES, ClusterSample, add_clusters
from datapipe.storage.root import Root

MOST_FILES = 256  # of one kind that a fold, or whoever sums up a step, reads
MOST_TEXTS = 1 << 23
"""Texts whose hashes are compared with each other to find copies of held-out documents: the lowest hashes, about 67 MB."""

_OF_MAP = ("measured", "borderline", "findings", "survivors")
_OF_TOKENIZE = ("used_ids", TRAINING_TEXTS, HELD_OUT_TEXTS)
FOLDED: Mapping[str, tuple[str, ...]] = {"map": _OF_MAP, "tokenize": _OF_TOKENIZE, "sample": ("sample",)}


@dataclass(slots=True)
class FoldMetrics:
    """The tasks of the step whose files are in these: `folded` of them, from the one with the fingerprint `first` on."""

    folded: int = 0
    first: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldTask(Task):
    """Adds up what some tasks of a step measured."""

    kind, version, is_exchange, libraries = "fold", 2, True, ("pyarrow",)

    number: int  # among the tasks of its step: files of several may be equal
    files: Mapping[str, tuple[OutputFile, ...]] = field(
        metadata=entering(lambda files: {name: [file.checksum for file in listed] for name, listed in sorted(files.items())})
    )
    # as in `FoldMetrics`
    folded: int
    first: str
    stop: int  # hashes of texts below it are kept

    @property
    def input_bytes(self) -> float:
        return self.folded  # about as much of each

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics, outputs = TaskMetrics(own=FoldMetrics(self.folded, self.first)), dict[str, tuple[OutputFile, ...]]()
        with metrics.timed("fold") as work:
            for name, files in self.files.items():
                outputs[f"folded.{name}"] = tuple(_FOLDS[name](self, root, folder, name))
                work.bytes += sum(file.bytes for file in files)
        return outputs, metrics

    def tables(self, root: Root, name: str) -> Iterator[pa.Table]:
        """The rows of each file."""
        files = (file for file in self.files[name] if isinstance(file, TableFile))
        return (pa.Table.from_batches([rows]) for file in files for rows in read_table(root, file))

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        of_cells = () if planning.mixture.sources[source].split is None else (CELL_SIZES,)
        for step in [*planning.plan.of_kind("map", source), *planning.plan.of_kind("tokenize", source)]:
            fold(planning, step, FOLDED[step.kind] + (of_cells if step.kind == "tokenize" else ()))


def fold(planning: Planning, step: Step, names: Sequence[str]) -> None:
    """Adds the steps that fold files of a step that has many tasks, level by level."""
    level, last, prefix, stop = 1, step, "", HASH_SPACE
    if step.is_committed:
        stop = compared_below(sum(step.totals.rows[name] for name in _OF_TOKENIZE[1:]))
    while last.tasks is not None and len(last.tasks) > MOST_FILES:
        own = _groups(last, prefix, names, stop) if last.is_committed else None
        label = "add up what was measured"
        last = planning.add(FoldTask, f"{step.id}.fold-{level}", label, own, source=step.source)
        level, prefix = level + 1, "folded."


def num_folded(num_files: float) -> float:
    """How many of so many files are left after all levels."""
    while num_files > MOST_FILES:
        num_files = math.ceil(num_files / MOST_FILES)
    return num_files


def grow_folds(growth: Growth, step: StepSize) -> None:
    """Adds the steps that fold files of a step of a run of another size."""
    level, tasks, names = 1, step.tasks, FOLDED.get(step.kind, ())
    files = sum((step.writes.get(name, Files()) for name in names), Files())
    while names and tasks > MOST_FILES:
        tasks, reads = math.ceil(tasks / MOST_FILES), [growth.whole(files)]
        files = files.grown(1 / MOST_FILES, tasks * len(names))
        about = {"id": f"{step.id}.fold-{level}", "work": FoldTask, "source": step.source, "tasks": tasks}
        growth.steps[f"{step.id}.fold-{level}"] = StepSize(**about, reads=reads, writes={"folded": files})
        level += 1


def compared_below(num_texts: int) -> int:
    """The hash below which so many texts are compared."""
    return HASH_SPACE if num_texts <= MOST_TEXTS else HASH_SPACE * MOST_TEXTS // num_texts


def _groups(step: Step, prefix: str, names: Sequence[str], stop: int) -> Iterator[dict[str, Any]]:
    for number, start in enumerate(range(0, len(step.records), MOST_FILES)):
        records = step.records[start : start + MOST_FILES]
        known = [record.metrics.of(FoldMetrics) if prefix else FoldMetrics(1, record.fingerprint) for record in records]
        folded, first = sum(own.folded for own in known), known[0].first
        yield {
            "number": number,
            "files": FilesOf(tuple(records), prefix, names),
            "folded": folded,
            "first": first,
            "stop": stop,
        }


@dataclass(frozen=True, slots=True, eq=False)  # it equals any mapping of the same files
class FilesOf(Mapping[str, tuple[OutputFile, ...]]):
    """The files of some records by name, of a kind with this prefix. They are decoded when they are asked for, and sent whole:
    the files of all tasks of a step take more memory than all else that a driver has."""

    records: tuple[Record, ...]
    prefix: str
    names: Sequence[str]

    def __getitem__(self, name: str) -> tuple[OutputFile, ...]:
        return tuple(file for record in self.records for file in record.outputs.get(self.prefix + name, ()))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def values(self) -> ValuesView[tuple[OutputFile, ...]]:
        return dict(self.items()).values()

    def items(self) -> ItemsView[str, tuple[OutputFile, ...]]:
        """As that of any mapping, with each record decoded once."""
        outputs, names = [record.outputs for record in self.records], {name: self.prefix + name for name in self.names}
        return {name: tuple(file for each in outputs for file in each.get(kind, ())) for name, kind in names.items()}.items()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)


def fewest(plan: Plan, step: Step, name: str, file_type: type[F]) -> tuple[F, ...]:
    """The fewest files that hold what the tasks of a step wrote of a kind: those of folds, and those of tasks that no fold
    knows, as of some files that were added."""
    places: dict[str, int] = {}
    for number, record in enumerate(step.records):
        places.setdefault(record.fingerprint, number)
    left, parts = set(range(len(step.records))), dict[int, tuple[F, ...]]()  # of each part, where its tasks begin
    for each in reversed([each for each in plan.of_kind("fold") if each.id.startswith(f"{step.id}.fold-")]):
        for content in (record.content for record in each.records):
            own = content.metrics.of(FoldMetrics)
            start = places.get(own.first, len(places))
            of_fold = range(start, start + own.folded)
            if left.issuperset(of_fold):
                left.difference_update(of_fold)
                parts[start] = typed(content.outputs.get(f"folded.{name}", ()), file_type)
    parts |= {number: step.records[number].of(name, file_type) for number in left}
    return tuple(file for start in sorted(parts) for file in parts[start])


def _measured(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    """Documents and bytes by bin, in the order in which bins were first found; a threshold that differs is null."""
    facts: dict[str, dict[str, Any]] = {}
    tables: list[pa.Table] = []
    for rows in task.tables(root, name):
        for stage, rules in json.loads((rows.schema.metadata or {}).get(RULES, b"{}")).items():
            for rule, about in rules.items():
                known = facts.setdefault(stage, {}).setdefault(rule, about)
                known["threshold"] = known["threshold"] if known["threshold"] == about["threshold"] else None
        tables.append(rows.replace_schema_metadata(None))
    if tables:
        rows = pa.concat_tables(tables)
        rows = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
        sums = [("documents", "sum"), ("bytes", "sum"), ("row", "min")]
        summed = rows.group_by(["stage", "rule", "part", "bin"], use_threads=False).aggregate(sums).sort_by("row_min")
        columns = [*summed.columns[:4], summed["documents_sum"], summed["bytes_sum"]]
        metadata = {RULES: json.dumps(facts, ensure_ascii=False, allow_nan=False)}
        whole = pa.Table.from_arrays(columns, schema=tables[0].schema.with_metadata(metadata))
        yield from _written(TableWriter(root, f"{folder}/{name}.arrow"), whole)


def _borderline(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    """The documents nearest to the threshold, on each side of a rule."""
    tables = [*task.tables(root, name)]
    if tables:
        rows = pa.concat_tables(tables)
        distance = pc.abs(pc.subtract(rows["value"], rows["threshold"]))
        keys = [(key, "ascending") for key in ("stage", "rule", "is_dropped", "distance", "key")]
        rows = rows.append_column("distance", distance).sort_by(keys).combine_chunks()
        group = [rows[key].dictionary_encode().combine_chunks().indices for key in ("stage", "rule", "is_dropped")]
        rank = np.arange(rows.num_rows) - first_of_group(*map(numbers, group))
        nearest = rows.drop_columns(["distance"]).filter(pa.array(rank < NEAREST))
        yield from _written(FactWriter(root, f"{folder}/{name}.parquet"), nearest)


def _findings(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    """Each entry that was found, once."""
    columns = ["stage", "list", "entry"]
    tables = [rows.select(columns) for rows in task.tables(root, name)]
    if tables:
        found = pa.concat_tables(tables).group_by(columns, use_threads=False).aggregate([])
        yield from _written(FactWriter(root, f"{folder}/{name}.parquet"), found)


def _survivors(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    samples: dict[str, ClusterSample] = {}
    writer = TableWriter(root, f"{folder}/{name}.arrow")
    for rows in task.tables(root, name):
        for batch in rows.to_batches():
            add_clusters(samples, batch, MOST_OF_TASK)
    for stage, sample in samples.items():
        writer.add(sample.rows(stage))
    yield from writer.finish()


def _words(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    from datapipe.tokens.word_counts import WordCounts

    words = WordCounts()
    for rows in task.tables(root, name):
        for batch in rows.to_batches():
            words.add(batch)
    yield from _written(TableWriter(root, f"{folder}/{name}.arrow"), words.total())


def _ids(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    """The union of the ids that occur, a bit each."""
    parts = [np.frombuffer(committed_bytes(root, file), np.uint8) for file in task.files[name]]
    if parts:
        used = np.bitwise_or.reduce(parts)
        with root.open_output(f"{folder}/{name}.bin") as stream:
            stream.write(used.tobytes())
        num_ids = int(np.unpackbits(used).sum())
        yield OutputFile(path=f"{folder}/{name}.bin", rows=num_ids, bytes=stream.num_bytes, checksum=stream.checksum)


def _sizes(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    """The bytes of each cell."""
    tables = [*task.tables(root, name)]
    if tables:
        rows = pa.concat_tables(tables)
        summed = rows.group_by(["cell"], use_threads=False).aggregate([("bytes", "sum")]).sort_by("cell")
        yield from _written(
            TableWriter(root, f"{folder}/{name}.arrow"), summed.rename_columns(rows.schema.names).cast(rows.schema)
        )


def _hashes(task: FoldTask, root: Root, folder: str, name: str) -> Iterator[OutputFile]:
    """The rows with the lowest hashes."""
    files = [file for file in task.files[name] if isinstance(file, ExchangeFile)]
    writers = TableWriters(root, folder, None)
    for rows in read_slices(root, files, (0,), (task.stop,), _HELD_BYTES):
        writers.add({name: rows})
    for written in writers.finish().values():
        yield from written


def _written(writer: TableWriter, rows: pa.Table) -> Iterable[TableFile]:
    for batch in rows.combine_chunks().to_batches(max_chunksize=1 << 16):
        writer.add(batch)
    return writer.finish()


_HELD_BYTES = 256 << 20
_FOLDS: Mapping[str, Callable[[FoldTask, Root, str, str], Iterator[OutputFile]]] = {
    "measured": _measured,
    "borderline": _borderline,
    "findings": _findings,
    "survivors": _survivors,
    "sample": _words,
    "used_ids": _ids,
    CELL_SIZES: _sizes,
    TRAINING_TEXTS: _hashes,
    HELD_OUT_TEXTS: _hashes,
}
