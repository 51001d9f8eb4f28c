"""What every stage must do with any batch. Stages are found by walking `stages/`; adding one adds it here. Stages that are
functions of one document must do it too."""

import importlib
import json
import math
import pickle
import pkgutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stages
from datapipe import columns
from datapipe.stage import Filter, FilterResult, Map, Stage, StageContext
from datapipe.stage.documents import BASE_FIELDS, PAGE_FIELDS, DocumentBatch
from datapipe.stage.function import function_stage
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import DROP_SCHEMA
from datapipe.steps.reduce import table_schemas
from stages.filter.language import bundled_model
from tests.support import function_stages, global_stages

OPTIONS: dict[str, dict[str, Any]] = {
    "filter.classifier": {"model": str(bundled_model()), "label": "en", "keep_share": 0.5, "score_column": "score"},
    "extract.chat": {"messages": ["messages"], "template": "chatml"},
    "decontaminate.ngram": {"against": (str(Path(__file__).with_name("evaluation_items.jsonl")),)},
    "filter.language": {"keep": ["en"]},
    "filter.field": {"field": "text", "drop": ["word"], "drop_matching": "line"},
    "filter.length": {"min_chars": 3, "max_bytes": 100_000, "min_words": 2},
    "filter.sample": {"share": 0.5},
    "filter.toxicity": {"model": str(bundled_model()), "label": "de", "write": True},
    "filter.license": {"field": "text", "allowed": ["mit OR isc"]},
    "join.repository": {"group_by": "text", "path": "id", "separators": ("<repo_name>", "<file_sep>")},
    "filter.url": {
        "field": "text",
        "domains": ["8.8.8.8"],
        "hard_words": ["crlf", "line"],
        "soft_words": ["one", "word", "the"],
    },
}
"""Options of stages that need some, or do nothing without."""

