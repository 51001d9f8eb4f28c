"""Sentences of lines by hand, counted as spaCy's sentencizer counts them: letters that are not ASCII."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.text.sentences import count_sentences

CASES = {
    "a new year.Étienne came in.": 2,
    "a new year.Etienne came in.": 2,
    "une année.École finie": 2,
    "год.Жизнь идёт. Да": 3,
    "год.жизнь идёт": 1,
    "see www.Éa.fr/x.Éb now": 1,
    "see www.é.É now": 2,
    "წელი. მეორე": 1,
    "ปี. ที่": 1,
    "यह है. वह है.": 2,
    "文句。次の文。": 1,
    "文句。 次の文。": 2,
    "ä. and ü. are letters": 1,
    "a.b.Ǆ x. Y": 2,
    "so.“Élan” it is": 2,
    "25 °C. The end": 2,
    "a weight in $A$. Again": 2,
    "a weight in $B$. Again": 1,
    "it cost US$. C$. Both": 3,
    "forward.--Mr. Elton came": 2,
    "forward--Mr. Elton came": 1,
    "forward---Mr. Elton came": 1,
    "forward----Mr. Elton came": 2,
    "é—Mr. Elton, é.—Mr. Elton": 2,
    "(25 °c.) the end": 2,
    "x.é.Ü. Z": 2,
    "it was 5°. Then": 2,
    "bought from Acme™. Then": 2,
    "love it ♥. Then": 2,
    "love it♥.” Then": 2,
    "(a card of Visa®.) Then": 2,
    "all ©★🎉. Then ☺!": 2,
    "well☺.com is one": 1,
    "see http://a♥b.com/x☺.y now": 1,
    "a full♥Mr. Elton, a 9♥p.m. tea": 1,
    "warm: 5°c. Then": 2,
    "warm: 5°C.♥ then": 2,
    "cold: x♥5°K.♥y z": 2,
    "a part of °.C. and so": 1,
    "the unit 5㎏.New it": 2,
    "well…5☺.… so": 2,
}


@pytest.mark.parametrize("line", CASES)
def test_sentences_are_counted_as_spacy_counts_them(line: str) -> None:
    offsets, data = columns.text_buffers(pa.array([line], pa.large_string()))
    with np.errstate(over="ignore"):
        counted = count_sentences(offsets[:-1].copy(), np.diff(offsets).astype(np.int32), np.ones(1, bool), data)
    assert counted.tolist() == [CASES[line]]
