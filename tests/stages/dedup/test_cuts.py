"""What every stage that cuts does with every unit: the bytes of brute force, in one run, after another, around cut points."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    seeds,
    spans_cut,
    spans_cut_against,
    spans_cut_by_source,
    with_cut_points,
)
from tests.support.global_stages import batch_of, opened

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


def _substring(unit: str, method: str) -> Variant:
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

    fixed = {"unit": unit, "method": method, "length": 8}
    return Variant(Substring, fixed, lambda rng: {"length": rng.choice([8, 9, 13])}, corpus, by_force)


VARIANTS = {unit: _lines(unit) for unit in ("line", "paragraph", "three_sentences")}
VARIANTS |= {f"{unit} by {way}": _substring(unit, way) for unit in ("token", "byte") for way in ("exchange", "suffix_array")}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few tokens, so that short texts have several."""
    monkeypatch.setattr(Windowing, "chunk_tokens", property(lambda _: 7))


@every_variant
@pytest.mark.parametrize("seed", seeds(12, 60))
def test_cuts_of_random_corpora_equal_brute_force(variant: Variant, seed: int) -> None:
    rng = random.Random(seed)
    texts, options, keep = variant.corpus(rng), variant.drawn(rng), rng.choice(["first", "none"])
    cut = rng.randint(0, len(texts))
    batches = [batch_of(texts[cut:], first=cut), batch_of(texts[:cut])]
    pieces = {"num_buckets": rng.choice([1, 3]), "chunk_rows": rng.choice([0, 1, 2, 5])}
    found = spans_cut(variant.stage(keep=keep, **options), batches, **pieces)
    assert bytes_cut(found, batch_of(texts).keys.to_pylist()) == variant.by_force(texts, keep, **options)


@every_variant
@pytest.mark.parametrize("seed", seeds(5, 20))
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


@every_variant
@pytest.mark.parametrize("seed", seeds(5, 20))
def test_cut_point_ends_a_document(variant: Variant, seed: int) -> None:
    rng = random.Random(seed)
    texts = variant.corpus(rng)
    batch, parts = with_cut_points([*texts, *texts[::-1]], rng)
    found = spans_cut(variant.stage(), [batch.slice(1, batch.num_docs), batch.slice(0, 1)], num_buckets=3)
    expected = variant.by_force([text for *_, text in parts], "first")
    assert bytes_cut(found, batch.keys.to_pylist()) == of_documents(expected, parts)


@every_variant
@pytest.mark.parametrize("keep", ["first", "none"])
@pytest.mark.parametrize("seed", seeds(4, 15))
def test_cuts_of_a_second_pass_are_none(variant: Variant, keep: str, seed: int) -> None:
    stage, batch = variant.stage(keep=keep), batch_of(variant.corpus(random.Random(seed)))
    assert spans_cut(stage, [cut_from(spans_cut(stage, [batch]), batch)]) == {}


@every_variant
def test_cuts_of_many_copies_of_a_page_leave_one(variant: Variant) -> None:
    page = "The page. It has four. Sentences in it.\nAnd a second line. So it goes on."
    batch = batch_of([page] * 1000)
    found = spans_cut(variant.stage(), [batch], num_buckets=3)
    assert found == {key: [(0, len(page))] for key in batch.keys.to_pylist()[1:]}
    new = batch_of([page], source=2)
    assert spans_cut_against(variant.stage(), [new], [new]) == {new.keys[0].as_py(): [(0, len(page))]}
