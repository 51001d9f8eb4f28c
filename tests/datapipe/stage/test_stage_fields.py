"""Which document of several is kept, and the types of kept fields."""

import json
from functools import reduce
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from datapipe.errors import UserError
from datapipe.stage import StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.field_types import (
    MIXED,
    FoundType,
    JsonNumber,
    NoCommonTypeError,
    joined,
    json_joined,
    json_type,
    plain,
    type_in,
    written,
)
from datapipe.stage.keep import Keep, survivor_ranks
from datapipe.stage.tables import RANK, as_reference, is_new
from tests.support.global_stages import batch_of

KEEP: TypeAdapter[Any] = TypeAdapter(Keep)
CONTEXT = StageContext(name="dedup.exact", seed=1, source_position=2)


def _order(keep: Any, batch: DocumentBatch, context: StageContext = CONTEXT) -> list[int]:
    """Documents from the one that survives first; ties by place."""
    ranks = survivor_ranks(KEEP.validate_python(keep), batch, context)
    assert ranks.dtype == np.uint64
    return np.argsort(ranks, kind="stable").tolist()


NUMBERS = [0.5, None, -1.0, float("nan"), 0.0, -0.0, 1e300, float("inf"), -float("inf"), 3]


@pytest.mark.parametrize("more", [[], ["first"], ["shortest"], ["source_order"]])
def test_ranks_by_number_put_those_without_one_last(more: list[str]) -> None:
    batch = batch_of(["x"] * len(NUMBERS), score=pa.array(NUMBERS))
    assert _order([{"lowest": "score"}, *more], batch) == [8, 2, 4, 5, 0, 9, 6, 7, 1, 3]
    assert _order([{"highest": "score"}, *more], batch) == [7, 6, 9, 0, 4, 5, 2, 8, 1, 3]


def test_ranks_by_numbers_that_are_text_are_those_of_the_numbers() -> None:
    texts = ["0.5", None, "-1", "many", "0", "-0.0", "1e300", "", "-1e9999", ".3e1"]
    for column_type in (pa.string(), pa.large_string()):
        batch = batch_of(["x"] * len(texts), score=pa.array(texts, column_type))
        assert _order({"lowest": "score"}, batch) == [8, 2, 4, 5, 0, 9, 6, 1, 3, 7]


@pytest.mark.parametrize("more", [[], ["longest"]])
def test_ranks_by_date_put_those_without_one_last(more: list[str]) -> None:
    texts = ["2023-04-05", "nonsense", "2021", None, "2023-04-05T09:00:00+01:00", "9999-12-31T23:59:59", "0001-01-01"]
    batch = batch_of(["x"] * len(texts), date=pa.array(texts))
    assert _order([{"earliest": "date"}, *more], batch) == [6, 2, 0, 4, 5, 1, 3]
    assert _order([{"latest": "date"}, *more], batch) == [5, 4, 0, 2, 6, 1, 3]


@pytest.mark.parametrize("others", [[], [{"lowest": "n"}], [{"lowest": "n"}, "source_order"]])
def test_ranks_by_length_are_exact_for_web_pages(others: list[Any]) -> None:
    lengths = [0, 1, 7, 8, 1000, 1001, 99_999, 100_000, 2_000_000, 2_000_001]
    batch = batch_of(["x" * length for length in lengths], n=pa.array([1] * len(lengths)))
    assert _order([*others, "shortest"], batch) == list(range(10))
    assert _order([*others, "longest"], batch) == list(range(9, -1, -1))


def test_ranks_in_a_list_break_the_ties_of_those_before() -> None:
    batch = batch_of(["aa", "b", "ccc", "d"], score=pa.array([1, 2, 1, 2]))
    assert _order([{"highest": "score"}, "longest"], batch) == [1, 3, 2, 0]
    assert _order(["longest", {"highest": "score"}], batch) == [2, 0, 1, 3]


