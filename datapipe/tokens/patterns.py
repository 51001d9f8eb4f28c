r"""Published patterns that split a text into words. A byte-level BPE merges within a word only.

                  gpt2             cl100k, llama3    qwen2              o200k
    It's          It 's            It 's             It 's              It's
    in 1234       in ·1234         in · 123 4        in · 1 2 3 4       in · 123 4
    theHTMLPage   theHTMLPage      theHTMLPage       theHTMLPage        the HTMLPage

Sources (2026-11):
  gpt2     openai/gpt-2, src/encoder.py
  cl100k   openai/tiktoken, `cl100k_base`, as first released; later releases write it with possessive quantifiers
  o200k    openai/tiktoken, `o200k_base`
  llama3   meta-llama/llama3, llama/tokenizer.py (`pat_str`): identical to cl100k
  qwen2    huggingface/transformers, tokenization_qwen2.py: cl100k with one digit per word (Qwen also normalizes to NFC)

Training cuts words by a kernel (`kernels/tokens/pretokens.py`) with a table of characters. The engine of `tokenizers` makes
the table, since Python's Unicode database has another version: half a second for each family and version, cached on the
machine. Only planes with assigned characters are asked for; characters of others are signs.
"""

from functools import lru_cache

import numpy as np
import tokenizers
from tokenizers import Regex, pre_tokenizers

from datapipe.errors import UserError, suggest
from datapipe.kernels.tokens.pretokens import CL100K, GPT2, LETTER, LOWER, NEWLINE, NUMBER, O200K, SIGN, SPACE, cut_words
from datapipe.machine.cache import cache_home, cached

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PATTERNS: dict[str, str] = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": _CL100K,
    "o200k": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "llama3": _CL100K,
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""The regular expression of each pattern."""


def splitter(pattern: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a pattern. Raises UserError for an unknown name."""
    if pattern not in PATTERNS:
        raise UserError(
            f"pattern: unknown pattern {pattern!r}.{suggest(pattern, PATTERNS)} Expected one of: {', '.join(PATTERNS)}."
        )
    split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def cut(pattern: str, offsets: np.ndarray, data: np.ndarray, ends: np.ndarray) -> int:
    """Writes the end of each word, by a pattern of `PATTERNS`, into `ends` (num_bytes,), ascending; returns their number."""
    family = {"gpt2": GPT2, "o200k": O200K}.get(pattern, CL100K)
    return cut_words(offsets, data, class_table(family), family, 1 if pattern == "qwen2" else 3, ends)


NUM_CODES = 0x110000
_ASKED = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))

_WORDS = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s", SIGN: r"[^\s\p{L}\p{N}]"}
_LINES = {**_WORDS, NEWLINE: r"[\r\n]"}
_CASES = {LETTER: r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", LOWER: r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"}
FAMILIES: dict[int, dict[int, str]] = {GPT2: _WORDS, CL100K: _LINES, O200K: {**_LINES, **_CASES}}
"""The expressions of the characters that have each bit (`datapipe/kernels/tokens/pretokens.py`), by family."""


@lru_cache(maxsize=len(FAMILIES))
def class_table(family: int) -> np.ndarray:
    """The bits of every code point: (0x110000,) uint8. Cached on disk."""
    path = cache_home() / "characters" / f"characters-of-family-{family}-tokenizers{tokenizers.__version__}.bin"
    return cached(path, lambda: ask_engine(family, _ASKED).tobytes(), lambda data: np.frombuffer(data, np.uint8))


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
