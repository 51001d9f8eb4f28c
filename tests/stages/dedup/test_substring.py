"""Repeated spans, by both methods. `test_cuts.py` compares the bytes with brute force over all windows."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import UserError
from stages.dedup.substring import Substring
from tests.support.cut_texts import cut_from, parts_kept, seeds, spans_cut
from tests.support.global_stages import batch_of, exchanged, opened, reduce_all

pytestmark = pytest.mark.medium

METHODS = ["exchange", "suffix_array"]
units = pytest.mark.parametrize("unit", ["token", "byte"])


def _opened(**options: object) -> Substring:
    return opened(Substring.model_validate(options))


def test_substring_spans_that_a_cut_brought_together_are_none() -> None:
    before, said, behind = "a b c d e", "one two three four five six seven eight", "v w x y z"
    batch = batch_of([said, f"{before} {said} {behind}", f"{before} {behind}"])
    for method in METHODS:
        stage = _opened(length=8, method=method)
        cut = cut_from(spans_cut(stage, [batch]), batch)
        assert cut.texts.to_pylist()[1:] == [f"{before} {behind}"] * 2
        assert spans_cut(stage, [cut]) == {}
        assert spans_cut(stage, [batch_of(cut.texts.to_pylist())]) != {}


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_substring_long_copies_in_prose_are_equal_by_both_methods(seed: int) -> None:
    rng = random.Random(seed)
    words = [f"w{number}" for number in range(300)]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 3000))) for _ in range(12)]
    for _ in range(20):
        source, target = rng.sample(range(12), 2)
        at, to = rng.randint(0, len(texts[source])), rng.randint(0, len(texts[target]))
        texts[target] = texts[target][:to] + texts[source][at : at + rng.randint(0, 2000)] + texts[target][to:]
    batches = [batch_of(texts[:5]), batch_of(texts[5:], first=5)]
    unit, length = rng.choice([("token", 50), ("byte", 100)])
    found = [spans_cut(_opened(unit=unit, length=length, method=method), batches, num_buckets=4) for method in METHODS]
    assert found[0] == found[1]
    assert found[0]


def test_substring_cut_ends_where_the_next_word_begins() -> None:
    said = "one two three four five six seven eight"
    texts = [f"First: {said}. End", f"Other,  {said}  here", said]
    batch = batch_of(texts)
    left = parts_kept(spans_cut(_opened(length=8), [batch]), batch)
    assert left == [[texts[0]], ["Other,  ", "here"], []]
    assert parts_kept(spans_cut(_opened(length=8, keep="none"), [batch]), batch)[0] == ["First: ", ". End"]


def test_substring_overlapping_copy_of_itself_leaves_the_first_token() -> None:
    batch = batch_of(["a " * 100])
    assert parts_kept(spans_cut(_opened(length=8), [batch]), batch) == [["a "]]


@pytest.mark.parametrize(("unit", "text"), [("token", "a b c " * 100_000), ("byte", " " * 500_000), ("byte", "中é" * 100_000)])
def test_substring_text_that_repeats_itself_has_few_selected_grams(unit: str, text: str) -> None:
    batch = batch_of([text])
    stage = _opened(unit=unit)
    num_chunks = stage.emit(batch)["passages"].num_rows
    assert stage.emit(batch)["anchors"].num_rows <= 10 * num_chunks
    (spans,) = spans_cut(stage, [batch]).values()
    assert spans[0][0] <= 6 and spans[-1][1] == len(text.encode()) and len(spans) == 1


def test_substring_vocabulary_above_65536_is_exact() -> None:
    words = [f"x{number}" for number in range(70_000)]
    texts = [" ".join(words), " ".join(["new", *words[-60:], "end"])]
    batch = batch_of(texts)
    for method in METHODS:
        assert parts_kept(spans_cut(_opened(method=method), [batch]), batch) == [[texts[0]], ["new ", "end"]]


@units
def test_substring_empty_short_and_cjk_documents_are_compared(unit: str) -> None:
    texts = ["", " ", "中文", "", "这是一个很长的句子需要去重", "前面这是一个很长的句子需要去重后面"]
    batch = batch_of(texts)
    left = parts_kept(spans_cut(_opened(unit=unit, length=8), [batch]), batch)
    assert left == [[], [" "], ["中文"], [], [texts[4]], ["前面", "后面"]]


@pytest.mark.parametrize(("method", "table"), [("exchange", "anchors"), ("suffix_array", "texts")])
def test_substring_scope_source_keeps_sources_apart(method: str, table: str) -> None:
    """The engine mixes the source into hashes that are not keys; the windows depend on these hashes too."""
    said = " ".join(f"w{number}" for number in range(80))
    stage = _opened(scope="source", method=method)
    batches = [batch_of([said, said + " a b c"]), batch_of(["x y z " + said, said], source=2)]
    emitted = [dict(stage.emit(batch)) for batch in batches]
    together = {name: [tables[name] for tables in emitted] for name in stage.emits()}
    assert len(set(exchanged(stage, together)["cuts"].column("key").to_pylist())) == 3
    for number, tables in enumerate(emitted):
        rows = tables[table]
        mixed = pa.array(rows.column("hash").to_numpy() ^ np.uint64(number))
        tables[table] = rows.set_column(0, rows.schema.field(0), mixed)
    apart = {name: [tables[name] for tables in emitted] for name in stage.emits()}
    expected = {batch.keys[1].as_py() for batch in batches}
    assert set(exchanged(stage, apart)["cuts"].column("key").to_pylist()) == expected


def test_substring_texts_above_the_memory_of_a_suffix_array_are_refused() -> None:
    with pytest.raises(UserError, match="memory_bytes"):
        spans_cut(_opened(method="suffix_array", memory_bytes=10), [batch_of(["a long text"])], at_once=False)


def test_substring_hashes_are_pinned() -> None:
    """Changing these hashes invalidates the rows of every earlier run: a breaking change."""
    rows = _opened(length=8).emit(batch_of(["Call me Ishmael. Some years ago, never mind."]))["anchors"].to_pylist()
    assert [(row["hash"], row["span"], row["start"], row["size"]) for row in rows] == [
        (14194335781062340991, 13879730002153618291, 0, 39),
        (8902443664457341588, 14270947194030666231, 8, 36),
    ]


@pytest.mark.slow
def test_substring_one_document_of_50_mb_is_processed_in_chunks() -> None:
    rng = random.Random(5)
    words = [f"w{number}" for number in range(5000)]
    text = " ".join(rng.choices(words, k=8_500_000))
    batch = batch_of([text + " " + text[: 1 << 20]])
    assert len(text) > 48_000_000
    (spans,) = spans_cut(_opened(), [batch]).values()
    assert [(stop - start) >> 10 for start, stop in spans] == [1023]


@units
def test_substring_copies_of_a_page_are_compared_once(unit: str) -> None:
    batch = batch_of([" ".join(f"word{number}" for number in range(120))] * 2000)
    num_selected = _opened(unit=unit).emit(batch.slice(0, 1))["anchors"].num_rows
    assert reduce_all(_opened(unit=unit), [batch])["cuts"].num_rows == 1999 * num_selected  # so no window was compared
