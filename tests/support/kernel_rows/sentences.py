"""Rows of `datapipe/kernels/text/sentences.py`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.text import sentences
from datapipe.kernels.text.abbreviations import abbreviation_table
from datapipe.kernels.text.english_signs import sign_table
from datapipe.kernels.text.marks import mark_table
from datapipe.kernels.text.words import find_lines
from tests.oracles import sentences as oracle
from tests.support.kernel_table import Case, Row

# fmt: off
_SPICES = (
    "Mr.", "vs.", "Mrs.", "U.S.", "J.", "a.", "9a.m.", "12p.m.", "13p.m.", "p.m.", "e.g.,", "(i.e.", "25g.", "x-co.",
    "and—Mr.",
    "so.--Mr.", "so--Mr.", "a----Mr.", ".—Mr.", "x:-Mr.", "…Mr.", "$A$.", "US$.", "(C$.)", "A$", "US.",
    "Mr.”", "(Mr.)", "said.Mr.", "etc.", "No.", "Ph.D.", "end.Begin", "end.begin", "www.Foo.com",
    "http://a.Bc.de/x?y", "a.B@c.de", "www.Foo.com:80", "www.Foo.com:8", "x.Y.z1", "wait...What", "wait…What",
    "...and", "!?", "!...", "?”", "Yahoo!'s", "it's.", "it’s!", "(so.)", "[so.])", "$5.", "5%.", "70°C.",
    "°C.", "(°f.)", "«°K.", "°c.",
    "A$.",
    "EU.", "US.", "Iq.", "字.", "字。字", "¿qué?", "؟", "।", "......", "..", ".", ".a", "+.", "+5.", "☺.", "a.☺", "|.",
    ">.", "«so.»", "''", ".'", "\t.", "\u00a0.", "'Tis.So", "so.'So", "so.”",
    "année.Étienne", "www.é.Éa", "a.Éé.fr",
    "год.Жизнь", "год.жизнь", "წელი.", "ปี.", "है.", "है.है", "ä.", "ǅ.", "ы.Ы@б.ру", "x.,y",
    "5°.", "™.”", "x☺.y", "a♥Mr.", "x.°C.♥y", "5°c.", "♥°K.☺", "°F.…", "㎏.Ma", "a♥b.de/x☺.Y", "♥..♥", "so☺.…", "°c.Xy",
    "🫶.", "♥.", "5км.", "Ѣ.", "é.É/é.fr", "a.B\u0301.c", "中.中", "字.Mr.",
)
# fmt: on


def _spiced(case: Case) -> Case:
    """The texts with some of their words replaced by what rules about sentences look at."""
    rng = random.Random(case.seed)
    texts = [text.split(b" ") for text in case.texts]
    mixed = [[rng.choice(_SPICES).encode() if rng.random() < 0.4 else word for word in words] for words in texts]
    return Case(texts=tuple(rng.choice((b" ", b" ", b"  ", b"\t")).join(words) for words in mixed), seed=case.seed)


def _arguments(case: Case) -> Sequence[Any]:
    case = _spiced(case)
    with np.errstate(over="ignore"):
        lines = find_lines(case.offsets, case.data)
    wanted = (case.generator.random(len(lines.starts)) < 0.9).view(np.uint8)
    out = np.zeros(len(lines.starts), np.int64)
    return [lines.starts, lines.lengths, wanted, case.data, mark_table(), sign_table(), abbreviation_table(), out]


def _expected(
    starts: np.ndarray, lengths: np.ndarray, wanted: np.ndarray, data: np.ndarray, *_: Any
) -> tuple[Any, Sequence[Any]]:
    lines = [data[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]
    return None, [[oracle.sentences(line) if asked else 0 for line, asked in zip(lines, wanted, strict=True)]]


ROWS = [Row(kernel=sentences.split_sentences, arguments=_arguments, oracle=_expected)]
