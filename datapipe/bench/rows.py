"""The rows of a bench: the time of each kind of work in one pass over the sample, in data-flow order. Pure.

records of a pass ─▶ work by name (`TaskMetrics.work`) ─▶ rows ─▶ medians ─▶ advice on the bottleneck
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pkgutil import iter_modules
from statistics import median

from datapipe.dataclass import dataclass, replace
from datapipe.metrics import total_by_name
from datapipe.quantities import rate_mb_per_s
from datapipe.records.outputs import Record
from datapipe.stage import segmentation
from datapipe.steps.kind import Plan, Step

OTHER = "other"
"""Time outside of any named work: opening and closing files, writing drops, joining batches."""

_SEGMENTATIONS = frozenset(module.name for module in iter_modules(segmentation.__path__))

_NAMED_KINDS = {
    "train tokenizer": "train",
    "load tokenizer": "load",
    "write parquet": "files",
    "write jsonl.zst": "files",
}
"""Kinds of work that are not the last word of its name, as in "write documents"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    name: str  # as in `datapipe report --full`
    # read, segmentation, stage, emit, exchange, reduce, decisions, apply, documents, facts, measure, sample,
    # train, load, tokenize, tokens, pack, shards, files or other
    kind: str
    uses: str = ""  # the stage, such as "filter.language"; empty for work of the engine itself
    seconds: float  # the median over passes
    bytes: int  # input: text for stages, decompressed input for reading, rows for exchanges and tokens
    # documents_in, documents_out: None for work that is not done document by document
    documents_in: int | None = None
    documents_out: int | None = None

    @property
    def mb_per_s(self) -> float | None:
        return rate_mb_per_s(self.bytes, self.seconds) if self.bytes else None

    @property
    def is_counted(self) -> bool:
        """Whether the time grows with the source. A tokenizer is trained once, on a sample of fixed size, and loaded once."""
        return self.kind not in ("train", "load")


def pass_rows(plan: Plan, uses: Mapping[str, str], emitting: Sequence[str]) -> list[Row]:
    """The rows of one pass. `uses`: the stage of each name. `emitting`: the global stages."""
    work = total_by_name(record.metrics.work for record in _records(plan))
    flow: dict[str, tuple[int, int]] = {}
    for step in plan.of_kind("map"):
        flow |= _flow(step, uses)
    rows = []
    for name, entry in work.items():
        documents_in, documents_out = flow.get(name, (entry.documents or None, None))
        rows.append(
            Row(
                name=name,
                kind=_kind(name, uses, emitting),
                uses=uses.get(name.partition(": ")[0], ""),
                seconds=entry.seconds,
                bytes=entry.bytes,
                documents_in=documents_in,
                documents_out=documents_out,
            )
        )
    records = [record for record in _records(plan) if record.step.rpartition("/")[2] not in ("train", "load")]
    named_s = sum(each.seconds for record in records for each in record.metrics.work.values())
    unnamed_s = max(0.0, sum(record.metrics.seconds for record in records) - named_s)
    return [*rows, Row(name=OTHER, kind="other", seconds=unnamed_s, bytes=0)]


def _records(plan: Plan) -> list[Record]:
    return list({record.fingerprint: record for step in plan.steps for record in step.records}.values())


def _kind(name: str, uses: Mapping[str, str], emitting: Sequence[str]) -> str:
    if name in uses:
        return "emit" if name in emitting else "stage"
    kind = _NAMED_KINDS.get(name, name.rpartition(" ")[2])
    if kind in _BY_KIND or kind in ("read", "train", "load"):
        return kind
    return "reduce" if ": " in name else "segmentation" if name in _SEGMENTATIONS else name


def _flow(step: Step, uses: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Documents in and out of each work of a map step that may drop some."""
    work = total_by_name(record.metrics.work for record in step.records)
    deciding = [name for name in work if name in uses or name.endswith(": apply")]
    documents = {name: entry.documents for name, entry in work.items()}
    flow = {name: (documents[name], documents.get(after, 0)) for name, after in pairwise([*deciding, "write documents"])}
    if "read" in work:
        flow["read"] = (sum(record.metrics.document_counts.read for record in step.records), work["read"].documents)
    return flow


def medians(passes: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """The rows of one pass with their median times over all passes. Rows of the passes differ only in time."""
    times = {
        row.name: median(other.seconds for rows in passes for other in rows if other.name == row.name) for row in passes[0]
    }
    return tuple(replace(row, seconds=times[row.name]) for row in passes[0])


_OWN_STAGE = "In a stage of your own, work on whole columns (NumPy, Arrow, a kernel), not document by document."
_ANY_STAGE = "Put cheaper filters that drop more before it, so that less text reaches it."

_BY_STAGE = {
    "filter.language": "Lower max_chars: the time grows with the characters read. " + _ANY_STAGE,
    "dedup.minhash": "The time grows with the permutations (bands × rows). " + _ANY_STAGE,
}

_BY_COMPRESSION = {
    "gzip": "gzip is slow to decompress: re-compress as zstd, or use Parquet. One worker reads an archive: use many archives.",
    "zstd": "Parquet reads faster than compressed JSON lines. One worker reads an archive: use many archives.",
    "": "Parquet reads faster than JSON lines. Opening many small files takes time, so join them.",
}

_BY_KIND = {
    "segmentation": "Recomputed after each stage that rewrites or drops documents: put few of those before its users.",
    "stage": _ANY_STAGE,
    "emit": _ANY_STAGE,
    "exchange": "Rows are sorted, compressed and written: drop documents earlier, or give the output a faster disk.",
    "reduce": "It grows with the rows that are compared: drop documents earlier, and copies with dedup.exact.",
    "decisions": "It grows with the documents that were dropped or cut: drop documents earlier.",
    "apply": "It grows with the documents and the decisions on them: drop documents earlier.",
    "documents": "Documents are compressed and written between steps: keep fewer columns, use fewer global stages.",
    "facts": "What `explore` shows of each document is written: keep fewer columns.",
    "measure": "Distributions of every rule are counted: drop documents earlier.",
    "sample": "The tokenizer's sample is drawn from all documents: an existing tokenizer (tokenizer.path) saves this.",
    "tokenize": "It grows with the kept text: drop more before it, or add cores; every core encodes at this rate.",
    "tokens": "Token rows are sorted, compressed and written: a faster disk under the output helps.",
    "pack": "A smaller pack.pool_documents packs faster, with a little more padding.",
    "shards": "shards.format: arrow writes faster than parquet, and a faster disk helps.",
    "files": "Keep fewer columns; documents.format: parquet is written faster than jsonl.zst.",
    "other": "Many small tasks have a fixed cost: raise execution.split_bytes.",
}
_ANY_WORK = "It grows with the documents that reach it: drop documents earlier."
_ONE_TASK = "These are fixed costs of one task: they do not grow with its text, and no setting lowers them."


def advice(row: Row, compressions: Collection[str], num_tasks: int) -> str:
    """How to relieve a bottleneck. `num_tasks` read the sample, from files of `compressions`."""
    if row.kind == "other" and num_tasks == 1:
        return _ONE_TASK
    if row.kind == "read":
        return next(text for name, text in _BY_COMPRESSION.items() if name in compressions)
    if ":" in row.uses and row.kind in ("stage", "emit"):
        return _OWN_STAGE
    of_kind = _BY_KIND.get(row.kind, _ANY_WORK)
    return _BY_STAGE.get(row.uses, of_kind) if row.kind in ("stage", "emit") else of_kind
