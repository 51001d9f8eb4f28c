"""The pack task: one hash range of a source's token rows becomes shards.

    rows of a range, in sorted slices ─▶ pools of documents ─▶ best fit, concat or buckets ─▶ rows of S in keyed order ─▶ shards
                                                                                          └─▶ which document is where ─▶ packed

The sort by keyed hash is the global shuffle. Best fit leaves the rows of a pool sorted by length, so they are put in the
order of a keyed hash, as are the rows of each bucket; concat keeps the order of the documents. The rows of each bucket go to
separate shards, named and marked with the length of their packed documents. Each stratum has separate tasks, and its
shards are named and marked with its number.

Of a source that is split, a range holds neighbouring small cells, or a part of a large one. The rows of a cell are packed by
themselves, and so are, within it, those that an epoch has once more than the others. Shards list their runs of such rows.

Memory: one range, about `target_bytes`, a pool beside it, and a few MiB for every open shard. With concat and buckets the pool
is the range; the rows of the range are released as they are copied to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from datapipe.cell_names import chosen_values
from datapipe.dataclass import dataclass, field, replace
from datapipe.exchange.ranges import HASH_SPACE, read_slices
from datapipe.exchange.tables import FactWriter, check_committed, packed_facts, shard_of_task
from datapipe.metrics import Packing, TaskMetrics, add_to
from datapipe.records.names import PUBLISH
from datapipe.records.outputs import ExchangeFile, Outputs, ShardFile, Tables
from datapipe.records.versions import PARQUET
from datapipe.rng import mix64, seed_for
from datapipe.shards import schemas
from datapipe.shards.shard_table import ShardGroup, shard_path, with_digest
from datapipe.shards.writer import BATCH_BYTES, CellOfRows, ShardWriter, shard_schema
from datapipe.steps.budget import budget_shares
from datapipe.steps.cells import CELL_SHIFT, again_borders, borders_within, cell_ranges, ends_within
from datapipe.steps.costs import StepCost, Texts, seconds_of
from datapipe.steps.grid import CellSizesMetrics, names_of
from datapipe.steps.growth import Files, Growth, Reads, StepSize
from datapipe.steps.kind import LEFT_OUT, WHERE_GIVEN, Fields, Plan, Planning, Step, Task, checksums, entering
from datapipe.steps.merge import grow_merged, hash_ranges, merged, num_ranges, overlapping, row_bytes
from datapipe.steps.pools import Pool, pools
from datapipe.steps.stops import found_stops
from datapipe.steps.tokenize import training_parts
from datapipe.storage.root import Root
from datapipe.tokens.packing import Method, PackedRows, assemble, count, pack

POOLED = ("best_fit", "bos_aligned")
"""The methods that pack `pool_documents` at a time, and keep the limit of padding."""

_Part = tuple[Literal["train", "validation"], int | None]
"""Split and stratum: rows that are packed together."""


@dataclass(slots=True)
class PackMetrics:
    """The numbers of a pack task: how it packed, by sequence length."""

    packing: dict[int, Packing] = field(default_factory=dict)
    cell_parts: int = 0  # parts of cells that were packed by themselves, and may end in a short row each

    def add(self, other: Self) -> None:
        self.cell_parts += other.cell_parts
        for length, packing in other.packing.items():
            add_to(self.packing, length, packing)

    @property
    def sequences(self) -> int:
        return sum(packing.rows for packing in self.packing.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class PackTask(Task):
    """Packs one hash range of a source's token rows, of one split and stratum, into shards."""

    kind, version, of_tokens = "pack", 1, True
    mb_per_s, metrics_type = 150.0, PackMetrics
    options = (
        *("seed", "pack", "shards"),
        *("sources.SOURCE.strata.by", "sources.SOURCE.strata.bounds", "sources.SOURCE.split.by", "sources.SOURCE.split.repeat"),
        *("sources.SOURCE.max_tokens", "sources.SOURCE.split.max_tokens"),
    )

    files: tuple[ExchangeFile, ...] = field(metadata=entering(checksums))
    start: int
    stop: int
    bucket: int  # number of the range among those of its split and stratum; part of the names of its shards
    split: Literal["train", "validation"]
    stratum: int | None
    tokenizer_fingerprint: str
    vocab_size: int
    eos_id: int
    sequence_length: int
    method: Method
    pool_documents: int
    max_padding: float  # share of padding above which best fit splits or cuts documents
    min_piece: int
    format: Literal["arrow", "parquet"]
    target_bytes: int
    # of its cells that are repeated a broken number of times, the hash below which rows are drawn once more (`again_borders`);
    # None where there are no cells
    again: tuple[int, ...] | None = field(default=None, metadata=WHERE_GIVEN)
    # of its cells that are limited, each with the hash within it from which on rows are beyond a budget (`ends_within`)
    ends: tuple[tuple[int, int], ...] = field(default=(), metadata=WHERE_GIVEN)
    # where the shards are published: below this folder, as this part of the source
    folder: str = field(default="", metadata=LEFT_OUT)
    part: int | None = field(default=None, metadata=LEFT_OUT)

    @property
    def input_bytes(self) -> float:
        return sum(file.bytes for file in self.files) * (self.stop - self.start) / HASH_SPACE

    @property
    def of_shards(self) -> dict[str, Any]:
        hashes = (self.start, self.stop) if self.again is None else None
        return {"source": self.source, "split": self.split, "stratum": self.stratum, "hashes": hashes}

    @property
    def libraries_used(self) -> tuple[str, ...]:
        return (PARQUET if self.format == "parquet" else "pyarrow",)

    def noted(self) -> Task:
        return replace(self, files=(), again=self.again and (), ends=())  # publishing asks for the part that it packed

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        metrics = TaskMetrics(own=PackMetrics())
        writers = _Writers(self, root, folder)
        size = self.pool_documents if self.method in POOLED else None
        num_docs, last = 0, None
        try:
            read = read_slices(root, self.files, (self.start,), (self.stop,))
            slices = metrics.timed_each("read tokens", read, lambda rows: (rows.nbytes, rows.num_rows))
            for number, (cell, pool) in enumerate(pools(slices, size, self.again, dict(self.ends))):
                num_docs += pool.num_docs
                metrics.of(PackMetrics).cell_parts += cell != last
                last = cell
                _write_pool(self, pool, number, cell, writers, metrics)
            with metrics.timed("write shards", num_docs=num_docs):
                shards = writers.finish()
            with metrics.timed("write facts"):
                packed = writers.facts.finish()
            with metrics.timed("publish shards", sum(shard.bytes for shard in shards)):
                self._publish(root, folder, shards)
        except BaseException:
            writers.abort()
            raise
        return {"shards": shards, "packed": packed}, metrics

    def _publish(self, root: Root, folder: str, shards: Iterable[ShardFile]) -> None:
        """Reads the shards back and gives them the names that they have in a snapshot, which have the digest of the content:
        so it does no harm where the attempt is not committed, and another one does the same."""
        for number, shard in enumerate(shards):
            check_committed(root, shard)
            staging = f"{PUBLISH}/{folder.rpartition('/')[2]}-{number:06d}"
            root.take(root, shard.path, self.published(shard), staging)

    def published(self, shard: ShardFile) -> str:
        """The path of a shard in snapshots."""
        return with_digest(shard_path(self.folder, self.source, self.part, shard.path), shard.checksum)

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        tokenized, strata = planning.known[f"{source}/tokenize"], planning.mixture.sources[source].strata
        split, sizes, again = planning.mixture.sources[source].split, (), None
        is_ready = planning.plan.tokenizer is not None and tokenized.is_committed
        if split is not None and (added_up := planning.known[f"{source}/cell-sizes"]).is_committed:
            sizes = added_up.records[0].metrics.of(CellSizesMetrics).bytes
            again = again_borders(chosen_values(split.repeat, names_of(planning.plan, source), Fraction(1)))
        is_ready = is_ready and (split is None or again is not None)
        parts: dict[str, _Part] = {
            **{table: ("train", stratum) for stratum, table in training_parts(strata and strata.bounds).items()},
            "validation": ("validation", None),
        }
        ranges = rows = None
        found, ends = found_stops(planning, source), dict[int, int]()
        if is_ready and found is not None:
            whole = HASH_SPACE if split is None else 1 << CELL_SHIFT
            stop = whole if split is not None and split.max_tokens else found.get(0, whole)
            if split is not None:
                ends = found if split.max_tokens else dict.fromkeys(range(len(sizes)), stop) if found else {}
            stops = {} if split is not None else {table: stop for table, part in parts.items() if part[0] == "train"}
            tables = {table: tokenized.outputs(table, ExchangeFile) for table in parts}
            target_bytes = planning.mixture.shards.target_bytes
            ranges = {
                table: hash_ranges(row_bytes({table: files}), target_bytes, stops.get(table, HASH_SPACE))
                for table, files in tables.items()
            }
            if split is not None:
                ranges["train"] = cell_ranges(sizes, target_bytes, stop)
            num_buckets = {table: len(of_table) for table, of_table in ranges.items()}
            bucket_bytes, uneven = _merged_bytes(planning.bucket_bytes), None if split is None else {"train": ranges["train"]}
            common = {"uses": cls.kind, "source": source, "ranges": uneven, "stops": stops}
            rows = merged(planning, f"{source}/pack", "merge token rows", tables, num_buckets, bucket_bytes, **common)
        for length in planning.mixture.pack.sequence_length:
            of_cells = None if again is None else (again, ends)
            tasks = None if ranges is None or rows is None else _tasks(parts, rows, ranges, of_cells)
            cls._plan_length(planning, source, length, tasks)

    @classmethod
    def _plan_length(cls, planning: Planning, source: str, sequence_length: int, tasks: Iterable[Fields] | None) -> None:
        """Packs rows of one length: `web/pack` for the first, which the output itself holds, `web/pack-8192` for another."""
        pack, tokenizer = planning.mixture.pack, planning.plan.tokenizer
        is_first = sequence_length == pack.sequence_length[0]
        step_id = f"{source}/pack" + ("" if is_first else f"-{sequence_length}")
        label = f"pack into {'BOS-aligned ' if pack.bos_aligned else ''}rows of {sequence_length}"
        if tokenizer is None or tasks is None:
            planning.add(cls, step_id, label, None, source=source)
            return
        planning.add(
            cls,
            step_id,
            label,
            tasks,
            ["pack"],
            source=source,
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
            sequence_length=sequence_length,
            folder="" if is_first else f"length-{sequence_length}/",
            part=planning.request.part,
            method=pack.layout,
            **pack.model_dump(exclude={"sequence_length", "method", "bos_aligned"}),
            **planning.mixture.shards.model_dump(),
        )

    @classmethod
    def cost(cls, plan: Plan, step: Step, texts: Texts) -> Iterator[StepCost]:
        text = texts.packed[step.source]
        yield StepCost(text * texts.token_bytes, seconds_of(text, cls.mb_per_s))

    @classmethod
    def grow(cls, growth: Growth, step: StepSize) -> None:
        """As many tasks as there are ranges in the parts of the source. Rows are merged once for all lengths."""
        strata, tables = growth.mixture.sources[step.source].strata, growth.tables.get(f"{step.source}/pack")
        written = growth.steps[f"{step.source}/tokenize"].writes
        names = [*training_parts(strata and strata.bounds).values(), "validation"]
        target_bytes = growth.mixture.shards.target_bytes
        share_before, share = budget_shares(growth, step.source)
        rows = {name: written.get(name, Files()).part(1.0 if name == "validation" else share) for name in names}
        ranges = {name: num_ranges(files.row_bytes, target_bytes) for name, files in rows.items()}
        if tables is None:
            tables = grow_merged(growth, step, rows, ranges, _merged_bytes(growth.bucket_bytes))
            growth.tables[f"{step.source}/pack"] = tables
        reads = (Reads.by_range(tables[name], ranges[name]) for name in names)
        growth.add(step, sum(ranges.values()), *reads, factor=growth.sources[step.source].factor * share / share_before)


