"""The rows of a bench: what each piece of work took in one pass over the sample, in the order the data takes. Pure.

records of a pass ─▶ work by name (`TaskMetrics.work`) ─▶ rows ─▶ medians ─▶ the bottleneck, and what relieves it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from datapipe.metrics import rate_mb_per_s, total_work
from datapipe.plan.compile import Plan, Step
from datapipe.plan.work import Record

OTHER = "other"
"""What no piece of work is charged with: files opened and closed, drops written, batches joined."""

_KINDS = {
    "read": "read",
    "read documents": "documents",
    "write documents": "documents",
    "sample": "sample",
    "train tokenizer": "train",
    "tokenize": "tokenize",
    "count tokens": "tokens",
    "write tokens": "tokens",
    "read tokens": "tokens",
    "pack": "pack",
    "write shards": "shards",
    OTHER: "other",
}
_GLOBAL_KINDS = ("exchange", "decisions", "apply")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One piece of work.

    Attributes:
        name: as `datapipe report` has it.
        kind: read, segmentation, stage, emit, exchange, reduce, decisions, apply, documents, sample, train, tokenize,
            tokens, pack, shards or other.
        uses: the stage as the mixture names it, "filter.language"; empty where it is the engine's own work.
        seconds: the median over passes.
        bytes: what went in: text for stages, decompressed input for reading, rows for exchanges and tokens.
        documents_in, documents_out: None where the work judges no documents.
    """

    name: str
    kind: str
    uses: str = ""
    seconds: float
    bytes: int
    documents_in: int | None = None
    documents_out: int | None = None

    @property
    def mb_per_s(self) -> float | None:
        return rate_mb_per_s(self.bytes, self.seconds) if self.bytes else None

    @property
    def is_counted(self) -> bool:
        """Whether the work grows with the source. A tokenizer is trained once, on a sample of fixed size."""
        return self.kind != "train"


def pass_rows(plan: Plan, uses: Mapping[str, str], emitting: Sequence[str]) -> list[Row]:
    """The rows of one pass.

    Args:
        plan: of one source, every step committed.
        uses: the stage that each name in the run stands for.
        emitting: names of the global stages.
    """
    work = total_work(record.metrics.work for record in _records(plan))
    flow: dict[str, tuple[int, int]] = {}
    for step in plan.of_kind("map"):
        flow |= _flow(step, uses)
    rows = []
    for name, one in work.items():
        came, went = flow.get(name, (one.documents or None, None))
        rows.append(
            Row(
                name=name,
                kind=_kind(name, uses, emitting),
                uses=uses.get(name.partition(": ")[0], ""),
                seconds=one.seconds,
                bytes=one.bytes,
                documents_in=came,
                documents_out=went,
            )
        )
    return [*rows, Row(name=OTHER, kind="other", seconds=_uncharged(plan), bytes=0)]


def _records(plan: Plan) -> list[Record]:
    """Every record once: two steps that do the same to the same share one."""
    return list({record.fingerprint: record for step in plan.steps for record in step.records}.values())


def _kind(name: str, uses: Mapping[str, str], emitting: Sequence[str]) -> str:
    if name in uses:
        return "emit" if name in emitting else "stage"
    of_global = next((kind for kind in _GLOBAL_KINDS if name.endswith(f": {kind}")), None)
    meets = "reduce" if name.partition(": ")[0] in emitting else None
    return of_global or meets or _KINDS.get(name, "segmentation")


def _flow(step: Step, uses: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Documents in and out of every piece of work of a map step that may lose some: what one keeps, the next one gets."""
    found = total_work(record.metrics.work for record in step.records)
    judging = [name for name in found if name in uses or name.endswith(": apply")]
    documents = {name: one.documents for name, one in found.items()}
    flow = {name: (documents[name], documents.get(after, 0)) for name, after in pairwise([*judging, "write documents"])}
    if "read" in found:
        flow["read"] = (sum(record.metrics.document_counts.read for record in step.records), found["read"].documents)
    return flow


def _uncharged(plan: Plan) -> float:
    """Seconds of tasks beyond the work they named."""
    records = [record for record in _records(plan) if record.step.rpartition("/")[2] not in ("train", "load")]
    named = sum(work.seconds for record in records for work in record.metrics.work.values())
    return max(0.0, sum(record.metrics.seconds for record in records) - named)


def medians(passes: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """One list of rows, each with its median time. All passes did the same work, so their rows differ in nothing else."""
    times = {row.name: median(one.seconds for rows in passes for one in rows if one.name == row.name) for row in passes[0]}
    return tuple(replace(row, seconds=times[row.name]) for row in passes[0])


def bottleneck(rows: Sequence[Row]) -> Row:
    """The row that takes most of the time, of those that grow with the source."""
    return max((row for row in rows if row.is_counted), key=lambda row: row.seconds)


# ------------------------------------------------------------------------------------------------ what relieves it

_OWN_STAGE = "A stage of your own: work on whole columns (NumPy, Arrow, a kernel), not on one document after another."
_ANY_STAGE = "Let cheaper filters that drop more go before it, so that less text reaches it."

_BY_STAGE = {
    "filter.language": "Lower max_chars: the time grows with the characters read. " + _ANY_STAGE,
    "dedup.minhash": "The time grows with the permutations (bands × rows). " + _ANY_STAGE,
}

_BY_COMPRESSION = {
    "gzip": "gzip is slow to unpack: re-compress as zstd, or write Parquet. Archives are read by one worker each: have many.",
    "zstd": "Parquet reads faster than compressed JSON lines. Archives are read by one worker each: have many.",
    "": "Parquet reads faster than JSON lines; many small files cost their opening, so join them.",
}

_BY_KIND = {
    "segmentation": "Found anew after a stage that rewrites or drops documents: have few of those before the stages.",
    "stage": _ANY_STAGE,
    "emit": _ANY_STAGE,
    "exchange": "Rows are sorted, compressed and written: drop documents earlier, or give the output a faster disk.",
    "reduce": "It grows with the rows that meet: drop documents earlier, and copies by dedup.exact.",
    "decisions": "It grows with the documents that were dropped or cut: drop documents earlier.",
    "apply": "It grows with the documents and the decisions on them: drop documents earlier.",
    "documents": "Documents are compressed and written between steps: keep fewer columns, have fewer global stages.",
    "sample": "The tokenizer's sample is drawn from every document: give a tokenizer (tokenizer.path) to save it.",
    "tokenize": "It grows with the text that is kept: drop more before it, or add cores; every core encodes at this rate.",
    "tokens": "Token rows are sorted, compressed and written: a faster disk under the output helps.",
    "pack": "A smaller pack.pool_documents packs faster, with a little more padding.",
    "shards": "Written as they are: shards.format arrow is faster than parquet, and a faster disk helps.",
    "other": "Many small tasks: raise execution.split_bytes.",
}


def advice(row: Row, compressions: Sequence[str]) -> str:
    """What would relieve a bottleneck.

    Args:
        compressions: of the source's files: "gzip", "zstd" or "" for none.
    """
    if row.kind == "read":
        return next(text for name, text in _BY_COMPRESSION.items() if name in compressions)
    if ":" in row.uses and row.kind in ("stage", "emit"):
        return _OWN_STAGE
    return _BY_STAGE.get(row.uses, _BY_KIND[row.kind]) if row.kind in ("stage", "emit") else _BY_KIND[row.kind]
