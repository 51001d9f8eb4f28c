"""Cuts of lines and repeated spans, with every unit: the bytes of brute force, in one run, after another, around cut
points; and spans of long texts."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.stage.global_stage import Global
from stages.dedup._passages import Windowing
from stages.dedup.lines import Lines
from stages.dedup.substring import Substring
from tests.oracles import substring as substring_oracle
from tests.oracles import text_units as lines_oracle
from tests.support.cut_texts import (
    bytes_cut,
    cut_from,
    of_documents,
    parts_kept,
    seeds,
    spans_cut,
    spans_cut_against,
    spans_cut_by_source,
    with_cut_points,
)
from tests.support.global_stages import batch_of, exchanged, opened, reduce_all

pytestmark = pytest.mark.medium

_SAID = ["a.", "a b", "A, b!", "1 x", "2 x", "", " ", "中文。", "中文。再", "é? É", "e\u0301 ß", "SS. 각", "\u1100\u1161\u11a8"]
_SAID += ["a\u0323\u0301", "ạ\u200b\u0301²", "á\u0323", "\n", "\n\n", "  \n", " ", ". ", "-", "\u3000"]
_SENTENCES = ["One. ", "Two. ", "Three.\n", "Four.\n\n", "- ", "五。"]
Options = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """A stage with a unit.

    Attributes:
        drawn: options at random.
        corpus: texts at random that repeat each other.
        by_force: the bytes to cut from each text, by comparing all with all.
    """

    kind: type[Global]
    fixed: Options
    drawn: Callable[[random.Random], Options]
    corpus: Callable[[random.Random], list[str]]
    by_force: Callable[..., list[set[int]]]

    def stage(self, **options: Any) -> Global:
        return opened(self.kind.model_validate({**self.fixed, **options}))


def _lines(unit: str) -> Variant:
    def drawn(rng: random.Random) -> Options:
        return {"normalize": rng.choice(["none", "ccnet"]), "min_length": rng.choice([1, 1, 3])}

    def corpus(rng: random.Random) -> list[str]:
        said = rng.choice([_SAID, _SENTENCES])
        return ["".join(rng.choices(said, k=rng.randint(0, 20))) for _ in range(rng.randint(1, 9))]

    def by_force(texts: list[str], keep: str, normalize: str = "ccnet", min_length: int = 1) -> list[set[int]]:
        units = [(at, one) for at, text in enumerate(texts) for one in lines_oracle.units(text, unit, normalize, min_length)]
        hashes = [hashed for _, (_, _, hashed) in units]
        gone: list[set[int]] = [set() for _ in texts]
        for number, (document, (start, stop, hashed)) in enumerate(units):
            if hashes.count(hashed) > 1 if keep == "none" else hashes.index(hashed) < number:
                gone[document].update(range(start, stop))
        return gone

    return Variant(Lines, {"unit": unit}, drawn, corpus, by_force)


def _substring(unit: str) -> Variant:
    is_byte = unit == "byte"

    def corpus(rng: random.Random) -> list[str]:
        """A few documents over a small alphabet, with copies of parts of earlier ones."""
        alphabet = rng.choice([["a"], ["a", "b"], list("abc"), ["é", "a", "中"], ["😀", "中", "é"]])
        texts: list[str] = []
        for _ in range(rng.randint(1, 6)):
            text = rng.choices(alphabet, k=rng.randint(0, 40))
            if texts and rng.random() < 0.7:
                source = rng.choice(texts) if is_byte else rng.choice(texts).split()
                at = rng.randint(0, len(source))
                text[rng.randint(0, len(text)) :] = source[at : at + rng.randint(0, 30)]
            texts.append("".join(text) if is_byte else rng.choice(["", " "]) + " ".join(text) + rng.choice(["", "\n", " . "]))
        return texts

    def by_force(texts: list[str], keep: str, length: int = 8) -> list[set[int]]:
        return substring_oracle.repeated([text.encode() for text in texts], is_byte, length, keep)

    return Variant(Substring, {"unit": unit, "length": 8}, lambda rng: {"length": rng.choice([8, 9, 13])}, corpus, by_force)


VARIANTS = {unit: _lines(unit) for unit in ("line", "paragraph", "three_sentences")}
VARIANTS |= {unit: _substring(unit) for unit in ("token", "byte")}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few tokens, so that short texts have several."""
    monkeypatch.setattr(Windowing, "chunk_tokens", property(lambda _: 7))