_HUGE_BYTES = 2_000_000
PROSE = (
    "It was the best of times, it was the worst of times, and those who have been there say that it is to be seen with "
    "their own eyes.\nOn the next day the people of the town came to the square to be told of what they have to do, and "
    "that was that. With the rain came the wind, and with the wind the end of all things that they had built."
)
TEXTS: dict[str, str] = {
    "empty": "",
    "white space": " \t\n \u3000\u2028 \n",
    "one word": "word",
    "one space": " ",
    "nul": "a\0b \0 \0",
    "crlf": "one line\r\nand another\r\rand a third\r\n",
    "byte order mark": "\ufeffThe text \ufeff with marks",
    "four-byte characters": "😀 𝕏𝕐 𠀀𠀁😀\n😀",
    "combining marks": "e\u0301\u0327 a\u030a \u1100\u1161\u11a8 ﬁ",
    "private, unassigned and noncharacters": "\ue000\U0010ffff\uffff\U000e0fff",
    "punctuation": "… ... # - • “”",
    "blank lines": "\n" * 1000,
    "addresses": "Write to jane.doe@mail.example.net or 8.8.8.8 or 2001:4860:4860::8888.",
    "prose": PROSE,
    "prose again": PROSE,
    "repeated prose": "\n".join([PROSE] * 5),
    "one huge line": "the word of " * (_HUGE_BYTES // 12),
    "one huge word": "x" * _HUGE_BYTES,
}
CONTEXT = StageContext(name="stage", seed=17)


@pytest.fixture(autouse=True)
def _uncompiled_kernels_may_wrap():
    with np.errstate(over="ignore"):
        yield


def _stage_classes() -> dict[str, type[Stage]]:
    """Every stage by its name: the one class of its module that is a stage."""
    found: dict[str, type[Stage]] = {}
    for module in pkgutil.walk_packages(stages.__path__, "stages."):
        if "._" in module.name:
            continue
        members = vars(importlib.import_module(module.name)).values()
        own = [one for one in members if isinstance(one, type) and issubclass(one, Stage) and one.__module__ == module.name]
        found.update({module.name.removeprefix("stages."): one for one in own})
    return found


CLASSES = _stage_classes()
OF_FUNCTIONS = {f.__name__: function_stage(f.__module__, f.__name__, f) for f in function_stages.FUNCTIONS}
ALL = {**CLASSES, **OF_FUNCTIONS}
FILTERS, MAPS, GLOBALS = ([n for n, c in ALL.items() if issubclass(c, kind)] for kind in (Filter, Map, Global))
WORKERS = [*FILTERS, *MAPS, *GLOBALS]


def _stage(name: str) -> Stage:
    return ALL[name](**OPTIONS.get(name, {}))


@lru_cache(maxsize=32)
def _opened(name: str) -> Stage:
    stage = _stage(name)
    stage.open(CONTEXT)
    return stage


NAMES = list(TEXTS)
SMALL = [name for name in NAMES if "huge" not in name]


def _batch(names: list[str]) -> DocumentBatch:
    """A batch of TEXTS with one column that the source keeps, read-only as the engine hands it out; each document has the key
    of its place in TEXTS."""
    numbers = [NAMES.index(name) for name in names]
    arrays = [
        columns.make_keys(7, np.array(numbers, np.uint64)),
        pa.array([f"id-{number}" for number in numbers], pa.large_string()),
        pa.array([TEXTS[name] for name in names], pa.large_string()),
        pa.array(numbers, pa.int64()),
    ]
    schema = pa.schema([*BASE_FIELDS, pa.field("rank", pa.int64())])
    batch = DocumentBatch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    batch.make_read_only()
    return batch


def _as_taken(stage: Stage, batch: DocumentBatch) -> DocumentBatch:
    """The batch as the stage takes it: before extraction texts are pages, or questions in JSON texts of conversations."""
    if stage.takes_json:
        answer = {"role": "assistant", "content": "An answer."}
        asked = [{"messages": [{"role": "user", "content": text}, answer]} for text in batch.texts.to_pylist()]
        asked_batch = batch.with_columns({"text": pa.array(map(json.dumps, asked), pa.large_string())})
        asked_batch.make_read_only()
        return asked_batch
    if not (isinstance(stage, Filter) and stage.extracts):
        return batch
    record, place = batch.record, batch.record.schema.get_field_index("text")
    pages = DocumentBatch(record.set_column(place, PAGE_FIELDS[2], batch.texts.cast(pa.large_binary())))
    pages.make_read_only()
    return pages


def _outcome(stage: Stage, batch: DocumentBatch) -> pa.Table:
    """The decisions of the stage about a batch, as one table: decisions, the batch as it becomes, or what is emitted."""
    if isinstance(stage, Filter):
        result = stage.process(_as_taken(stage, batch))
        decided = pa.table({"keep": result.keep, "rule": result.rule, "value": result.value})
        for name, column in {"text": batch.texts, **result.columns}.items():  # of a document that is dropped nothing counts
            kept = pa.array(result.keep) if name not in stage.counts else pa.array([True] * batch.num_docs)
            decided = decided.append_column(name, pc.if_else(kept, column, pa.scalar(None, column.type)))
        return decided
    if isinstance(stage, Map):
        return pa.Table.from_batches([batch.with_columns(stage.process(batch)).record])
    assert isinstance(stage, Global)
    emitted = stage.emit(batch)
    assert list(emitted) == list(stage.emits())
    named = [(pa.Table.from_batches([rows]), pa.array([name] * len(rows), pa.string())) for name, rows in emitted.items()]
    tables = [table.append_column("table", names) for table, names in named]
    return pa.concat_tables(tables, promote_options="default")


def _rows(stage: Stage, table: pa.Table) -> list[str]:
    """Rows to compare, NaN equal to itself. What a global stage emits is a set: it is sorted before it is used."""
    rows = [repr(row) for row in table.to_pylist()]
    return sorted(rows) if isinstance(stage, Global) else rows


def test_stages_every_module_holds_one_stage() -> None:
    modules = [m.name for m in pkgutil.walk_packages(stages.__path__, "stages.") if not m.ispkg and "._" not in m.name]
    assert sorted(CLASSES) == sorted(name.removeprefix("stages.") for name in modules)


@pytest.mark.parametrize("name", CLASSES)
def test_stage_options_are_described_frozen_and_known_and_survive_json_and_pickle(name: str) -> None:
    assert CLASSES[name].__doc__
    assert [option for option, field in CLASSES[name].model_fields.items() if not field.description] == []
    stage = _stage(name)
    with pytest.raises(ValueError, match="frozen"):
        setattr(stage, next(iter(CLASSES[name].model_fields), "option"), None)
    with pytest.raises(ValueError, match="no_such_option"):
        CLASSES[name](**OPTIONS.get(name, {}), no_such_option=1)
    assert CLASSES[name].model_validate_json(stage.model_dump_json()) == stage
    assert pickle.loads(pickle.dumps(stage)) == stage


@pytest.mark.medium
@pytest.mark.parametrize("name", WORKERS)
def test_stage_pickled_before_or_after_opening_does_the_same(name: str) -> None:
    batch = _batch(["prose", "addresses", "crlf"])
    expected = _rows(_opened(name), _outcome(_opened(name), batch))
    for stage in (pickle.loads(pickle.dumps(_stage(name))), pickle.loads(pickle.dumps(_opened(name)))):
        stage.open(CONTEXT)
        assert _rows(stage, _outcome(stage, batch)) == expected


@pytest.mark.medium
@pytest.mark.parametrize("name", WORKERS)
def test_stage_empty_batch_has_the_schema_of_any_other(name: str) -> None:
    empty, other = (_outcome(_opened(name), _batch(texts)) for texts in ([], SMALL))
    assert empty.num_rows == 0
    assert empty.schema == other.schema


@pytest.mark.medium
@pytest.mark.parametrize("name", WORKERS)
def test_stage_neighbours_do_not_change_what_happens_to_a_document(name: str) -> None:
    stage, batch = _opened(name), _batch(NAMES)
    whole = _outcome(stage, batch)
    each = [_outcome(stage, _batch([text])) for text in NAMES]
    for table in each:
        table.validate(full=True)
        assert table.num_rows == 1 or name in GLOBALS
    alone = pa.concat_tables(each)
    sliced = pa.concat_tables([_outcome(stage, batch.slice(at, min(at + 5, len(NAMES)))) for at in range(0, len(NAMES), 5)])
    assert _rows(stage, whole) == _rows(stage, alone) == _rows(stage, sliced)


@pytest.mark.parametrize("name", WORKERS)
def test_stage_twice_gives_the_same_and_leaves_the_batch_as_it_was(name: str) -> None:
    stage, batch = _opened(name), _batch(SMALL)
    before = batch.record.serialize().to_pybytes()
    first, again, afresh = (_outcome(stage, one) for one in (batch, batch, _batch(SMALL)))
    assert _rows(stage, first) == _rows(stage, again) == _rows(stage, afresh)
    assert batch.record.serialize().to_pybytes() == before


@pytest.mark.parametrize("name", [*FILTERS, *MAPS])
def test_stage_columns_are_declared_and_of_the_batch(name: str) -> None:
    stage, batch = _opened(name), _batch(SMALL)
    assert isinstance(stage, Filter | Map)
    result = stage.process(_as_taken(stage, batch))
    returned = result.columns if isinstance(result, FilterResult) else result
    assert stage.writes is not None
    assert set(stage.counts) <= set(returned) <= {*stage.writes, *stage.counts, "text"}
    assert not {"key", "id", "rank"} & set(returned)
    assert all(len(column) == batch.num_docs for column in returned.values())
    assert all(pa.types.is_integer(returned[counted].type) for counted in stage.counts)
    text = returned.get("text", batch.texts)
    assert (text.type, text.null_count) == (pa.large_string(), 0)


@pytest.mark.parametrize("name", FILTERS)
def test_filter_result_names_a_rule_where_it_drops(name: str) -> None:
    stage = _opened(name)
    assert isinstance(stage, Filter)
    result: FilterResult = stage.process(_as_taken(stage, _batch(NAMES)))
    assert (result.keep.dtype, result.rule.dtype, result.value.dtype) == (np.bool_, np.int16, np.float64)
    assert len(result.keep) == len(result.rule) == len(result.value) == len(TEXTS)
    assert np.array_equal(result.keep, result.rule == -1)
    assert result.rule.max() < len(stage.rules())
    assert np.isfinite(result.value[~result.keep]).all()


@pytest.mark.parametrize("name", FILTERS)
def test_filter_measures_each_document_by_each_rule(name: str) -> None:
    stage, batch = _opened(name), _batch(SMALL)
    assert isinstance(stage, Filter)
    result = stage.process(_as_taken(stage, batch))
    assert [len(one) for one in result.measured] == [batch.num_docs] * len(stage.rules())
    rules = [rule for rule in stage.rules() if rule.side != "other" and rule.option and math.isfinite(rule.limit)]
    assert all(getattr(stage, rule.option) == rule.limit for rule in rules)


@pytest.mark.parametrize("name", GLOBALS)
def test_global_stage_tables_are_declared_before_they_are_compared(name: str) -> None:
    stage = _opened(name)
    assert isinstance(stage, Global)
    known = dict(stage.emits())
    assert {table: rows.schema for table, rows in stage.emit(_batch(SMALL)).items()} == known
    assert set(stage.by_key) <= set(known)
    exchanges = stage.exchanges()
    assert len({one.name for one in exchanges}) == len(exchanges)
    for exchange in exchanges:
        assert set(exchange.inputs) <= {*known, *exchange.outputs}
        known.update(exchange.outputs)
    assert {"drops", "cuts"} & set(known)
    assert all(schema.field(0).equals(DROP_SCHEMA.field(0)) for schema in known.values())
    assert table_schemas(stage) == known


@pytest.mark.parametrize("name", GLOBALS)
def test_global_stage_judges_documents_by_schema_and_keeps_one_of_equal_ones(name: str) -> None:
    stage = _opened(name)
    assert isinstance(stage, Global)
    batch = _batch(SMALL)
    final = global_stages.reduce_all(stage, [batch])
    keys = set(batch.keys.to_pylist())
    drops = {row["key"]: row["survivor"] for row in final["drops"].to_pylist()} if "drops" in final else {}
    assert {*drops, *drops.values()} <= keys
    assert not set(drops) & set(drops.values())
    cut = set(final["cuts"].column("key").to_pylist()) if "cuts" in final else set()
    prose, again = _batch(["prose", "prose again"]).keys.to_pylist()
    assert again in {*drops, *cut} or prose in {*drops, *cut}
    for table in final.values():
        assert table.column("hash").to_pylist() == columns.key_halves(table.column("key"))[0].tolist()


@pytest.mark.parametrize("name", GLOBALS)
def test_global_stage_decisions_do_not_depend_on_batches_or_buckets(name: str) -> None:
    stage = _opened(name)
    assert isinstance(stage, Global)
    whole = _final(stage, [_batch(SMALL)])
    parts = [_batch(SMALL[at : at + 3]) for at in range(0, len(SMALL), 3)]
    assert _final(stage, parts[::-1], num_buckets=7) == whole
    assert _final(stage, parts, num_buckets=3, at_once=False) == whole
    assert all(rows == [] for rows in _final(stage, [_batch([])]).values())


def _final(stage: Global, batches: list[DocumentBatch], **options: Any) -> dict[str, list[str]]:
    """The final tables, NaN equal to itself."""
    reduced = global_stages.reduce_all(stage, batches, **options)
    return {name: [repr(row) for row in table.to_pylist()] for name, table in reduced.items()}
