"""The cut of a filter that keeps a share: the documents of the highest scores, found in a few rounds."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.columns import from_ordered, ordered
from datapipe.errors import StageError
from datapipe.exchange.tables import TableWriter
from datapipe.records.outputs import TableFile, typed
from datapipe.steps import cut as cuts
from datapipe.steps.cut import Cut, Ranked, check_scores, is_kept, narrowed
from datapipe.steps.rank import NarrowMetrics, NarrowTask, RankTask, sought_in
from datapipe.storage.root import Root

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=2, max_size=50))
def test_ordered_integers_have_the_order_of_the_scores(values: list[float]) -> None:
    scores = np.array(values)
    integers = ordered(scores)
    for first in range(len(values) - 1):
        one, other = values[first], values[first + 1]
        assert (integers[first] < integers[first + 1], integers[first] == integers[first + 1]) == (one < other, one == other)
    assert [from_ordered(int(number)) for number in integers] == values


def _cut(scores: np.ndarray, ties: np.ndarray, weights: np.ndarray, share: Fraction, tasks: int) -> tuple[Cut, int]:
    """The cut by rounds over the documents in some tasks, and the number of rounds."""
    found = Cut()
    for number in range(1, 30):
        summaries = []
        for rows in np.array_split(np.arange(len(scores)), tasks):
            ranked = Ranked(found)
            arrays = [pa.array(ordered(scores[rows])), pa.array(ties[rows]), pa.array(weights[rows])]
            ranked.add(pa.record_batch(arrays, schema=cuts.SCORES_SCHEMA))
            summaries.append(ranked.summary())
            assert summaries[-1].num_rows <= 4 * cuts.SUMMARY_PAIRS + 5
        found = narrowed(summaries, found, share)
        if found.is_found:
            return found, number
    raise AssertionError("no cut in 30 rounds")


def _expected_of_ranking(scores: np.ndarray, ties: np.ndarray, weights: np.ndarray, share: Fraction) -> tuple[set[int], int]:
    """The documents of the highest scores whose weights fit into the share, and their weight."""
    kept: set[int] = set()
    total, room = 0, share * int(weights.sum())
    for document in sorted(range(len(scores)), key=lambda row: (scores[row], ties[row]), reverse=True):
        if total + int(weights[document]) > room:
            break
        kept.add(document)
        total += int(weights[document])
    return kept, total


SCORES = {
    "different": lambda rng, count: rng.normal(size=count),
    "few": lambda rng, count: rng.integers(-1, 2, count).astype(np.float64),
    "equal": lambda rng, count: np.zeros(count),
    "neighbours": lambda rng, count: np.where(rng.random(count) < 0.5, 1.0, 1 - rng.random(count) * 1e-15),
}
WEIGHTS = {
    "documents": lambda rng, count: np.ones(count, np.int64),
    "bytes": lambda rng, count: rng.integers(0, 1000, count) ** 2,
    "one heavy": lambda rng, count: np.where(np.arange(count) == count // 2, 10**9, rng.integers(0, 3, count)),
}


@pytest.mark.parametrize("weigh", WEIGHTS)
@pytest.mark.parametrize("score", SCORES)
def test_cut_keeps_the_documents_of_the_highest_scores(monkeypatch, score, weigh) -> None:
    monkeypatch.setattr(cuts, "SUMMARY_PAIRS", 8)  # so that a few hundred documents need several rounds
    rng = np.random.default_rng(sorted(SCORES).index(score))
    for _ in range(25):
        count = int(rng.integers(0, 400))
        scores, weights = SCORES[score](rng, count), WEIGHTS[weigh](rng, count).astype(np.int64)
        ties = rng.integers(0, 1 << 63, count).astype(np.uint64) << np.uint64(1)
        share = Fraction(int(rng.integers(0, 101)), 100)
        cut, _ = _cut(scores, ties, weights, share, int(rng.integers(1, 6)))
        kept, weight = _expected_of_ranking(scores, ties, weights, share)
        assert set(np.flatnonzero(is_kept(cut, ordered(scores), ties)).tolist()) == kept
        assert (cut.kept_documents, cut.kept_weight) == (len(kept), weight)
        assert (cut.documents, cut.weight) == (count, int(weights.sum()))


def test_several_cuts_are_found_in_the_same_rounds(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(cuts, "SUMMARY_PAIRS", 64)
    rng, root = np.random.default_rng(4), Root(str(tmp_path))
    scores, ties, weights = (
        rng.integers(0, 50, 5000) / 7,
        rng.integers(0, 1 << 63, 5000).astype(np.uint64),
        np.ones(5000, np.int64),
    )
    shares, files = [Fraction(20 - part, 20) for part in range(1, 20)], list[TableFile]()
    for number, rows in enumerate(np.array_split(np.arange(5000), 3)):
        writer = TableWriter(root, f"scores-{number}.arrow")
        arrays = [pa.array(ordered(scores[rows])), pa.array(ties[rows]), pa.array(weights[rows])]
        writer.add(pa.record_batch(arrays, schema=cuts.SCORES_SCHEMA))
        files += writer.finish()
    found, common, number = (Cut(),) * 19, {"step": "", "seed": 0, "stage": "best"}, 0
    while not all(cut.is_found for cut in found):
        number += 1
        summaries: list[TableFile] = []
        for place, file in enumerate(files):
            task = RankTask(**common, scores=(file,), interval=sought_in(found))
            summaries += typed(task.run(root, f"rank-{number}-{place}")[0]["summary"], TableFile)
            assert summaries[-1].rows <= 19 * 4 * 64
        narrow = NarrowTask(**common, summaries=tuple(summaries), interval=found, share=tuple(shares))
        found = narrow.run(root, "narrow")[1].of(NarrowMetrics).cuts
    assert 2 < number < 6
    assert list(found) == [_cut(scores, ties, weights, share, 3)[0] for share in shares]


@pytest.mark.parametrize("score", SCORES)
def test_four_rounds_are_enough(monkeypatch, score) -> None:
    monkeypatch.setattr(cuts, "SUMMARY_PAIRS", 32)
    rng = np.random.default_rng(1)
    count = 32 * (32 // 3) ** 3  # what the bound of `steps/cut.py` promises for four rounds
    ties = rng.integers(0, 1 << 63, count).astype(np.uint64)
    cut, rounds = _cut(SCORES[score](rng, count), ties, np.ones(count, np.int64), Fraction(1, 10), 3)
    assert (cut.kept_documents, rounds <= 4) == (count // 10, True)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_finite_numbers_are_refused(wrong: float) -> None:
    with pytest.raises(StageError, match="the score of document 1 of the batch is"):
        check_scores(np.array([0.0, wrong]))