small_chunks = pytest.mark.usefixtures("_small_chunks")


@small_chunks
@every_variant
@pytest.mark.parametrize("seed", seeds(8, 60))
def test_cuts_of_random_corpora_equal_brute_force(variant: Variant, seed: int) -> None:
    rng = random.Random(seed)
    texts, options, keep = variant.corpus(rng), variant.drawn(rng), rng.choice(["first", "none"])
    cut = rng.randint(0, len(texts))
    batches = [batch_of(texts[cut:], first=cut), batch_of(texts[:cut])]
    pieces = {"num_buckets": rng.choice([1, 3]), "chunk_rows": rng.choice([0, 1, 2, 5])}
    found = spans_cut(variant.stage(keep=keep, **options), batches, **pieces)
    assert bytes_cut(found, batch_of(texts).keys.to_pylist()) == variant.by_force(texts, keep, **options)


@small_chunks
@every_variant
@pytest.mark.parametrize("seed", seeds(3, 20))
def test_cuts_after_an_earlier_run_equal_those_of_one_run_that_prefers_its_source(variant: Variant, seed: int) -> None:
    rng = random.Random(seed)
    texts, keep = variant.corpus(rng), rng.choice(["source_order", "none"])
    texts += texts[::-1] + variant.corpus(rng)
    cut = rng.randint(1, len(texts))
    old, new = [batch_of(texts[:cut], source=2)], [batch_of(texts[cut:], source=1)]  # by key the new ones would come first
    stage, keys = variant.stage(keep=keep), new[0].keys.to_pylist()
    pieces = {"num_buckets": 3, "chunk_rows": rng.choice([0, 1, 2])}
    found = spans_cut_against(stage, old, new, **pieces)
    assert set(found) <= set(keys)
    one_run = spans_cut_by_source(stage, [old, new], **pieces)
    assert found == {key: spans for key, spans in one_run.items() if key in keys}
    assert bytes_cut(found, keys) == variant.by_force(texts, "none" if keep == "none" else "first")[cut:]


@small_chunks
@every_variant
@pytest.mark.parametrize("seed", seeds(3, 20))
def test_cut_point_ends_a_document(variant: Variant, seed: int) -> None:
    rng = random.Random(seed)
    texts = variant.corpus(rng)
    batch, parts = with_cut_points([*texts, *texts[::-1]], rng)
    found = spans_cut(variant.stage(), [batch.slice(1, batch.num_docs), batch.slice(0, 1)], num_buckets=3)
    expected = variant.by_force([text for *_, text in parts], "first")
    assert bytes_cut(found, batch.keys.to_pylist()) == of_documents(expected, parts)


@small_chunks
@every_variant
@pytest.mark.parametrize("keep", ["first", "none"])
@pytest.mark.parametrize("seed", seeds(3, 15))
def test_cuts_of_a_second_pass_are_none(variant: Variant, keep: str, seed: int) -> None:
    stage, batch = variant.stage(keep=keep), batch_of(variant.corpus(random.Random(seed)))
    assert spans_cut(stage, [cut_from(spans_cut(stage, [batch]), batch)]) == {}


@small_chunks
@every_variant
def test_cuts_of_many_copies_of_a_page_leave_one(variant: Variant) -> None:
    page = "The page. It has four. Sentences in it.\nAnd a second line. So it goes on."
    batch = batch_of([page] * 1000)
    found = spans_cut(variant.stage(), [batch], num_buckets=3)
    assert found == {key: [(0, len(page))] for key in batch.keys.to_pylist()[1:]}
    new = batch_of([page], source=2)
    assert spans_cut_against(variant.stage(), [new], [new]) == {new.keys[0].as_py(): [(0, len(page))]}


