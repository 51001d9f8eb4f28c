"""Rows of `datapipe/kernels/dedup`."""

from typing import Any

import numpy as np

from datapipe.kernels.dedup import case_folding, components, minhash, text_hashes, text_units
from datapipe.kernels.text.marks import mark_table
from datapipe.kernels.types import room_for
from tests.oracles import case_folding as case_folding_oracle
from tests.oracles import components as components_oracle
from tests.oracles import dedup as dedup_oracle
from tests.oracles import text_units as text_units_oracle
from tests.support.kernel_table import Case, Steps, columns, joined, offsets_of, room, row


@row(text_hashes.hash_texts)
def hash_texts(case: Case) -> Steps:
    yield [case.offsets, case.data], room(len(case.texts), np.uint64, np.uint64)
    yield None, columns(map(dedup_oracle.text_hash, case.texts), 2)


@row(text_hashes.squeeze_space, valid_only=True)
def squeeze_space(case: Case) -> Steps:
    yield [case.offsets, case.data], [*room(len(case.offsets), np.int64), *room(len(case.data), np.uint8)]
    texts = [dedup_oracle.squeeze_space(text.decode()).encode() for text in case.texts]
    yield None, [offsets_of(texts), joined(texts)]


@row(case_folding.fold_case)
def fold_case(case: Case) -> Steps:
    size = case_folding.GROWTH * sum(map(len, case.texts)) + len(case.texts) + 8
    outputs = [*room(len(case.offsets), np.int64), *room(size, np.uint8)]
    yield [case.offsets, case.data, case_folding.text_folding()], outputs
    texts = list(map(case_folding_oracle.folded, case.texts))
    yield None, [offsets_of(texts), joined(texts)]


@row(components.join, 1, variant="of 1 nodes")
@row(components.join, 2, variant="of 2 nodes")
@row(components.join, 300, variant="of 300 nodes")
def join_components(case: Case, num_nodes: int) -> Steps:
    a, b = case.generator.integers(0, num_nodes, (2, num_nodes * 2 // 3))
    yield [a, b], room(num_nodes, np.int64)
    yield None, [components_oracle.labels(num_nodes, list(zip(a.tolist(), b.tolist())))]


_NGRAM, _NUM_PERM, _NUM_BANDS = 3, 7, 2
"""One permutation more than the bands use."""


def _signatures(case: Case, by_character: bool = False) -> tuple[minhash.Permutations, list[tuple[int, int, list[int]]]]:
    chosen = minhash.permutations(case.seed, _NUM_PERM)
    a, b = chosen.a.tolist(), chosen.b.tolist()
    return chosen, [dedup_oracle.signature(text, a, b, _NGRAM, by_character) for text in case.texts]


@row(minhash.sign, False)
@row(minhash.sign, True, variant="characters")
def sign(case: Case, by_character: bool) -> Steps:
    num_docs, (chosen, signatures) = len(case.texts), _signatures(case, by_character)
    offsets, words = case_folding.fold_texts(case.offsets, case.data, case_folding.word_folding())
    out = minhash.SignaturesOut(*room(num_docs, np.int64, np.uint64), *room((num_docs, _NUM_PERM), np.uint32))
    yield [offsets, words, chosen, _NGRAM, by_character], [out]
    yield None, columns(signatures, 3)


@row(minhash.band)
def band(case: Case) -> Steps:
    _, signatures = _signatures(case)
    rows = dedup_oracle.band_rows(signatures, _NGRAM, _NUM_BANDS)
    num_words, word_hashes, signed = columns(signatures, 3)
    arrays = [np.array(num_words, np.int64), np.array(word_hashes, np.uint64)]
    signed = np.array(signed, np.uint32).reshape(-1, _NUM_PERM)
    yield [signed, *arrays, _NGRAM, _NUM_BANDS], room(len(rows), np.uint64, np.int64)
    yield None, columns(rows, 2)


@row(text_units.most_units)
def most_units(case: Case) -> Steps:
    yield [case.offsets, case.data, True], []
    ends = sum(byte in b"\n.!?" or byte >= 0xC0 for text in case.texts for byte in text)
    yield len(case.texts) + ends, []


@row(text_units.find_lines, "line", "ccnet", 0, variant="line", valid_only=True)
@row(text_units.find_lines, "paragraph", "none", 0, variant="paragraph", valid_only=True)
@row(text_units.find_three_sentences, "three_sentences", "ccnet", 7, variant="three_sentences", valid_only=True)
def find_units(case: Case, unit: str, normalize: Any, min_chars: int) -> Steps:
    form, most = text_units.normal_form(normalize), text_units.most_units(case.offsets, case.data, True)
    rest = [mark_table(), min_chars] if unit == "three_sentences" else [min_chars, unit == "paragraph"]
    yield [case.offsets, case.data, form, *rest], [room_for(text_units.TextUnits, most)]
    units = [
        (document, start + begin, stop - begin, *both)
        for document, (start, text) in enumerate(zip(case.begins, case.texts))
        for begin, stop, both in text_units_oracle.units(text.decode(), unit, normalize, min_chars)
    ]
    yield len(units), columns(units, 5)
