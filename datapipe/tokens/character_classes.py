"""The Unicode class of each character, as the regular expression engine of `tokenizers` defines it.

    every code point  ── Split at borders of classes ──▶ runs ── first character of each run, class by class ──▶ classes
    classes ── family ──▶ the table that its kernel reads (`datapipe/kernels/tokens/pretokens.py`)

Python's Unicode database has another version than the engine's, so this module queries the engine. The query takes 0.4 s for
each version of `tokenizers` on a machine; the result is cached beside the compiled kernels. The query covers only planes with
assigned characters; no class contains others (a slow test checks this).
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import numpy as np
import tokenizers
from tokenizers import Regex, pre_tokenizers

from datapipe.kernels.tokens.pretokens import LETTER, LOWER, NEWLINE, NUMBER, SIGN, SPACE
from datapipe.machine_cache import cache_home, read_checked, write_checked

NUM_CODES = 0x110000
_ASKED = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))

CLASSES = (r"\p{Lu}", r"\p{Lt}", r"\p{Ll}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\s")
"""No character is in two classes. The first five make up \\p{L}."""

_LU, _LT, _LL, _LM, _LO, _MARKS, _NUMBERS, _WHITE = (1 << bit for bit in range(len(CLASSES)))
_LETTERS = _LU | _LT | _LL | _LM | _LO


@lru_cache(maxsize=1)
def engine_classes() -> np.ndarray:
    """The classes of every code point, bit i for `CLASSES[i]`: (0x110000,) uint8. Cached on disk."""
    cached = cache_home() / f"character-classes-3-tokenizers{tokenizers.__version__}.bin"
    data = read_checked(cached)
    if data is None:
        data = ask_engine(_ASKED).tobytes()
        with suppress(OSError):  # a cache that cannot be written: each process asks
            write_checked(cached, data)
    return np.frombuffer(data, np.uint8)


def ask_engine(asked: tuple[range, ...]) -> np.ndarray:
    """The classes of the code points in `asked`, which contains no surrogates; 0 for all others."""
    codes = np.concatenate([np.arange(part.start, part.stop) for part in asked])
    text = codes.astype("<u4").tobytes().decode("utf-32-le")
    table = np.zeros(NUM_CODES, np.uint8)
    borders = pre_tokenizers.Split(Regex("|".join(f"{name}+" for name in CLASSES)), "isolated")
    starts = _starts(borders, text)
    heads = "".join(text[start] for start in starts)
    lengths = np.diff([*starts, len(text)])
    for bit, name in enumerate(CLASSES):
        matches = pre_tokenizers.Split(Regex(name), "removed", invert=True).pre_tokenize_str(heads)
        is_member = np.zeros(len(heads), bool)
        is_member[[start for _, (start, _) in matches]] = True
        table[codes[np.repeat(is_member, lengths)]] |= 1 << bit
    return table


def _starts(step: pre_tokenizers.PreTokenizer, text: str) -> list[int]:
    return [start for _, (start, _) in step.pre_tokenize_str(text)]


@lru_cache(maxsize=1)
def gpt2_table() -> np.ndarray:
    """The table of `cut_gpt2`."""
    return _frozen(_table([(_LETTERS, LETTER), (_NUMBERS, NUMBER), (_WHITE, SPACE)]))


@lru_cache(maxsize=1)
def cl100k_table() -> np.ndarray:
    """The table of `cut_cl100k`."""
    return _frozen(_with_newlines(gpt2_table().copy()))


@lru_cache(maxsize=1)
def o200k_table() -> np.ndarray:
    """The table of `cut_o200k`."""
    any_case = LETTER | LOWER
    letters = [(_LU | _LT, LETTER), (_LL, LOWER), (_LM | _LO, any_case), (_MARKS, any_case | SIGN)]
    kinds = [*letters, (_NUMBERS, NUMBER), (_WHITE, SPACE)]
    return _frozen(_with_newlines(_table(kinds)))


def _table(kinds: list[tuple[int, int]]) -> np.ndarray:
    """(0x110000,) uint8: the bits of the kinds that a character belongs to; SIGN for none."""
    bits_of = np.full(1 << len(CLASSES), SIGN, np.uint8)
    for combination in range(len(bits_of)):
        for classes, bits in kinds:
            if combination & classes:
                bits_of[combination] = bits
    return bits_of[engine_classes()]


def _with_newlines(table: np.ndarray) -> np.ndarray:
    table[[ord("\n"), ord("\r")]] |= NEWLINE
    return table


def _frozen(table: np.ndarray) -> np.ndarray:
    table.flags.writeable = False
    return table
