"""Tasks whose bucket is full, of every kind that reads one: rows made by whole arrays, by three to a group.

unit  ─▶  rows of the tables that a task reads  ─▶  exchange files of several runs  ─▶  one task over all of their hashes
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE, make_keys
from datapipe.exchange.files import ExchangeWriter
from datapipe.exchange.ranges import HASH_SPACE
from datapipe.records.outputs import ExchangeFile
from datapipe.rng import shuffle_hash
from datapipe.shards import schemas
from datapipe.stage.clusters import EDGE_SCHEMA, NARROW, WIDE
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS, RANK, key_hash, new_bit
from datapipe.steps.kind import Task
from datapipe.steps.merge import MergeTask
from datapipe.steps.pack import PackTask
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.reduce import GatherTask, ReduceTask
from datapipe.storage.root import Root
from stages.dedup._spans import CANDIDATES
from stages.dedup._verified import LIKENESS, PAIRS
from stages.dedup.exact import Exact
from stages.dedup.lines import Lines
from stages.dedup.minhash import Minhash
from stages.dedup.substring import Substring
from tests.support import scale_corpus
from tests.support.global_stages import batch_of, opened

_UNITS, _NUM_FILES, _RUN_BYTES = 8_192, 4, 16 << 20

Chunk = Callable[[int, int], Mapping[str, pa.RecordBatch]]
"""The rows of units [start, stop), by table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A kind of task, and how its rows are made. `share`: of a bucket that the task reads at most."""

    name: str
    chunk: Chunk
    task: Callable[[Mapping[str, tuple[ExchangeFile, ...]], int], Task]
    share: float = 1

    def write(self, root: Root, bucket_bytes: int) -> dict[str, tuple[ExchangeFile, ...]]:
        """Files that fill a bucket of this size."""
        writers: dict[str, list[ExchangeWriter]] = {}
        written = start = 0
        while written < self.share * bucket_bytes:
            for table, rows in self.chunk(start, start + _UNITS).items():
                of_table = writers.setdefault(table, [_writer(root, table, number, rows) for number in range(_NUM_FILES)])
                of_table[start // _UNITS % _NUM_FILES].add(rows)
                written += rows.nbytes
            start += _UNITS
        return {table: tuple(writer.finish() for writer in of_table) for table, of_table in writers.items()}


def _writer(root: Root, table: str, number: int, rows: pa.RecordBatch) -> ExchangeWriter:
    return ExchangeWriter(root, f"{table}-{number}.exchange", rows.schema, _RUN_BYTES)


# ---------------------------------------------------------------------------------------------------- rows


def _keys(numbers: np.ndarray) -> pa.Array:
    return make_keys(scale_corpus.mixed(numbers % np.uint64(997)), numbers)


def _rows(schema: pa.Schema, numbers: np.ndarray, hashes: np.ndarray | None = None) -> pa.RecordBatch:
    """Rows of any table: three to a hash, one key each; bytes are random."""
    groups = numbers // np.uint64(3)
    spans = scale_corpus.mixed(numbers // np.uint64(2) + np.uint64(1 << 40))
    mixed = scale_corpus.mixed(groups + np.uint64(1))
    values: dict[str, Any] = {
        "hash": mixed if hashes is None else hashes,
        "digest": mixed,
        "check": mixed,
        "span": spans,
        "gram": spans,
        "piece": np.zeros(len(numbers)),
        "trims": np.zeros(len(numbers)),
        "start": np.zeros(len(numbers)),
        "stop": np.full(len(numbers), 300),
        "size": np.full(len(numbers), 300),
        "differing": np.full(len(numbers), 9),
        "value": np.ones(len(numbers)),
    }
    arrays: list[pa.Array] = []
    for field in schema:
        if field.name in (RANK, "other_rank"):
            kind = field.type.to_pandas_dtype()
            arrays.append(pa.array(np.full(len(numbers), new_bit(kind), kind)))
        elif field.type == KEY_TYPE:
            arrays.append(_keys(numbers if field.name == "key" else groups * np.uint64(3)))
        elif pa.types.is_fixed_size_binary(field.type):
            width = field.type.byte_width
            data = np.random.default_rng(int(numbers[0])).integers(0, 256, (len(numbers), width), np.uint8)
            arrays.append(pa.Array.from_buffers(field.type, len(numbers), [None, pa.py_buffer(data)]))
        elif pa.types.is_string(field.type):
            arrays.append(pa.array(["repeated"] * len(numbers)))
        else:
            arrays.append(pa.array(values[field.name].astype(field.type.to_pandas_dtype())))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numbers(start: int, stop: int) -> np.ndarray:
    return np.arange(start, stop, dtype=np.uint64)


def _of_one_table(table: str, schema: pa.Schema) -> Chunk:
    """Rows that share hashes by three."""
    return lambda start, stop: {table: _rows(schema, _numbers(start, stop))}


def _final(table: str) -> Chunk:
    """Decisions: their hash is the first half of the key."""
    schema = FINAL_SCHEMAS[table]

    def chunk(start: int, stop: int) -> dict[str, pa.RecordBatch]:
        numbers = _numbers(start, stop)
        return {table: _rows(schema, numbers, columns.key_halves(_keys(numbers))[0])}

    return chunk


def _by_document(**tables: pa.Schema) -> Chunk:
    """Rows of several tables about the same documents, one row each."""

    def chunk(start: int, stop: int) -> dict[str, pa.RecordBatch]:
        numbers = _numbers(start, stop)
        hashes = key_hash(_keys(numbers))
        return {table: _rows(schema, numbers, hashes) for table, schema in tables.items()}

    return chunk


def _edges(table: str) -> Chunk:
    """Edges from each document of a family to its first one; in `wide` from both ends."""

    def chunk(start: int, stop: int) -> dict[str, pa.RecordBatch]:
        numbers = _numbers(start, stop)
        rows = _rows(EDGE_SCHEMA, numbers[numbers % np.uint64(3) > 0])
        key, other = (rows.column(name) for name in ("key", "other"))
        ends = [(key, other), (other, key)] if table == WIDE else [(key, other)]
        ranks = rows.column(RANK)
        return {
            table: pa.concat_batches(
                [
                    pa.RecordBatch.from_arrays([pa.array(key_hash(one)), ranks, one, ranks, two], schema=EDGE_SCHEMA)
                    for one, two in ends
                ]
            )
        }

    return chunk


def _passages(stage: Global) -> Chunk:
    """Documents of which every selected gram has to be compared: the most windows that there can be."""

    def chunk(start: int, stop: int) -> dict[str, pa.RecordBatch]:
        numbers = _numbers(start, stop)[::16]
        texts = scale_corpus.texts(numbers, 1 << 30).to_pylist()
        emitted = stage.emit(batch_of(texts, first=start))
        anchors = emitted["anchors"]
        hashes = pa.array(key_hash(anchors.column("key")))
        arrays = [hashes, *(anchors.column(name) for name in ("rank", "key", "piece", "start", "size", "hash"))]
        return {"candidates": pa.RecordBatch.from_arrays(arrays, schema=CANDIDATES), "passages": emitted["passages"]}

    return chunk


def _documents(mean_tokens: int) -> Chunk:
    """Token rows of documents of `mean_tokens` on average."""
    schema = schemas.tokens(pa.uint16())

    def chunk(start: int, stop: int) -> dict[str, pa.RecordBatch]:
        numbers, rng = _numbers(start, stop), np.random.default_rng(start)
        offsets = np.concatenate([[0], np.cumsum(2 + rng.exponential(mean_tokens, len(numbers)).astype(np.int64))])
        ids = (rng.zipf(1.3, int(offsets[-1])) % 50_000 + 1).astype(np.uint16)
        ids[offsets[1:] - 1] = 0
        keys = _keys(numbers)
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids)).cast(schema.field("tokens").type)
        hashes = pa.array(shuffle_hash(columns.key_halves(keys), 0))
        return {"train": pa.record_batch([hashes, keys, lists], schema=schema)}

    return chunk


# ---------------------------------------------------------------------------------------------------- tasks


def cases() -> Iterator[Case]:
    """Every kind of task that reads a bucket."""
    for method in ("best_fit", "concat", "buckets"):
        yield Case(name=f"pack, {method}", chunk=_documents(400), task=_packing(method))
    yield Case(name="merge", chunk=_of_one_table("texts", Exact().emits()["texts"]), task=_merging)
    for table in FINAL_SCHEMAS:
        yield Case(name=f"gather, {table}", chunk=_final(table), task=_gathering)
    minhash, substring = opened(Minhash()), opened(Substring())
    signatures, halves = minhash.emits()["signatures"], minhash.exchanges()[1].outputs["halves"]
    yield _reduced(Exact(size_column="copies"), "match", _of_one_table("texts", Exact().emits()["texts"]))
    yield _reduced(Lines(), "match", _of_one_table("units", Lines().emits()["units"]))
    yield _reduced(minhash, "match-bands", _of_one_table("bands", minhash.emits()["bands"]))
    yield _reduced(minhash, "fetch-signatures", _by_document(pairs=PAIRS, signatures=signatures))
    yield _reduced(minhash, "compare", _by_document(halves=halves, signatures=signatures))
    yield _reduced(minhash, "cluster", _edges(WIDE), "cluster, large-star")
    yield _reduced(minhash, "cluster", _edges(NARROW), "cluster, small-star")
    yield _reduced(minhash, "cluster", _edges(WIDE), "cluster, at once", at_once=True)
    yield _reduced(minhash, "decide", _by_document(**{NARROW: EDGE_SCHEMA, "likeness": LIKENESS}))
    yield _reduced(substring, "match", _of_one_table("anchors", substring.emits()["anchors"]))
    yield _reduced(substring, "extend", _passages(substring))
    verify = next(exchange for exchange in substring.exchanges() if exchange.name == "extend").outputs["windows"]
    yield _reduced(substring, "verify", _of_one_table("windows", verify))


def _bound(stage: Global) -> BoundStage:
    return BoundStage(name=f"dedup.{type(stage).__name__.lower()}", stage=stage, digest=repr(stage))


def _reduced(stage: Global, exchange: str, chunk: Chunk, label: str = "", at_once: bool = False) -> Case:
    bound = _bound(stage)
    (inputs,) = (declared.inputs for declared in stage.exchanges() if declared.name == exchange)

    def task(tables: Mapping[str, tuple[ExchangeFile, ...]], bucket_bytes: int) -> ReduceTask:
        read = {name: tables.get(name, ()) for name in inputs}
        return ReduceTask(
            step=f"{bound.name}/{exchange}", fingerprint="reduce", seed=0, stage=bound, exchange=exchange, tables=read, start=0,
            stop=HASH_SPACE, limit_bytes=bucket_bytes + bucket_bytes // 4, at_once=at_once,
        )  # fmt: skip

    share = 0.5 if at_once else 1  # `hash_range.fits_one_call`
    return Case(name=f"{bound.name}, {label or exchange}", chunk=chunk, task=task, share=share)


def _merging(tables: Mapping[str, tuple[ExchangeFile, ...]], bucket_bytes: int) -> MergeTask:
    return MergeTask(
        step="merge", fingerprint="merge", seed=0, tables={"texts": tables["texts"]}, start=0,
        stop=HASH_SPACE, limit_bytes=bucket_bytes + bucket_bytes // 4,
    )  # fmt: skip


def _gathering(tables: Mapping[str, tuple[ExchangeFile, ...]], bucket_bytes: int) -> GatherTask:
    return GatherTask(
        step="gather", fingerprint="gather", seed=0, stage=_bound(Exact()), tables=tables, start=0, stop=HASH_SPACE,
        limit_bytes=bucket_bytes,
    )  # fmt: skip


def _packing(method: Any) -> Callable[[Mapping[str, tuple[ExchangeFile, ...]], int], Task]:
    def task(tables: Mapping[str, tuple[ExchangeFile, ...]], bucket_bytes: int) -> PackTask:
        return PackTask(
            step="web/pack", fingerprint=method, source="web", seed=0, files=tables["train"], start=0, stop=HASH_SPACE,
            bucket=0, split="train", stratum=None, tokenizer_fingerprint="none", vocab_size=50_001, eos_id=0,
            sequence_length=2048, method=method, pool_documents=10_000, max_padding=0.02, min_piece=1, format="arrow",
            target_bytes=bucket_bytes,
        )  # fmt: skip

    return task