def test_ranks_random_are_those_of_the_key_and_seed_alone() -> None:
    batch = batch_of([str(n) for n in range(64)])
    first, again, other = (_order("random", batch, StageContext(name="dedup.exact", seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    part = survivor_ranks(KEEP.validate_python("random"), batch.slice(10, 20), CONTEXT)
    assert part.tolist() == survivor_ranks(KEEP.validate_python("random"), batch, CONTEXT)[10:20].tolist()


def test_ranks_source_order_goes_before_all_that_follows() -> None:
    keep = KEEP.validate_python(["source_order", "longest"])
    batches = [batch_of(["x" * length]) for length in (1, 1000, 10)]
    contexts = [StageContext(name="dedup.exact", seed=1, source_position=position) for position in (0, 1, 1023)]
    ranks = [int(survivor_ranks(keep, batch, context)[0]) for batch, context in zip(batches, contexts, strict=True)]
    assert ranks == sorted(ranks)
    with pytest.raises(UserError, match="at most 1,024 sources"):
        survivor_ranks(keep, batches[0], StageContext(name="dedup.exact", seed=1, source_position=1024))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("longst", "Did you mean 'longest'"),
        ([], "at least one criterion"),
        (["longest", "longest"], "each once"),
        (["first", "longest"], "Put 'first' last"),
        (["source_order", {"source_order": ["a"]}], "each once"),
        (["longest", {"highest": "a"}, {"lowest": "b"}], "expected at most 2"),
        ({"highest": ""}, "expected one of"),
        ({"highest": "a", "lowest": "b"}, "expected one of"),
        ({"longest": "a"}, "expected one of"),
        (7, "expected one of"),
        ({"higest": "score"}, "Did you mean 'highest'"),
    ],
)
def test_keep_what_makes_no_sense_is_refused(written: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KEEP.validate_python(written)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"highest": "scor"}, "no column 'scor'.*Did you mean 'score'"),
        ({"highest": "flag"}, "found a column of bool, expected numbers"),
        ({"latest": "score"}, "found a column of double, expected dates"),
    ],
)
def test_ranks_column_that_is_not_there_or_of_another_type_is_refused(keep: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        survivor_ranks(KEEP.validate_python(keep), batch_of(["a"], score=pa.array([1.0]), flag=pa.array([True])), CONTEXT)


@pytest.mark.parametrize("keep", ["longest", "random", ["source_order", {"highest": "n"}, "shortest"]])
def test_ranks_of_earlier_runs_come_before_all_others_in_the_order_they_had(keep: Any) -> None:
    numbers = np.random.default_rng(1).normal(size=200)
    ranks = survivor_ranks(KEEP.validate_python(keep), batch_of(["x" * n for n in range(200)], n=pa.array(numbers)), CONTEXT)
    rows = pa.record_batch({RANK: ranks})
    old = as_reference(rows)
    assert is_new(rows).all() and not is_new(old).any()
    reference_rows = old.column(RANK).to_numpy()
    assert reference_rows.max() < ranks.min()
    assert np.array_equal(np.argsort(reference_rows, kind="stable"), np.argsort(ranks, kind="stable"))


@pytest.mark.parametrize("keep", [{"latest": "when"}, {"highest": "when"}])
def test_ranks_by_a_column_of_which_nothing_can_be_read_are_refused(keep: Any) -> None:
    texts = ["3 March 2024"] * 16 + [None]
    with pytest.raises(UserError, match=r"found 16 values such as '3 March 2024', expected (ISO 8601|numbers)"):
        _order(keep, batch_of(["x"] * 17, when=pa.array(texts, pa.string())))
    few = batch_of(["x"] * 17, when=pa.array([*texts[:15], None, None], pa.string()))
    assert _order(keep, few) == list(range(17))


BERLIN = "Europe/Berlin"


def _struct(**members: pa.DataType) -> pa.DataType:
    return pa.struct(list(members.items()))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.uint64(), pa.int64(), pa.uint64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(10, 1), pa.decimal128(11, 2)),
        (pa.decimal128(5, 2), pa.int64(), pa.decimal128(21, 2)),
        (pa.null(), pa.bool_(), pa.bool_()),
        (pa.date32(), pa.date64(), pa.date64()),
        (pa.date32(), pa.timestamp("ms"), pa.timestamp("ms")),
        (pa.timestamp("s", BERLIN), pa.timestamp("us", BERLIN), pa.timestamp("us", BERLIN)),
        (pa.time32("s"), pa.time64("us"), pa.time64("us")),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.list_(pa.null()), pa.list_(pa.large_string()), pa.list_(pa.large_string())),
        (_struct(a=pa.int32()), _struct(b=pa.bool_(), a=pa.int64()), _struct(a=pa.int64(), b=pa.bool_())),
        (pa.int64(), pa.large_string(), None),
        (pa.bool_(), pa.int64(), None),
        (pa.date32(), pa.large_string(), None),
        (pa.binary(), pa.large_string(), None),
        (pa.decimal128(5, 2), pa.float64(), None),
        (pa.timestamp("s", BERLIN), pa.timestamp("s", "UTC"), None),
        (pa.date32(), pa.timestamp("s", "UTC"), None),
        (pa.list_(pa.int64()), pa.list_(pa.large_string()), None),
        (pa.list_(pa.int64()), pa.int64(), None),
        (_struct(a=pa.int32()), _struct(a=pa.large_string()), None),
    ],
    ids=str,
)
def test_joined_type_holds_the_values_of_both_or_there_is_none(
    first: pa.DataType, second: pa.DataType, expected: pa.DataType | None
) -> None:
    assert joined(first, second) == expected
    if expected is None or not pa.types.is_struct(expected):  # members are in the order of the files
        assert joined(second, first) == expected


