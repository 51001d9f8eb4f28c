"""The contract's own records: what rules and results refuse, and how a reader that knows no schema looks for fields."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import StageError
from datapipe.stage import FieldNames, FilterResult, InputFile, ReadBatch, Reader, Rejected, Rule, Split

_RULES = [Rule(name="short", limit=2, side="min"), Rule(name="long", limit=5, side="max")]
_SPLIT = Split(file=InputFile(url="a.own", path="a.own", num_bytes=1, stamp=""))


def _no_file(url: str) -> pa.NativeFile:
    raise AssertionError(url)


def test_rule_without_a_side_is_refused_with_what_to_write() -> None:
    with pytest.raises(StageError, match="the rule 'odd' has no side"):
        Rule(name="odd", limit=1.0).failed(np.zeros(2))


def test_filter_result_is_that_of_the_first_rule_that_fails() -> None:
    result = FilterResult.from_rules(_RULES, [np.array([1, 2, 9]), [1, 5, 6]])
    assert result.keep.tolist() == [False, True, False]
    assert result.rule.tolist() == [0, -1, 1]
    assert result.value[[0, 2]].tolist() == [1.0, 6.0]


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ([np.zeros(3)], "2 rules, found those of 1"),
        ([np.zeros(3), np.zeros(2)], r"rule 1: .* found shapes \(2,\)"),
        ([np.zeros((3, 1)), np.zeros(3)], r"rule 0: .* found shapes \(3, 1\)"),
    ],
)
def test_filter_result_of_values_that_do_not_fit_the_rules_is_refused(measured, message) -> None:
    with pytest.raises(StageError, match=message):
        FilterResult.from_rules(_RULES, measured)


def test_filter_result_of_failures_that_are_row_numbers_is_refused() -> None:
    with pytest.raises(StageError, match=r"rule 0: expected numbers and bool of shape \(2,\).* of int64"):
        FilterResult.first_failing(2, [(np.zeros(2), np.array([0, 1]))])


class Own(Reader):
    """Yields a reject and then two documents, of which one has a url."""

    num_docs: int = 2

    def read(self, split, fields, open_input):
        nothing = pa.array([], pa.large_string())
        reject = Rejected(position=0, error="bad")
        yield ReadBatch(positions=np.zeros(0, np.uint64), texts=nothing, ids=nothing, rejected=(reject,))
        if self.num_docs:
            texts = pa.array(["a", "b"], pa.large_string())
            extra = {name: pa.array(["x", None] if name == "url" else [None, None], pa.large_string()) for name in fields.keep}
            yield ReadBatch(positions=np.arange(2, dtype=np.uint64), texts=texts, ids=texts, extra=extra)
            raise AssertionError("a look ends with the first documents")


def test_reader_that_knows_no_schema_finds_the_fields_with_a_value() -> None:
    seen = Own().fields_seen(_SPLIT, FieldNames(text="body", keep=("url", "ulr")), _no_file)
    assert (seen.num_records, seen.found, seen.names) == (2, {"body", "url"}, ())


def test_reader_of_rejects_alone_has_seen_no_record() -> None:
    assert Own(num_docs=0).fields_seen(_SPLIT, FieldNames(), _no_file).num_records == 0
