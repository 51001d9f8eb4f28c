"""Rows of `datapipe/kernels/text/english_words.py`: the texts, each followed by chunks that exercise every rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.text import english_words
from datapipe.kernels.text.unicode_classes import LETTER
from datapipe.kernels.text.words import Words, find_words, room_for_spans
from tests.oracles import english_words as oracle
from tests.oracles.words import kind
from tests.support.kernel_table import Case, Row

_CHUNKS = (
    "don't Don’t cannot, couldn't've (can't) Mr. Mrs., U.S. e.g., 10am 5km/h 12kg. 3% $5 5$ US$5 +5 +x 5+ word. word.Word "
    "re-use x--y 1-2 1990-1995 a/b and/or a,b 1,000 wait... ...so …x “quoted.” ('s) dog's DOG'S ’s :) http://a-b.com/c-d "
    "www.x.org:80/y me@mail.org/x-y a_b-c x@y me@1.co ://a.bc ab://c-d a.b-c.de/ f-g.h:1 f-g.hi:123456 :-D !!!??? ((a)) — – "
    "(so): so'' ('' ''. itd. (Mr.Mrs.) e.Kr. 350°F. 10°C. °F. (:) ):-) a.,b so|. 5км² 5US$ x…♥y a♥♥b ǅ-a და-და है. หน. 🫶a "
    "a.Éa a.éa 🙂.com a.bcd.é x.É/y www.é.com <space> \\n (^_^) 5كم p.m.… "
    "a—b a–b AB. A. b. .. . x²-y cm² 5cm² é.É ж,ж 中.中 ♥x♥ x♥y '' it's. C++ °C. 1.a ~ a~b #tag"
)


def _texts(case: Case) -> list[bytes]:
    return [text + b"\n" + _CHUNKS.encode() for text in case.texts]


def _chunks(case: Case) -> tuple[Words, np.ndarray]:
    texts = _texts(case)
    data = np.frombuffer(b"a" + b"".join(texts) + b"a", np.uint8)
    with np.errstate(over="ignore"):
        return find_words(np.cumsum([1, *map(len, texts)], dtype=np.int64), data), data


def _arguments(case: Case) -> Sequence[Any]:
    words, data = _chunks(case)
    tables = (
        english_words.content_table(),
        english_words.sign_table(),
        english_words.wholes_table(),
        english_words.unit_hashes(),
    )
    return [words, data, *tables, room_for_spans(len(words.doc_offsets), len(data))]


def _expected(case: Case) -> tuple[Any, Sequence[Any]]:
    texts = _texts(case)
    starts = np.cumsum([1, *map(len, texts)])
    spans = [oracle.words(text) for text in texts]
    rows = [span._replace(start=span.start + offset) for offset, doc in zip(starts, spans) for span in doc]
    return len(rows), [np.cumsum([0, *map(len, spans)]), *(list(column) for column in zip(*rows))] if rows else [
        [0],
        [],
        [],
        [],
        [],
        [],
    ]


def _most_arguments(case: Case) -> Sequence[Any]:
    words, _ = _chunks(case)
    return [words, english_words.wholes_table()]


def _most(case: Case) -> tuple[Any, Sequence[Any]]:
    """Four words per contraction of letters, one per other chunk of letters, else one per byte."""
    count = 0
    for text in _texts(case):
        for chunk in ("".join(character for _, character, _ in oracle.characters(text))).split():
            if all(kind(character) == LETTER for character in chunk):
                count += 4 if chunk in oracle.WHOLES else 1
            else:
                count += sum(size for _, character, size in oracle.characters(chunk.encode()))
    return count, []


ROWS = [
    Row(kernel=english_words.cut_words, arguments=_arguments, oracle=_expected, from_case=True),
    Row(
        kernel=english_words.most_english_words,
        arguments=_most_arguments,
        oracle=_most,
        num_outputs=0,
        from_case=True,
        valid_only=True,
    ),
]