def test_plain_type_leaves_out_how_values_are_stored() -> None:
    large = pa.large_string()
    assert plain(pa.dictionary(pa.int8(), pa.string())) == plain(pa.string_view()) == large
    assert plain(pa.run_end_encoded(pa.int32(), pa.int64())) == pa.int64()
    assert plain(pa.list_(pa.dictionary(pa.int8(), pa.string()))) == pa.list_(large)
    assert plain(pa.timestamp("s", "+00:00")) == pa.timestamp("s", "UTC")
    assert plain(pa.timestamp("s", BERLIN)) == pa.timestamp("s", BERLIN)
    assert plain(pa.uuid()) == pa.binary(16)


def test_field_that_occurs_twice_in_a_schema_is_reported() -> None:
    schema = pa.schema([("u", pa.string()), ("u", pa.int64()), ("s", pa.struct([("x", pa.int8()), ("x", pa.int8())]))])
    with pytest.raises(ValueError, match="the column 'u' occurs 2 times"):
        type_in(schema, "u")
    with pytest.raises(ValueError, match=r"the member 'x' occurs 2 times"):
        type_in(schema, "s.x")
    assert type_in(schema, "s.y") is type_in(schema, "t.x") is None


def _types(*values: str) -> pa.DataType:
    parsed = (json.loads(value, parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber) for value in values)
    return reduce(json_joined, map(json_type, parsed), pa.null())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "null", "-2"], pa.int64()),
        (["1", "1e3"], pa.float64()),
        (["NaN"], pa.float64()),
        (["18446744073709551615", "1"], pa.uint64()),
        (["18446744073709551616"], MIXED),
        (["-9223372036854775808"], pa.int64()),
        (["-9223372036854775809"], MIXED),
        (["true", "null"], pa.bool_()),
        (['"007"', "7"], MIXED),
        (['"2024-01-01"'], pa.large_string()),
        (["[]", "null"], pa.list_(pa.null())),
        (["[1]", "[2.5]", "[]"], pa.list_(pa.float64())),
        (["[1]", '["a"]'], pa.list_(MIXED)),
        (["[1]", "1"], MIXED),
        (['{"b": 1, "a": "x"}'], _struct(a=pa.large_string(), b=pa.int64())),
        (['{"b": {}}', '{"a": 1}', '{"b": {"c": null}}'], _struct(a=pa.int64(), b=_struct(c=pa.null()))),
        (['{"a": 1}', '{"a": "x"}'], _struct(a=MIXED)),
        (["[" * 40 + "]" * 40], None),
        ([json.dumps({f"k{number}": 1 for number in range(1001)})], MIXED),
    ],
    ids=str,
)
def test_json_type_of_values_in_any_order(values: list[str], expected: pa.DataType | None) -> None:
    types = {str(_types(*order)) for order in permutations(values)}
    assert len(types) == 1
    assert expected is None or types == {str(expected)}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(values=st.lists(_JSON, min_size=1, max_size=5), cut=st.integers(0, 5))
def test_json_type_does_not_depend_on_where_the_values_are_split(values: list[Any], cut: int) -> None:
    texts = [json.dumps(value) for value in values]
    assert json_joined(_types(*texts[:cut]), _types(*texts[cut:])) == _types(*texts) == _types(*reversed(texts))


def test_found_type_names_two_files_and_survives_json() -> None:
    first, second = FoundType(kind=pa.int64(), path="a"), FoundType(kind=pa.large_string(), path="b")
    mixed = first.with_more(second)
    assert (mixed.kind, mixed.mixed_in) == (MIXED, "int64 in a and string in b")
    assert FoundType.from_json(json.loads(json.dumps(mixed.to_json()))) == mixed
    with pytest.raises(NoCommonTypeError, match="int64 in a and string in b, and no type holds all values"):
        first.with_more(FoundType(kind=pa.large_string(), path="b", has_schema=True))
    assert FoundType(kind=pa.null(), path="").with_more(second) == second


def test_written_type_can_be_written_as_parquet(tmp_path: Any) -> None:
    kinds = (MIXED, pa.null(), _struct(), pa.list_(pa.null()), _struct(a=_struct(), b=pa.list_(MIXED)))
    assert [str(written(kind)).replace("large_", "") for kind in kinds] == [
        "string",
        "string",
        "string",
        "list<item: string>",
        "struct<a: string, b: list<item: string>>",
    ]