def _merged_bytes(bucket_bytes: int) -> int:
    """Of token rows in a merge task: they take half as much again as their ids, at most."""
    return max(1, bucket_bytes * 2 // 3)


def _tasks(
    parts: Mapping[str, _Part],
    rows: Tables,
    ranges: Mapping[str, list[tuple[int, int]]],
    cells: tuple[Sequence[int], Mapping[int, int]] | None,
) -> Iterator[Fields]:
    """One task per hash range of each part, which is about one shard, but for those beyond the budget of a cell. `cells`:
    `again` and `ends` of all cells; None where there are none."""
    for table, (split, stratum) in parts.items():
        of_part = {"split": split, "stratum": stratum}
        files = overlapping({table: rows[table]}, ranges[table])
        for bucket, ((start, stop), of_range) in enumerate(zip(ranges[table], files)):
            of_cells: Fields = {}
            if cells is not None and split == "train":
                ends = ends_within(cells[1], start, stop)
                if ends is None:
                    continue
                of_cells = {"again": borders_within(cells[0], start, stop), "ends": ends}
            yield {**of_part, **of_cells, "files": of_range[table], "start": start, "stop": stop, "bucket": bucket}


def _write_pool(
    task: PackTask, pool: Pool, number: int, cell: CellOfRows | None, writers: _Writers, metrics: TaskMetrics
) -> None:
    with metrics.timed("pack", pool.num_bytes, pool.num_docs):
        lengths = np.diff(pool.offsets)
        packed = pack(lengths, task.sequence_length, task.method, task.min_piece, task.max_padding)
        metrics.of(PackMetrics).packing.setdefault(task.sequence_length, Packing()).add(
            count(packed, lengths, task.sequence_length)
        )
    rows_per_batch = max(1, BATCH_BYTES // (task.sequence_length * pool.ids.itemsize))
    for piece_length, order in _groups(task, packed, number):
        for first in range(0, len(order), rows_per_batch):
            with metrics.timed("pack"):
                part = order[first : first + rows_per_batch]
                documents = (pool.ids, pool.offsets, pool.keys, task.eos_id, task.sequence_length, pool.unlearned)
                batch = assemble(packed, part, *documents)
            writers.append(piece_length, cell, batch, metrics)


def _groups(task: PackTask, packed: PackedRows, number: int) -> Iterator[tuple[int | None, np.ndarray]]:
    """Rows of the same shards in the order they are written, with the length of their packed documents where it is one."""
    rows = np.arange(packed.num_rows, dtype=np.int64)
    if task.method == "concat":
        yield None, rows
    elif task.method in POOLED:
        stratum = () if task.stratum is None else ("stratum", task.stratum)
        yield None, _keyed(rows, seed_for(task.seed, "pack", task.source, task.split, *stratum, task.start, number))
    else:
        bucket = packed.piece_length[packed.row_offsets[:-1]]  # (num_rows,) length of a row's packed documents
        for piece_length in np.unique(bucket)[::-1].tolist():
            of_cell = () if task.again is None else ("pool", number)
            seed = seed_for(task.seed, "pack", task.source, task.split, task.start, *of_cell, "pieces", piece_length)
            yield piece_length, _keyed(rows[bucket == piece_length], seed)


def _keyed(rows: np.ndarray, seed: int) -> np.ndarray:
    """Rows (n,) int64 in the order of a keyed hash."""
    return rows[np.argsort(mix64(mix64(rows.astype(np.uint64)) ^ np.uint64(seed)), kind="stable")]


class _Writers:
    """The shard writers of one task: one for each length of packed documents with `buckets`, else one.
    `facts`: which documents are in which rows."""

    def __init__(self, task: PackTask, root: Root, folder: str) -> None:
        self._task, self._root, self._folder = task, root, folder
        self._open: dict[int | None, ShardWriter] = {}
        self.facts = FactWriter(root, f"{folder}/packed.parquet", source=task.source, split=task.split)

    def append(self, piece_length: int | None, cell: CellOfRows | None, batch: pa.RecordBatch, metrics: TaskMetrics) -> None:
        writer = self._of(piece_length, has_mask=schemas.UNLEARNED in batch.schema.names)
        with metrics.timed("write facts") as work:
            paths, rows = writer.next_rows(batch.num_rows)
            facts = packed_facts(batch, [shard_of_task(self._task.fingerprint, path) for path in paths], rows)
            work.bytes = facts.nbytes
            self.facts.add(facts)
        with metrics.timed("write shards", batch.nbytes):
            writer.append(batch, cell)

    def _of(self, piece_length: int | None, *, has_mask: bool) -> ShardWriter:
        if piece_length not in self._open:
            task, group = self._task, ShardGroup(piece_length, self._task.stratum)
            id_type = schemas.token_type(task.vocab_size)
            identity = (task.sequence_length, task.tokenizer_fingerprint, task.source, group)
            schema = shard_schema(id_type, *identity, has_mask=has_mask)
            prefix = f"{self._folder}/{group.shard_name(task.split, task.bucket)}"
            self._open[piece_length] = ShardWriter(self._root, prefix, task.format, schema, task.target_bytes)
        return self._open[piece_length]

    def finish(self) -> tuple[ShardFile, ...]:
        """Every shard, in the order in which the writers were opened."""
        return tuple(shard for writer in self._open.values() for shard in writer.finish())

    def abort(self) -> None:
        for writer in self._open.values():
            writer.abort()
