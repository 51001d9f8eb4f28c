"""Fingerprints of tasks: every field enters that the outputs depend on, and no other."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest

from datapipe.plan.outputs import ExchangeFile, TableFile, TokenizerFile
from datapipe.plan.ranking import NarrowTask, RankTask
from datapipe.plan.work import (
    BoundStage,
    Decisions,
    GatherTask,
    InputSplit,
    MapTask,
    MergeTask,
    PackTask,
    ReduceTask,
    SampleTask,
    Task,
    TokenizeTask,
    TrainTask,
    fingerprinted,
)
from datapipe.stage.ranking import Interval, KeptShare, Pair
from datapipe.stage.reader import FieldNames, InputFile, Split
from stages.dedup.exact import Exact
from stages.filter.length import Length
from stages.read.jsonl import Jsonl


def _split(path: str = "a.jsonl") -> InputSplit:
    file = InputFile(url=f"/data/{path}", path=path, num_bytes=10, stamp="7", compression=None)
    return InputSplit(split=Split(file=file), reader=Jsonl(), reader_digest="reader")


def _rows(checksum: str = "x", url: str = "") -> ExchangeFile:
    return ExchangeFile(path=checksum, rows=1, bytes=1, checksum=checksum, row_bytes=1, url=url)


def _table(checksum: str = "x") -> TableFile:
    return TableFile(path=checksum, rows=1, bytes=1, checksum=checksum, row_bytes=1)


def _tokenizer(checksum: str = "x") -> TokenizerFile:
    known: dict[str, Any] = {"vocab_size": 300, "eos_id": 0, "eos_token": "<e>", "fingerprint": "f", "fallback_reason": ""}
    return TokenizerFile(path="tokenizer.json", rows=300, bytes=1, checksum=checksum, **known)


LENGTH = BoundStage(name="filter.length", stage=Length(), digest="length")
EXACT = BoundStage(name="dedup.exact", stage=Exact(), digest="exact", emit_digest="emit")
COMMON: dict[str, Any] = {"step": "web/read", "source": "web", "seed": 1, "resources": ()}
RANGE: dict[str, Any] = {"start": 0, "stop": 10}
PACK: dict[str, Any] = {
    "tokenizer_fingerprint": "f",
    "vocab_size": 300,
    "eos_id": 0,
    "pool_documents": 9,
    "max_padding": 0.02,
    "min_piece": 1,
}

TASKS: list[tuple[Task, dict[str, Any]]] = [
    (
        MapTask(**COMMON, inputs=(_split(),), stages=(LENGTH,), emit=EXACT),
        {
            "inputs": (_split("b.jsonl"),),
            "fields": FieldNames(text="content"),
            "limit": 5,
            "before": "other",
            "decisions": Decisions(name="dedup.exact", rule="duplicate", tables={"drops": (_rows(),)}),
            "stages": (replace(LENGTH, digest="longer"),),
            "emit": replace(EXACT, emit_digest="other"),
            "cut": LENGTH,
            "source_position": 1,
        },
    ),
    (
        ReduceTask(**COMMON, **RANGE, stage=EXACT, exchange="match", tables={"texts": (_rows(),)}, limit_bytes=1),
        {
            "stage": replace(EXACT, digest="other"),
            "exchange": "other",
            "tables": {"texts": (_rows("y"),)},
            "start": 1,
            "stop": 11,
            "at_once": True,
        },
    ),
    (
        MergeTask(**COMMON, **RANGE, stage=EXACT, table="texts", files=(_rows(),), limit_bytes=1),
        {"table": "other", "files": (_rows(url="/earlier/x"),), "start": 1, "stop": 11},
    ),
    (
        GatherTask(**COMMON, **RANGE, stage=EXACT, tables={"drops": (_rows(),)}, limit_bytes=1),
        {"tables": {"sizes": (_rows(),)}, "start": 1, "stop": 11},
    ),
    (
        RankTask(**COMMON, stage="best", scores=(_table(),), interval=Interval()),
        {"stage": "other", "scores": (_table("y"),), "interval": Interval(kept=Pair(score=1, tie=2))},
    ),
    (
        NarrowTask(**COMMON, stage="best", summaries=(_table(),), interval=Interval(), share=KeptShare(share=Fraction(1, 3))),
        {
            "stage": "other",
            "summaries": (_table("y"),),
            "interval": Interval(dropped=Pair(score=1, tie=2)),
            "share": KeptShare(share=Fraction(1, 4)),
        },
    ),
    (
        SampleTask(**COMMON, before="map", documents=(_table(),), fraction=0.5, validation=0.1, pattern="gpt2"),
        {"before": "other", "fraction": 0.25, "validation": 0.2, "pattern": "other"},
    ),
    (
        TrainTask(**COMMON, samples=(_table(),), vocab_size=300, pattern="gpt2", eos="<e>"),
        {"samples": (_table("y"),), "vocab_size": 301, "pattern": "other", "eos": "<f>", "bos": "<s>", "content": b"tokenizer"},
    ),
    (
        TokenizeTask(**COMMON, before="map", documents=(_table(),), tokenizer=_tokenizer(), eos="<e>", validation=0.1),
        {
            "before": "other",
            "tokenizer": _tokenizer("y"),
            "eos": "<f>",
            "bos": "<s>",
            "validation": 0.2,
            "strata": ("score", (1.0,)),
            "license_column": "terms",
        },
    ),
    (
        PackTask(
            **COMMON,
            **RANGE,
            **PACK,
            files=(_rows(),),
            bucket=0,
            split="train",
            stratum=None,
            sequence_length=64,
            method="concat",
            format="arrow",
            target_bytes=9,
        ),
        {
            "files": (_rows("y"),),
            "start": 1,
            "stop": 11,
            "bucket": 1,
            "split": "validation",
            "stratum": 0,
            "tokenizer_fingerprint": "g",
            "vocab_size": 301,
            "eos_id": 1,
            "sequence_length": 65,
            "method": "best_fit",
            "pool_documents": 10,
            "max_padding": 0.01,
            "min_piece": 2,
            "format": "parquet",
            "target_bytes": 10,
        },
    ),
]
"""A task of each kind, and another value for every field that enters its fingerprint."""

LEFT_OUT: dict[str, Any] = {
    "step": "web/other",
    "fingerprint": "other",
    "resources": (("num_cpus", 2.0),),
    "documents": (_table("y"),),
    "limit_bytes": 2,
}


@pytest.mark.parametrize(("task", "entering"), TASKS, ids=lambda value: value.kind if isinstance(value, Task) else "")
def test_fingerprint_changes_with_every_field_that_enters_and_no_other(task: Task, entering: dict[str, Any]):
    known = fingerprinted(task).fingerprint
    entering = {"source": "books", "seed": 2, **entering}
    for name, value in entering.items():
        assert fingerprinted(replace(task, **{name: value})).fingerprint != known, name
    for one in fields(task):
        if one.name in entering:
            continue
        value = LEFT_OUT[one.name] if one.name in LEFT_OUT else replace(EXACT, digest="other", emit_digest="other")
        assert fingerprinted(replace(task, **{one.name: value})).fingerprint == known, one.name


def test_fingerprint_does_not_depend_on_the_order_of_exchange_files():
    task = MergeTask(**COMMON, **RANGE, stage=EXACT, table="texts", files=(_rows("x"), _rows("y")), limit_bytes=1)
    assert fingerprinted(task).fingerprint == fingerprinted(replace(task, files=task.files[::-1])).fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"rule": "other"},
        {"tables": {"drops": (_rows("y"),)}},
        {"size_column": "copies"},
        {"cluster_column": "cluster"},
        {"removed_share": 0.5},
    ],
    ids=str,
)
def test_fingerprint_of_a_map_task_covers_its_decisions(changed: dict[str, Any]):
    decisions = Decisions(name="dedup.exact", rule="duplicate", tables={"drops": (_rows(),)})
    task = MapTask(**COMMON, before="map", decisions=decisions)
    other = replace(task, decisions=replace(decisions, **changed))
    assert fingerprinted(task).fingerprint != fingerprinted(other).fingerprint
