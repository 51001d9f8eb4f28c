"""Converts tiktoken rank files to tokenizer.json, with the same ids.

    IHRoZQ== 279        a line: a token in base64, and its rank, which is also its id
    ranks + pattern + special tokens  ─▶  vocabulary, merges  ─▶  tokenizer.json

tiktoken merges the two neighbours whose union has the lowest rank; a tokenizer.json lists merges in order. The conversion
lists every split of a token into two other tokens by the rank of the token, as Hugging Face's converter does. A word of the
vocabulary becomes its token without merges (`ignore_merges`).

A rank file has no pattern and no special tokens. `KNOWN` has both for OpenAI's files, by the
SHA-256 that tiktoken pins; the mixture gives them for other files.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.tokens.encoder import LARGEST_VOCABULARY
from datapipe.tokens.patterns import splitter
from datapipe.tokens.vocabulary import byte_alphabet

_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?(?:\n|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    pattern: str
    special_tokens: Mapping[str, int]


KNOWN: dict[str, Encoding] = {
    # cl100k_base
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": Encoding(
        pattern="cl100k",
        special_tokens={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    # o200k_base
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": Encoding(
        pattern="o200k", special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    ),
    # r50k_base, the ranks of GPT-2
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": Encoding(
        pattern="gpt2", special_tokens={"<|endoftext|>": 50256}
    ),
}
"""By the SHA-256 of the file: openai/tiktoken, tiktoken_ext/openai_public.py (0.14)."""


def is_rank_file(content: bytes) -> bool:
    return _FIRST_LINE.match(content) is not None


def convert(content: bytes, pattern: str | None = None, special_tokens: Mapping[str, int] | None = None) -> bytes:
    """The tokenizer.json of a rank file; `pattern`, a name of `PATTERNS`, and the ids of special tokens are optional for files
    in `KNOWN`. Raises UserError for damaged files, colliding tokens, and unknown files without both."""
    known = KNOWN.get(hashlib.sha256(content).hexdigest())
    pattern = pattern or (known.pattern if known else None)
    special = special_tokens or (known.special_tokens if known else None)
    if pattern is None or special is None:
        missing = " and ".join(
            f"`{name}`" for name, value in (("pattern", pattern), ("special_tokens", special)) if value is None
        )
        raise UserError(
            f"found a tiktoken rank file that is not one of OpenAI's. Give {missing} beside its path, such as "
            f"`pattern: cl100k` and `special_tokens: {{'<|endoftext|>': 100257}}`"
        )
    ranks = _ranks(content)
    words = splitter(pattern)
    for token, number in special.items():
        if len(words.pre_tokenize_str(token)) < 2:  # text could contain a token that is a whole word
            raise UserError(f"special_tokens: found {token!r}, a word that text may hold, expected brackets as in '<|end|>'")
        if not 0 <= number < LARGEST_VOCABULARY:
            raise UserError(f"special_tokens: {token!r} has id {number}, expected 0 to {LARGEST_VOCABULARY - 1}")
        if number in ranks.values() or list(special.values()).count(number) > 1:
            raise UserError(
                f"special_tokens: {token!r} has id {number}, which is the id of another token. Expected a unique id"
            )
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    names = {token: "".join(map(letters.__getitem__, token)) for token in ranks}
    vocabulary = {names[token]: rank for token, rank in ranks.items()} | dict(special)
    merges = [(names[left], names[right]) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer.to_str().encode()


def _ranks(content: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        try:
            word, digits = line.split()
            token, rank = base64.b64decode(word, validate=True), int(digits)
        except (ValueError, binascii.Error):
            raise UserError(
                f"line {number}: found {line[:40]!r}, expected a token in base64 and its rank. Is the file complete?"
            ) from None
        if not 0 <= rank < LARGEST_VOCABULARY or token in ranks:
            problem = f"has rank {ranks[token]} too" if token in ranks else f"expected ranks of 0 to {LARGEST_VOCABULARY - 1}"
            raise UserError(f"line {number}: {line[:40]!r}: {problem}. Expected a rank file of tiktoken")
        ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise UserError("two tokens have the same rank. Expected a rank file of tiktoken")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise UserError(f"{len(missing)} of the 256 bytes have no rank, such as {missing[0]:#04x}. Is the file complete?")
    return ranks


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every pair of tokens whose union is a token, ordered by the ranks of the union, the left and the right token."""
    pairs = [
        (rank, ranks[token[:cut]], ranks[token[cut:]], token, cut)
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    return [(token[:cut], token[cut:]) for _, _, _, token, cut in sorted(pairs)]
