"""The regular expressions of published byte-level tokenizers, with the kernel and flags that split text in the same way.

An expression is recognised by its exact text, so every spelling of an expression has an entry. The tests compare each entry
with the engine of `tokenizers`, which is Oniguruma. Some spellings mean something else in tiktoken: `\\p{N}{1,3}+` is
possessive there, and a repetition that takes any number of digits in Oniguruma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from datapipe.kernels.tokens.pretokens import cut_cl100k, cut_deepseek, cut_gpt2, cut_o200k
from datapipe.tokens.character_classes import cl100k_table, deepseek_table, gpt2_table, o200k_table

Family = Literal["gpt2", "cl100k", "o200k", "deepseek"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    """The differences between the members of a family; see the kernels.

    Attributes:
        longest_number: most digits in a pre-token; 0 for no limit. gpt2: counts only with `numbers_apart`.
        numbers_apart: digits are split off before the expression is applied.
        marks_are_letters: cl100k: the expression has `[\\p{L}\\p{M}]` instead of `\\p{L}`.
        whole_tail: cl100k: white space at the end of a text is one pre-token.
        contractions: o200k: a word includes the contraction that follows it.
    """

    longest_number: int = 0
    numbers_apart: bool = False
    marks_are_letters: bool = False
    whole_tail: bool = False
    contractions: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Splits texts into pre-tokens. Merges stay within a pre-token."""

    family: Family
    flags: Flags

    def cut(self, offsets: np.ndarray, data: np.ndarray, ends: np.ndarray) -> int:
        """Writes the end of each pre-token and returns their number.

        Args:
            offsets: (num_docs + 1,) int64.
            data: (num_bytes,) uint8, UTF-8.
            ends: (num_bytes,) int64 output: ascending offsets in `data`.
        """
        flags = self.flags
        if self.family == "gpt2":
            return cut_gpt2(offsets, data, gpt2_table(flags.numbers_apart), flags.longest_number, ends)
        if self.family == "cl100k":
            table = cl100k_table(flags.marks_are_letters, flags.numbers_apart)
            return cut_cl100k(offsets, data, table, flags.longest_number, flags.whole_tail, ends)
        if self.family == "o200k":
            return cut_o200k(offsets, data, o200k_table(), flags.longest_number, flags.contractions, ends)
        return cut_deepseek(offsets, data, deepseek_table(), ends)


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
R50K_EARLIER = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
THREES = r"\p{N}{1,3}"
HAN_RUNS = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
CL100K_TIKTOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
QWEN35 = rf"{_WORDS}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cl100k(numbers: str) -> str:
    return rf"{_WORDS}|{_BEFORE}\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _gpt4(numbers: str) -> str:
    return (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|"
        rf"{numbers}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    )


def _o200k(contraction: str, numbers: str) -> str:
    words = rf"{_BEFORE}{_UPPER}*{_LOWER}+{contraction}|{_BEFORE}{_UPPER}+{_LOWER}*{contraction}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


DIGITS = "<digits one by one>"
"""The entry for a `Digits` pre-tokenizer with `individual_digits` in a sequence of expressions."""


def _gpt2(longest_number: int = 0, numbers_apart: bool = False) -> Pattern:
    return Pattern(family="gpt2", flags=Flags(longest_number=longest_number, numbers_apart=numbers_apart))


def _like_cl100k(longest_number: int, **others: bool) -> Pattern:
    return Pattern(family="cl100k", flags=Flags(longest_number=longest_number, **others))


def _like_o200k(longest_number: int, contractions: bool) -> Pattern:
    return Pattern(family="o200k", flags=Flags(longest_number=longest_number, contractions=contractions))


PATTERNS: dict[tuple[str, ...], Pattern] = {
    (GPT2,): _gpt2(),  # GPT-2, GPT-NeoX, Pythia, OLMo 1, RoBERTa, OPT, Phi 1 and 2
    (R50K,): _gpt2(),  # tiktoken's r50k_base since 0.9
    (R50K_EARLIER,): _gpt2(),  # tiktoken's r50k_base and p50k_base before
    (DIGITS, GPT2): _gpt2(longest_number=1, numbers_apart=True),  # StarCoder 1 and 2, SmolLM 1 and 2
    (_cl100k(r"\p{N}{1,3}"),): _like_cl100k(3),  # GPT-4 (Xenova/gpt-4), Llama 3, OLMo 2 (dolma2-tokenizer), SmolLM 3, GLM 4
    (_cl100k(r"\p{N}"),): _like_cl100k(1),  # Qwen 1.5, 2, 2.5 and 3, StableLM 2
    (THREES, _cl100k(r"\p{N}+")): _like_cl100k(3, numbers_apart=True),  # MiniCPM 5
    (QWEN35,): _like_cl100k(1, marks_are_letters=True),  # Qwen 3.5
    (_gpt4(r"\p{N}{1,3}"),): _like_cl100k(3),  # minbpe's GPT-4 split
    (_gpt4(r"\p{N}{1,2}"),): _like_cl100k(2),  # nanochat
    (_gpt4(r"\p{N}"),): _like_cl100k(1),  # LLaDA
    (CL100K_TIKTOKEN,): _like_cl100k(0, whole_tail=True),  # tiktoken's cl100k_base since 0.9
    (_o200k(_WORDS + "?", r"\p{N}{1,3}"),): _like_o200k(3, contractions=True),  # GPT-4o, gpt-oss, Llama 4, MiniMax M2
    (_o200k("", r"\p{N}"),): _like_o200k(1, contractions=False),  # Mistral NeMo and after (tekken), Nemotron 3
    (THREES, HAN_RUNS, DEEPSEEK): Pattern(family="deepseek", flags=Flags(longest_number=3)),  # DeepSeek V3, R1 and after
}
"""The pattern of each sequence of expressions, which split a text one after the other."""

PARTIAL = frozenset({DIGITS, THREES, HAN_RUNS, DEEPSEEK})
"""Expressions whose matches do not cover the whole text. For all others "Isolated" and the inverse of "Removed" split
equally."""
