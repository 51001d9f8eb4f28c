"""What each character is to the kernels that split texts into words, as the regular expression engine of `tokenizers` has it.

    every code point  ── Split by the expression of each bit ──▶ runs of matches ──▶ the table of a family of patterns

Python's Unicode database has another version than the engine's, so this module queries the engine. The query takes half a
second for each family and version of `tokenizers` on a machine; the result is cached beside the compiled kernels. The query
covers only planes with assigned characters; characters of others are signs (a slow test checks this).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

import numpy as np
import tokenizers
from tokenizers import Regex, pre_tokenizers

from datapipe.kernels.tokens.pretokens import CL100K, GPT2, LETTER, LOWER, NEWLINE, NUMBER, O200K, SIGN, SPACE
from datapipe.machine_cache import cache_home, read_checked, write_checked

NUM_CODES = 0x110000
_ASKED = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))

_WORDS = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s", SIGN: r"[^\s\p{L}\p{N}]"}
_LINES = {**_WORDS, NEWLINE: r"[\r\n]"}
_CASES = {LETTER: r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", LOWER: r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"}
FAMILIES: Mapping[int, Mapping[int, str]] = {GPT2: _WORDS, CL100K: _LINES, O200K: {**_LINES, **_CASES}}
"""The expressions of the characters that have each bit (`datapipe/kernels/tokens/pretokens.py`), by family."""


@lru_cache(maxsize=len(FAMILIES))
def class_table(family: int) -> np.ndarray:
    """The bits of every code point: (0x110000,) uint8. Cached on disk."""
    cached = cache_home() / f"characters-of-family-{family}-tokenizers{tokenizers.__version__}.bin"
    data = read_checked(cached)
    if data is None:
        data = ask_engine(family, _ASKED).tobytes()
        with suppress(OSError):  # a cache that cannot be written: each process asks
            write_checked(cached, data)
    return np.frombuffer(data, np.uint8)


def ask_engine(family: int, asked: tuple[range, ...]) -> np.ndarray:
    """The bits of the code points in `asked`, which contains no surrogates; SIGN for all others."""
    codes = np.concatenate([np.arange(part.start, part.stop) for part in asked])
    text = codes.astype("<u4").tobytes().decode("utf-32-le")
    table = np.full(NUM_CODES, SIGN, np.uint8)
    table[codes] = 0
    for bit, expression in FAMILIES[family].items():
        matches = pre_tokenizers.Split(Regex(f"{expression}+"), "removed", invert=True).pre_tokenize_str(text)
        for _, (start, stop) in matches:
            table[codes[start:stop]] |= bit
    return table
