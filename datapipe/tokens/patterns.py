r"""Published patterns that split a text into words. A byte-level BPE merges within a word only.

In a tokenizer.json a pattern is a `Split`, followed by a `ByteLevel` without a pattern:

                  gpt2             cl100k, llama3    qwen2              o200k
    It's          It 's            It 's             It 's              It's
    in 1234       in ·1234         in · 123 4        in · 1 2 3 4       in · 123 4
    theHTMLPage   theHTMLPage      theHTMLPage       theHTMLPage        the HTMLPage

Sources (2026-11):
  gpt2     openai/gpt-2, src/encoder.py; openai/tiktoken, tiktoken_ext/openai_public.py names it as the original of r50k
  cl100k   openai/tiktoken, `cl100k_base`, as first released; later releases write it with possessive quantifiers
  o200k    openai/tiktoken, `o200k_base`
  llama3   meta-llama/llama3, llama/tokenizer.py (`pat_str`): identical to cl100k
  qwen2    huggingface/transformers, models/qwen2/tokenization_qwen2.py: cl100k with one digit per word. Qwen's
           tokenizers also normalize text to NFC; the pattern alone does not.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Regex, pre_tokenizers

from datapipe.errors import UserError, suggest
from datapipe.kernels.tokens.pretokens import CL100K, GPT2, O200K, cut_words
from datapipe.tokens.character_classes import class_table

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
    """Writes the end of each word and returns their number.

    Args:
        pattern: a name of `PATTERNS`.
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8, UTF-8.
        ends: (num_bytes,) int64 output: ascending offsets in `data`.
    """
    family = {"gpt2": GPT2, "o200k": O200K}.get(pattern, CL100K)
    return cut_words(offsets, data, class_table(family), family, 1 if pattern == "qwen2" else 3, ends)