# ------------------------------------------------------------------------------------------------ spans


def _opened(**options: object) -> Substring:
    return opened(Substring.model_validate(options))


def _left(stage: Substring, texts: list[str]) -> list[list[str]]:
    batch = batch_of(texts)
    return parts_kept(spans_cut(stage, [batch]), batch)


EIGHT = "one two three four five six seven eight"
AROUND = [f"First: {EIGHT}. End", f"Other,  {EIGHT}  here", EIGHT]
CJK = ["", " ", "中文", "", "这是一个很长的句子需要去重", "前面这是一个很长的句子需要去重后面"]
MANY = " ".join(f"x{number}" for number in range(70_000))
TAIL = " ".join(MANY.split()[-60:])


@pytest.mark.parametrize(
    ("options", "texts", "left"),
    [
        ({"length": 8}, AROUND, [[AROUND[0]], ["Other,  ", "here"], []]),  # a cut ends where the next word begins
        ({"length": 8, "keep": "none"}, AROUND, [["First: ", ". End"], ["Other,  ", "here"], []]),
        ({"length": 8, "unit": "token"}, CJK, [[], [" "], ["中文"], [], [CJK[4]], ["前面", "后面"]]),
        ({"length": 8, "unit": "byte"}, CJK, [[], [" "], ["中文"], [], [CJK[4]], ["前面", "后面"]]),
        ({}, [MANY, f"new {TAIL} end"], [[MANY], ["new ", "end"]]),
    ],
    ids=["first", "none", "tokens", "bytes", "70,000 words"],
)
def test_substring_repeated_spans_are_cut(options: Options, texts: list[str], left: list[list[str]]) -> None:
    assert _left(_opened(**options), texts) == left


@pytest.mark.parametrize(("unit", "text"), [("token", "a b c " * 100_000), ("byte", " " * 500_000), ("byte", "中é" * 100_000)])
def test_substring_text_that_repeats_itself_has_few_selected_grams(unit: str, text: str) -> None:
    batch = batch_of([text])
    stage = _opened(unit=unit)
    num_chunks = stage.emit(batch)["passages"].num_rows
    assert stage.emit(batch)["anchors"].num_rows <= 10 * num_chunks
    (spans,) = spans_cut(stage, [batch]).values()
    assert spans[0][0] <= 6 and spans[-1][1] == len(text.encode()) and len(spans) == 1


def test_substring_scope_source_keeps_sources_apart() -> None:
    """The engine mixes the source into hashes that are not keys; the windows depend on these hashes too."""
    said = " ".join(f"w{number}" for number in range(80))
    stage = _opened(scope="source")
    batches = [batch_of([said, said + " a b c"]), batch_of(["x y z " + said, said], source=2)]
    emitted = [dict(stage.emit(batch)) for batch in batches]
    together = {name: [tables[name] for tables in emitted] for name in stage.emits()}
    assert len(set(exchanged(stage, together)["cuts"].column("key").to_pylist())) == 3
    for number, tables in enumerate(emitted):
        rows = tables["anchors"]
        mixed = pa.array(rows.column("hash").to_numpy() ^ np.uint64(number))
        tables["anchors"] = rows.set_column(0, rows.schema.field(0), mixed)
    apart = {name: [tables[name] for tables in emitted] for name in stage.emits()}
    expected = {batch.keys[1].as_py() for batch in batches}
    assert set(exchanged(stage, apart)["cuts"].column("key").to_pylist()) == expected


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


@pytest.mark.parametrize("unit", ["token", "byte"])
def test_substring_copies_of_a_page_are_compared_once(unit: str) -> None:
    batch = batch_of([" ".join(f"word{number}" for number in range(120))] * 2000)
    num_selected = _opened(unit=unit).emit(batch.slice(0, 1))["anchors"].num_rows
    assert reduce_all(_opened(unit=unit), [batch])["cuts"].num_rows == 1999 * num_selected  # so no window was compared
