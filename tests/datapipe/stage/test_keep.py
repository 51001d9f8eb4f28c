"""Policies of survival: what they take, and the order in which their ranks put documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from datapipe.errors import UserError
from datapipe.stage import StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.keep import Keep, source_order, survivor_ranks
from datapipe.stage.tables import RANK, as_reference, is_new, new_bit
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


def test_ranks_by_whole_numbers_go_by_their_size() -> None:
    for column_type in (pa.int8(), pa.int64()):
        assert _order({"highest": "n"}, batch_of(["x"] * 4, n=pa.array([3, -7, None, 100], column_type))) == [3, 0, 1, 2]


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


def test_ranks_first_alone_are_all_the_same() -> None:
    assert survivor_ranks(KEEP.validate_python("first"), batch_of(["a", "bb"]), CONTEXT).tolist() == 2 * [new_bit(np.uint64)]


WRITTEN = [
    "first",
    ["source_order", "longest"],
    {"source_order": ["web", "code"]},
    [{"highest": "quality"}, {"earliest": "date"}, "first"],
]


def test_keep_is_written_as_it_was_read_with_the_order_of_its_list_or_the_mixture() -> None:
    read = [KEEP.validate_python(written) for written in WRITTEN]
    assert [KEEP.dump_python(keep) for keep in read] == WRITTEN
    assert [source_order(keep) for keep in read] == [None, (), ("web", "code"), None]


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
