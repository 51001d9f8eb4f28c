"""Parts of tasks: values in the type of their column, samples of clusters, decisions that find their documents in any file."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe import columns
from datapipe.columns import make_keys
from datapipe.errors import DatapipeError
from datapipe.exchange import files as exchange
from datapipe.exchange.files import ExchangeWriter
from datapipe.exchange.tables import read_table
from datapipe.metrics import DocumentCounts
from datapipe.records.outputs import ExchangeFile
from datapipe.stage.cut_points import CUT_POINTS
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from datapipe.stage.field_types import DECLARED
from datapipe.stage.tables import CUT_SCHEMA, FINAL_SCHEMAS
from datapipe.steps.decisions import DecisionApplier, Decisions, Drops, KeyedRows
from datapipe.steps.measuring import MEASUREMENTS, ClusterSample
from datapipe.steps.read_batches import in_declared_type, in_found_type
from datapipe.storage.root import Root
from tests.support.global_stages import batch_of

BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, None], pa.int32()), pa.int64(), [1, None]),
        (pa.array([1, -3], pa.int64()), pa.float64(), [1.0, -3.0]),
        (pa.array([BIG], pa.int64()), pa.float64(), None),
        (pa.array([-1], pa.int64()), pa.uint64(), None),
        (pa.array([1], pa.int64()), pa.decimal128(21, 2), [Decimal("1.00")]),
        (pa.array(["7"]), pa.int64(), None),
        (pa.array([7]), pa.large_string(), None),
        (pa.array([None, None], pa.string()), pa.int64(), [None, None]),
        (pa.array(["a", "b"]).dictionary_encode(), pa.large_string(), ["a", "b"]),
        (pa.array([{"a": 1}, None]), pa.struct([("a", pa.float64()), ("b", pa.large_string())]), [{"a": 1.0, "b": None}, None]),
        (pa.array([[{"a": 1}], []]), pa.list_(pa.struct([("a", pa.int64()), ("b", pa.bool_())])), [[{"a": 1, "b": None}], []]),
        (pa.array([date(2024, 5, 17)]), pa.timestamp("ms"), [datetime(2024, 5, 17)]),
        (pa.array([None, None], pa.null()), pa.null(), [None, None]),
    ],
    ids=lambda value: str(value)[:40].replace("\n", ""),
)
def test_values_in_the_found_type_are_the_same_or_refused(column: Any, kind: pa.DataType, values: list[Any] | None) -> None:
    if values is None:
        with pytest.raises(ValueError, match=r"no .* is made of|not in range|in range"):
            in_found_type(column, kind)
    else:
        assert in_found_type(column, kind).to_pylist() == values


NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
BAD = object()


@pytest.mark.parametrize(
    ("column", "name", "expected"),
    [
        (pa.array(["007", "x", None, "", "9"]), "int64", [7, BAD, None, None, 9]),
        (pa.array([1.0, 7.5, None]), "int64", [1, BAD, None]),
        (pa.array([True]), "int64", [BAD]),
        (pa.array(["1.5", "ten"]), "float64", [1.5, BAD]),
        (pa.array(["true", "false", "maybe"]), "bool", [True, False, BAD]),
        (pa.array([1, 7]), "bool", [BAD, BAD]),
        (pa.array([7, None]), "string", ["7", None]),
        (pa.array([1.0, 7.25]), "string", ["1.0", "7.25"]),
        (pa.array([True]), "string", ["true"]),
        (pa.array([[1, 2], None]), "string", ["[1,2]", None]),
        (pa.array([b"ab", b"\xff"]), "string", ["ab", BAD]),
        (pa.array([{"a": "x"}]), "json", ['{"a":"x"}']),
        (pa.array(["x", None]), "json", ['"x"', None]),
        (pa.array(["2024-05-17T14:00:00+02:00", "2024-05-17 12:00", "soon"]), "timestamp", [NOON, NOON, BAD]),
        (pa.array([datetime(2024, 5, 17, 12)]), "timestamp", [NOON]),
        (pa.array([NOON], pa.timestamp("s", "Europe/Berlin")), "timestamp", [NOON]),
        (pa.array([1715947200]), "timestamp", [NOON]),
        (pa.array(["2024-05-17", "2024-05-17T12:00:00Z"]), "date", [date(2024, 5, 17)] * 2),
        (pa.array([datetime(2024, 5, 17)]), "int64", [BAD]),
    ],
    ids=lambda value: str(value)[:40].replace("\n", "") if not isinstance(value, list) else "",
)
def test_values_in_a_declared_type(column: pa.Array, name: str, expected: list[Any]) -> None:
    values, bad = in_declared_type(column, name)
    assert values.type == DECLARED[name]
    assert [BAD if is_bad else value for value, is_bad in zip(values.to_pylist(), bad.tolist(), strict=True)] == expected


def _dropped(num_clusters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Survivors of dropped documents, in any order: file hashes and positions."""
    generator = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(num_clusters), generator.integers(1, 6, num_clusters))
    generator.shuffle(clusters)
    return (clusters % 7).astype(np.uint64), clusters.astype(np.uint64)


