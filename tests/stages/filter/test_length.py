"""Limits in each unit, and that the limits themselves pass."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.length import Length

TEXTS = ["", "one", "zwölf 中", "four words are here"]
BYTES, CHARS, WORDS = [0, 3, 10, 19], [0, 3, 7, 19], [0, 1, 2, 4]


def _batch(texts: list[str]) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(["a"] * len(texts), pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS)))


@pytest.mark.parametrize(("unit", "lengths"), [("chars", CHARS), ("bytes", BYTES), ("words", WORDS)])
def test_length_each_unit_is_compared_with_its_limits(unit: str, lengths: list[int]) -> None:
    least, most = lengths[1], lengths[2]
    stage = Length.model_validate({f"min_{unit}": least, f"max_{unit}": most})
    result = stage.process(_batch(TEXTS))
    assert [(rule.name, rule.limit) for rule in stage.rules()] == [(f"too_few_{unit}", least), (f"too_many_{unit}", most)]
    assert result.rule.tolist() == [0, -1, -1, 1]
    assert result.value[[0, 3]].tolist() == [lengths[0], lengths[3]]


def test_length_without_limits_keeps_everything() -> None:
    assert Length().rules() == []
    assert Length().process(_batch(TEXTS)).keep.all()


def test_length_first_rule_that_fails_gives_the_reason() -> None:
    stage = Length(min_chars=5, min_words=2)
    assert [stage.rules()[rule].name for rule in stage.process(_batch(["one", "longer"])).rule] == [
        "too_few_chars",
        "too_few_words",
    ]


def test_length_slice_of_a_batch_is_measured_by_itself() -> None:
    assert Length(min_bytes=10).process(_batch(TEXTS).slice(1, 3)).keep.tolist() == [False, True]
