"""Whether fastokens gives the ids of `tokenizers` for a tokenizer: both encode a battery of texts, once a machine.

    Unicode, runs, long words, random strings ─┐              ┌─ equal ids ──▶ fastokens encodes
    entries that look like control tokens ─────┼─▶ both ──────┤
    words of the vocabulary ───────────────────┘              └─ a difference, a refusal or a panic ──▶ `tokenizers` encodes

The choice belongs to the fingerprint of the task that encodes. The battery takes four seconds of CPU for a vocabulary of
50,000, most of them in `tokenizers`, on two threads, since all encoding waits for it. Its result is cached on the machine.
Differences that it finds (0.3.5, 2026-11): tokens in text in spite of `split_special_tokens` in a BPE without pre-tokenizer,
possessive repetitions, two added tokens of one content.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from random import Random
from typing import Any

import numpy as np
import xxhash
from pydantic import TypeAdapter
from tokenizers import Tokenizer

from datapipe.dataclass import dataclass
from datapipe.errors import EncodingError
from datapipe.machine.cache import cache_home, cached
from datapipe.machine.libraries import installed_version
from datapipe.machine.memory import without_collection
from datapipe.tokens.engines import FASTOKENS, TOKENIZERS, Fastokens, Reference
from datapipe.tokens.vocabulary import is_in_brackets, pieces_of

BATTERY = 4  # raise it when the texts change: results that are kept name it
_MOST_STRINGS, _STRINGS_PER_PIECE = 100_000, 20
_PIECES = 5  # most pieces of a random string
_SLICE_TEXTS = 4_096
_SHOWN_CHARS = 60
_THREADS = 2  # of `tokenizers`, which lets go of the interpreter while it encodes

_SIGNS = (
    "abstmdlrveSTMDLRVE''’0123456789½٣ⅷ!.,;:/-_#$%&()[]{}<>=+*^~|\"@?…—。«€éßÅжЖǅʰªאب中日一龥かカ・ー々𠀀\0\x7f\ufffd\ue000"
)
_SPACES = " |  |   |\n|\r\n|\n\n|\t| \n|\n |\xa0|\u2003|\u2028|\u3000|\x85|\x0b|\x1c"
_WORDS = "'s|'S|'re|'LL|'ve|'ſ|12|123|1234|//|/\n|!\r\n|</|<0x0A>|▁|Ġ|the| the| word|ALLCAPS|camelCase|HTTPServer|naïveté"
_CLUSTERS = "e\u0301|\u0327|न\u094d|ำ|\u200d|\u200b|\ufeff|\xad|😀|👩\u200d👧|🇫🇷|1\ufe0f\u20e3|\u0378|\U0010ffff"
_ATOMS = (*_SIGNS, *_SPACES.split("|"), *_WORDS.split("|"), *_CLUSTERS.split("|"), "<|", "|>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which library encodes with a tokenizer: its version in the proof, the digest of the texts,
    and why fastokens does not encode; "" where it does."""

    library: str
    version: str
    battery: str
    reason: str = ""

    @property
    def words(self) -> str:
        """ "fastokens 0.3.5 encodes the text", or what does and why."""
        why = f", 20 to 160 times slower than fastokens: {self.reason}" if self.reason else ""
        return f"{self.library} {self.version} encodes the text{why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """A choice, and how fast the library of its choice encoded the battery, in MB of text a second."""

    choice: Choice
    mb_per_s: float


_KEPT = TypeAdapter(Proof)


def proved(identity: bytes, settings: dict[str, Any], tokenizer: Tokenizer) -> Proof:
    """The proof of a tokenizer: that of the machine's cache, or a new one. `identity`: all that decides how
    it encodes. `settings`: the parsed tokenizer.json, with the names that control tokens have there."""
    versions = {library: installed_version(library) for library in (FASTOKENS, TOKENIZERS)}
    key = xxhash.xxh3_128_hexdigest(identity + json.dumps([BATTERY, versions]).encode())
    path = cache_home() / "encoders" / f"{key}.json"
    return cached(path, lambda: _KEPT.dump_json(_prove([*battery(settings)], tokenizer)), _KEPT.validate_json)


@without_collection()  # it makes an object for each text, and no garbage
def _prove(texts: Sequence[str], tokenizer: Tokenizer) -> Proof:
    digest = xxhash.xxh3_128_hexdigest("\0".join(texts).encode())
    reference = Reference(tokenizer)
    parts = [texts[start : start + _SLICE_TEXTS] for start in range(0, len(texts), _SLICE_TEXTS)]
    pool = ThreadPoolExecutor(_THREADS)
    try:
        fast = Fastokens(tokenizer)
        expected = pool.map(reference.encode, parts)
        differences = (_difference(part, right, fast.encode(part)) for part, right in zip(parts, expected))
        reason = next(filter(None, differences), "")
        engine = reference if reason else fast
    except EncodingError as error:
        engine, reason = reference, str(error)
    finally:
        pool.shutdown(cancel_futures=True)
    library = TOKENIZERS if reason else FASTOKENS
    choice = Choice(library=library, version=installed_version(library), battery=digest, reason=reason)
    return Proof(choice=choice, mb_per_s=_rate(engine, texts[-_SLICE_TEXTS:]))


def _rate(engine: Reference | Fastokens, texts: Sequence[str]) -> float:
    """Megabytes of text a second of CPU; 0 where the library fails."""
    started = time.thread_time()
    try:
        engine.encode(texts)
    except EncodingError:
        return 0.0
    return sum(len(text.encode()) for text in texts) / 1e6 / max(time.thread_time() - started, 1e-6)


Encoded = tuple[np.ndarray, np.ndarray]


def _difference(texts: Sequence[str], expected: Encoded, actual: Encoded) -> str:
    """What differs first between the ids of the same texts; "" for nothing."""
    if all(map(np.array_equal, expected, actual)):
        return ""
    for text, right, wrong in zip(texts, _by_text(expected), _by_text(actual)):
        if not np.array_equal(right, wrong):
            shown = ascii(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
            ids = [f"{part.tolist()[:8]}{' …' if len(part) > 8 else ''}" for part in (wrong, right)]
            return f"it encodes {shown} to {ids[0]}, and `tokenizers` to {ids[1]}"
    raise AssertionError("equal texts of unequal arrays")


def _by_text(encoded: Encoded) -> list[np.ndarray]:
    ids, lengths = encoded
    return np.split(ids, np.cumsum(lengths)[:-1])


def battery(settings: dict[str, Any]) -> Iterator[str]:
    """The texts of the proof of a parsed tokenizer.json: a function of its vocabulary and its added tokens."""
    added = [token["content"] for token in settings.get("added_tokens") or ()]
    pieces = pieces_of(settings["model"])
    yield from _around_text(dict.fromkeys([*added, *filter(is_in_brackets, pieces)]))
    yield from _runs()
    yield from _unicode()
    yield from _random_strings([_as_text(piece) for piece in pieces])


def _around_text(tokens: dict[str, None]) -> Iterator[str]:
    return chain.from_iterable((token, f" {token}", f"word{token}word", f"{token}{token} \n{token}") for token in tokens)


def _runs() -> Iterator[str]:
    for unit in (*" \n\t01!=-'aAé漢\u0301\u3000", "\r\n", "ab", "a b", "/\n"):
        for length in (*range(2, 18), *(power + step for power in (32, 64, 128, 256) for step in (-1, 0, 1)), 1000):
            yield from (unit * length, f"a{unit * length}b")
    for unit, length in (("a", 30_000), ("ab", 20_000), ("é漢", 5_000), (" ", 5_000), ("\n", 5_000), ("1", 5_000)):
        yield unit * length


def _unicode() -> Iterator[str]:
    """Every code point below U+20000, by 32; planes of ideographs and tags; one in 61 of others."""
    blocks = [(range(0x20000), 32), (range(0x20000, 0x40000), 128), (range(0xE0000, 0xE1000), 32)]
    blocks += [(range(0x40000, 0xE0000, 61), 16), (range(0xE1000, 0x110000, 61), 16)]
    for codes, size in blocks:
        for start in range(0, len(codes), size):
            yield "".join(chr(code) for code in codes[start : start + size] if not 0xD800 <= code < 0xE000)


def _random_strings(pieces: Sequence[str]) -> Iterator[str]:
    """Strings of atoms and of pieces of the vocabulary, half of each: 100,000, and less for less than 5,000 pieces."""
    random = Random(BATTERY)
    count = min(_MOST_STRINGS, _STRINGS_PER_PIECE * len(pieces))
    drawn = [random.choices(group, k=count * _PIECES) for group in (_ATOMS, pieces or _ATOMS)]
    choices = random.choices((0, 1), k=count * _PIECES)
    mixed = [drawn[choice][number] for number, choice in enumerate(choices)]
    for number, length in enumerate(random.choices(range(1, _PIECES + 1), k=count)):
        yield "".join(mixed[number * _PIECES : number * _PIECES + length])


def _as_text(piece: str) -> str:
    return piece.replace("Ġ", " ").replace("Ċ", "\n").replace("▁", " ").replace("##", "")