def _sample(halves: tuple[np.ndarray, np.ndarray], most: int, batches: int) -> ClusterSample:
    sample = ClusterSample(most)
    for files, positions in zip(*(np.array_split(half, batches) for half in halves)):
        sample.add(make_keys(files, positions), np.ones(len(files), np.int64))
    return sample


def _counts(sample: ClusterSample) -> dict[bytes, int]:
    keys, dropped = sample.clusters()
    return dict(zip(keys.to_pylist(), dropped.tolist()))


@pytest.mark.parametrize("tasks", [1, 2, 9])
def test_sample_of_clusters_is_exact_until_there_are_too_many_and_then_the_same_for_any_tasks(tasks: int) -> None:
    halves = _dropped(5_000, seed=2)
    exact, whole, merged = _sample(halves, 5_000, 11), _sample(halves, 200, 1), ClusterSample(200)
    assert (_counts(exact), exact.halvings) == (Counter(make_keys(*halves).to_pylist()), 0)
    for files, positions in zip(*(np.array_split(half, tasks) for half in halves)):
        part = _sample((files, positions), most=200, batches=3)
        merged.add(*part.clusters(), part.halvings)
    assert (_counts(merged), merged.halvings) == (_counts(whole), whole.halvings)
    assert 50 < len(_counts(whole)) <= 200
    assert _counts(whole).items() <= _counts(exact).items()


# ------------------------------------------------------------------------------------------------ decisions applied


def _key(source: int, place: int) -> bytes:
    return source.to_bytes(8, "big") + place.to_bytes(8, "big")


def _file(root: Root, name: str, rows: Sequence[tuple[object, ...]], path: str = "") -> ExchangeFile:
    schema = FINAL_SCHEMAS[name]
    writer = ExchangeWriter(root, path or name, schema)
    dicts = [dict(zip(schema.names, (int.from_bytes(row[0][:8], "big"), *row))) for row in rows]  # type: ignore[index]
    writer.add(pa.RecordBatch.from_pylist(dicts, schema=schema))
    return writer.finish()


class _Applying:
    def __init__(self, folder, tables: dict[str, tuple[ExchangeFile, ...]], **options: object) -> None:
        self.root, self.document_counts = Root(str(folder)), DocumentCounts()
        self.drops = Drops(self.root, "dropped", "web", self.document_counts)
        measurements = [measurement(self.root, "measured", "web") for measurement in MEASUREMENTS]
        decisions = Decisions(name="dedup", rule="duplicate", tables=tables, **options)  # type: ignore[arg-type]
        rows = {name: KeyedRows.open(self.root, files) for name, files in tables.items()}
        self.applier = DecisionApplier(decisions, rows, self.drops, measurements)

    def dropped(self) -> list[dict]:
        return [
            row for file in self.drops.finish()["drops"] for batch in read_table(self.root, file) for row in batch.to_pylist()
        ]


def test_apply_drops_and_sizes_find_their_documents_over_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "BLOCK_BYTES", 300)
    root, generator = Root(str(tmp_path)), np.random.default_rng(1)
    gone = {(source, int(place)) for source in (2, 5, 9) for place in generator.choice(500, 200, replace=False)}
    listed = sorted(gone)
    drops = tuple(
        _file(root, "drops", [(_key(*one), _key(1, 7), 0.5) for one in part], f"drops-{number}")
        for number, part in enumerate((listed[:250], listed[250:251], listed[251:]))
    )
    kept = [(5, place) for place in range(500) if (5, place) not in gone]
    sizes = (_file(root, "sizes", [(_key(*one), 3) for one in kept[::2]]),)
    found = _Applying(tmp_path, {"drops": drops, "sizes": sizes}, size_column="copies", cluster_column="cluster")
    for at in range(0, 500, 90):
        batch = batch_of(["text"] * min(90, 500 - at), source=5, first=at)
        stays = found.applier.apply(batch)
        expected = [one for one in kept if at <= one[1] < at + 90]
        assert stays.keys.to_pylist() == [_key(*one) for one in expected]
        assert stays.record.column("cluster").to_pylist() == [_key(*one).hex() for one in expected]
        assert stays.record.column("copies").to_pylist() == [4 if one in kept[::2] else 1 for one in expected]
    assert found.applier.apply(batch_of(["other"], source=6)).num_docs == 1
    assert found.document_counts.dropped == {"dedup:duplicate": 500 - len(kept)}
    assert {row["survivor"] for row in found.dropped()} == {_key(1, 7)}


