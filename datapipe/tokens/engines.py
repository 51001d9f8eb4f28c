"""The two libraries that encode: fastokens, and Hugging Face `tokenizers`, which is the reference.

    texts (list of str) ── Fastokens ──▶ two buffers: ids, offsets         20 to 160 times as fast, where proved (`proof.py`)
                        └─ Reference ──▶ an `Encoding` a text ──▶ ids        everywhere else

Text goes in as `str`, since neither library takes bytes. fastokens 0.3.5 starts threads beside
rayon's unless FASTOKENS_BPE_THREADS is 1; with one thread its cache of words takes at most 130 MB,
whatever the text (2026-11). Both libraries raise panics of Rust as a BaseException that cannot be
imported. A panic may leave locks of fastokens poisoned, so it is loaded again.
"""

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, repeat
from operator import contains
from typing import Any

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from datapipe.errors import EncodingError
from datapipe.machine.libraries import installed_version
from datapipe.tokens.patterns import splitter

FASTOKENS, TOKENIZERS = "fastokens", "tokenizers"

_LONG_S = "'ſ"
"""`'s` in another case for Unicode, so `(?i:'s)` of cl100k and o200k matches it; fastokens 0.3.5 takes it for the beginning
of a word. No other text of 60,000 hard ones was split in another way (2026-11)."""

_FILLED_IDS = 1 << 18
"""fastokens loads as many in a second or two, whatever the number of tokens (2026-11)."""

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read at each call; also silences the warning after a fork
os.environ.update(RAYON_NUM_THREADS="1", FASTOKENS_BPE_THREADS="1")  # read at the first call of fastokens


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of Rust."""
    return type(error).__name__ == "PanicException"


@contextmanager
def _failing(library: str, what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, MemoryError) or not (isinstance(error, Exception) or is_panic(error)):
            raise
        kind = "panic: " if is_panic(error) else ""
        raise EncodingError(f"{library} {installed_version(library)} cannot {what}: {kind}{error}") from error


class Reference:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids (num_ids,) uint32, and number by text (num_texts,) int64. Raises EncodingError."""
        with _failing(TOKENIZERS, "encode a text"):
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        return np.fromiter(ids, np.uint32, int(lengths.sum())), lengths


class Fastokens:
    """Encodes by fastokens, which reads the file as `tokenizers` writes it: with the ids that added tokens have there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._source, self._reference = tokenizer, Reference(tokenizer)
        self._loaded: Any = None

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Reference.encode`, which gets the texts that hold `_LONG_S`; also for a tokenizer that fastokens refuses."""
        if not any(map(contains, texts, repeat(_LONG_S))):
            return self._encode(texts)
        groups = groupby(texts, lambda text: _LONG_S in text)
        encoded = [(self._reference.encode if is_held else self._encode)([*group]) for is_held, group in groups]
        return np.concatenate([ids for ids, _ in encoded]), np.concatenate([lengths for _, lengths in encoded])

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self._loaded is None:
            self._loaded = self._load()
        try:
            with _failing(FASTOKENS, "encode a text"):
                ids, offsets = self._loaded.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        except EncodingError:
            self._loaded = None
            raise
        return np.frombuffer(ids, np.uint32), np.diff(np.frombuffer(offsets, np.uint64)).astype(np.int64)

    def _load(self) -> Any:
        with _failing(FASTOKENS, "load the tokenizer"):
            import fastokens

            written = splitter("gpt2").__getstate__().decode()  # as trained tokenizers have it; no string holds its quotes
            known = pre_tokenizers.ByteLevel(add_prefix_space=False).__getstate__().decode()  # the same, four times as fast
            return fastokens.Tokenizer.from_json_str(_without_gaps(self._source).replace(written, known, 1))


def _without_gaps(tokenizer: Tokenizer) -> str:
    """The file of a tokenizer with a token for every id below the largest: fastokens refuses vocabularies with gaps, as
    that of cl100k. The new names hold 128 random bits, so no text is encoded to them. Raises EncodingError for more gaps
    than tokens in a large vocabulary, whose largest id would set the time and the memory."""
    file = tokenizer.to_str()
    taken = {*tokenizer.get_vocab(with_added_tokens=False).values()}
    largest = max(taken, default=0)
    if largest > max(2 * len(taken), _FILLED_IDS):
        raise EncodingError(f"its {len(taken)} ids go up to {largest}, and more than half of those below have no token")
    gaps = {*range(largest)} - taken
    if not gaps:
        return file
    settings, name = json.loads(file), secrets.token_hex(16)
    if isinstance(settings["model"]["vocab"], dict):
        settings["model"]["vocab"] |= {f"{name} {number}": number for number in gaps}
    return json.dumps(settings, ensure_ascii=False, separators=(",", ":"))  # as `tokenizers` writes, for `_load` to find
