"""What is counted of texts and tokens, however the texts are cut."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe.metrics import TaskMetrics
from datapipe.stage.documents import DocumentBatch
from datapipe.token_counts import MAX_LANGUAGES, Fertility, TokenCounts
from datapipe.tokens.fertility import Meter, described, merged_ids


def metered(languages: list[str | None], cuts: int = 1) -> Fertility:
    """The counts of one-word texts of two tokens each, metered in `cuts` tasks."""
    total = Fertility()
    for part in np.array_split(np.arange(len(languages)), cuts):
        columns = {
            "text": pa.array(["abc"] * len(part), pa.large_string()),
            "language": pa.array([languages[number] for number in part], pa.string()),
        }
        meter = Meter(10)
        meter.add(DocumentBatch(pa.record_batch(columns)), np.full(2 * len(part), 3), np.arange(len(part) + 1) * 2)
        total.add(meter.fertility)
    return total


@pytest.mark.parametrize("cuts", [1, 3])
def test_counts_are_by_language_however_cut(cuts):
    found = described(metered(["en", "de", "en", None, "de", "en"], cuts))
    assert {name: one["documents"] for name, one in found["languages"].items()} == {"": 1, "de": 2, "en": 3}
    assert (found["bytes"], found["words"], found["tokens"]) == (18, 6, 12)
    assert (found["bytes_per_token"], found["tokens_per_word"]) == (1.5, 2.0)
    assert described(Fertility())["bytes_per_token"] is None


@pytest.mark.parametrize("cuts", [1, 3])
@pytest.mark.parametrize("odd", [[str(number) for number in range(MAX_LANGUAGES)], ["a sentence, not the name of a language"]])
def test_column_that_holds_no_languages_is_not_counted_by(odd, cuts):
    found = metered(["en", *odd, "en"], cuts)
    assert found.languages is None
    assert found.total.documents == len(odd) + 2
    assert metered(["en", *odd[1:], "en"], cuts).languages is not None


def test_ids_that_any_part_used_are_used():
    first, second = Meter(11), Meter(11)
    first.used[[0, 9]], second.used[[9, 10]] = True, True
    assert np.flatnonzero(merged_ids(11, [first.used_ids, second.used_ids])).tolist() == [0, 9, 10]
    assert not merged_ids(11, []).any()


@pytest.mark.parametrize("languages", [None, {"en": TokenCounts(1, 2, 3, 4)}])
def test_counts_survive_the_ledger(languages):
    metrics = TaskMetrics(fertility=Fertility(total=TokenCounts(5, 6, 7, 8), languages=languages))
    assert TaskMetrics.from_json(metrics.to_json()) == metrics