@pytest.mark.medium
@settings(max_examples=40)
@given(
    texts=st.lists(st.text("abcé \n", max_size=12), min_size=1, max_size=5),
    drawn=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 12), st.sampled_from("ab")), max_size=9),
    removed_share=st.sampled_from([0.3, 0.5, 1.0]),
    begin=st.integers(0, 2),
)
def test_apply_cuts_every_span_once_and_drops_documents_of_which_too_much_is_cut(
    tmp_path_factory, texts, drawn, removed_share, begin
):
    """A byte counts for the span that begins first, ties for the longest, then for the first rule. No text of nothing but white
    space is left, whatever share may be cut out; one that was blank before stays. The batch is a slice of a longer one."""
    folder = tmp_path_factory.mktemp("cuts")
    begin, cuts = min(begin, len(texts) - 1), set()
    for number, *ends, rule in drawn:
        if number < len(texts):
            start, stop = sorted(len(texts[number][:end].encode()) for end in ends)
            cuts.add((number, start, stop, rule))
    files = (_file(Root(str(folder)), "cuts", [(_key(1, number), *rest) for number, *rest in sorted(cuts)]),)
    found = _Applying(folder, {"cuts": files}, removed_share=removed_share)
    left = found.applier.apply(batch_of(texts).slice(begin, len(texts)))
    expected, counts, dropped = [], Counter[str](), {}
    for number, text in enumerate(texts[begin:], begin):
        content, taken, own = text.encode(), set[int](), Counter[str]()
        for start, stop, rule in sorted((start, -stop, rule) for doc, start, stop, rule in cuts if doc == number):
            own[f"dedup:{rule}_bytes"] += len(new := set(range(start, -stop)) - taken)
            taken |= new
        rest = bytes(byte for position, byte in enumerate(content) if position not in taken).decode()
        share = round(len(taken) / max(1, len(content)), 6)
        if share > removed_share or (taken and not rest.strip()):
            dropped[_key(1, number)] = share
        else:
            expected.append(rest)
            counts += own
    assert left.texts.to_pylist() == expected
    assert +Counter(found.document_counts.counts) == +counts
    assert found.document_counts.dropped == ({"dedup:too_much_removed": len(dropped)} if dropped else {})
    rows = found.dropped()
    assert {row["key"]: row["value"] for row in rows} == dropped
    assert all((row["rule"], row["threshold"]) == ("too_much_removed", removed_share) for row in rows)


@pytest.mark.parametrize("span", [(0, 11), (-1, 3), (5, 4), (1, 3)])
def test_apply_cuts_outside_a_text_or_within_a_character_are_refused(tmp_path, span):
    cuts = (_file(Root(str(tmp_path)), "cuts", [(_key(1, 0), *span, "span")]),)
    assert CUT_SCHEMA.names == ["hash", "key", "start", "stop", "rule"]
    with pytest.raises(DatapipeError, match="defect of the stage"):
        _Applying(tmp_path, {"cuts": cuts}).applier.apply(batch_of(["éé567890"]))


def test_apply_moves_the_seams_that_earlier_cuts_left_and_adds_its_own(tmp_path):
    first = (_file(Root(str(tmp_path)), "cuts", [(_key(1, 0), 2, 4, "a"), (_key(1, 2), 0, 3, "a")], "first"),)
    later = (_file(Root(str(tmp_path)), "cuts", [(_key(1, 0), 0, 1, "a"), (_key(1, 0), 4, 5, "a")], "later"),)
    batch = _Applying(tmp_path, {"cuts": first}).applier.apply(batch_of(["01234567", "same", "01234567"]))
    assert batch.record.column(CUT_POINTS).to_pylist() == [[2], [], []]
    batch = _Applying(tmp_path, {"cuts": later}).applier.apply(batch)
    assert batch.texts.to_pylist() == ["1457", "same", "34567"]
    assert batch.record.column(CUT_POINTS).to_pylist() == [[1, 3], [], []]


def test_apply_documents_of_a_stage_that_cuts_have_one_schema_whatever_is_cut(tmp_path):
    cuts = (_file(Root(str(tmp_path)), "cuts", [(_key(1, 0), 2, 4, "a"), (_key(1, 1), 0, 4, "a")]),)
    applier = _Applying(tmp_path, {"cuts": cuts}, removed_share=0.5).applier
    batches = batch_of(["01234567", "gone"]), batch_of(["other"], first=7)
    some, other = (DocumentBatch(batch.record.cast(pa.schema(BASE_FIELDS))) for batch in batches)
    cut, untouched = applier.apply(some), applier.apply(other)
    without_files = _Applying(tmp_path, {"cuts": ()}).applier.apply(other)
    assert cut.record.schema == untouched.record.schema == without_files.record.schema
    assert [batch.record.column(CUT_POINTS).to_pylist() for batch in (cut, untouched)] == [[[2]], [[]]]


def test_apply_leaves_documents_without_decisions_alone(tmp_path):
    batch = batch_of(["a", "b"])
    assert _Applying(tmp_path, {}).applier.apply(batch).record.equals(batch.record)
    assert columns.key_halves(batch.keys)[0].tolist() == [1, 1]
