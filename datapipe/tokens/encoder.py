"""Encodes text with any tokenizer.json. The ids equal those of Hugging Face tokenizers.

    texts (num_docs,) ── slices of about 2 MB, as str ── fastokens or `tokenizers` ──▶ ids, offsets (num_docs + 1,)

Which of the two encodes is proved once for each tokenizer (`proof.py`). The encoder adds no special token and encodes the
spelling of a special token as text: data cannot end a document. It refuses a tokenizer that has no token for some text
(`vocabulary.py` does both), and switches off truncation, padding and dropout. Memory: a slice, or a longer document, and
the bounded cache of fastokens (`engines.py`). Calls use one thread, but for the proof: the engines are the only parallelism.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from datapipe import columns
from datapipe.errors import EncodingError, UserError, suggest
from datapipe.machine.libraries import installed_version
from datapipe.records.checksum import bytes_checksum
from datapipe.shards.schemas import token_type
from datapipe.tokens.engines import FASTOKENS, Fastokens, Reference, is_panic
from datapipe.tokens.proof import Choice, Proof, proved
from datapipe.tokens.vocabulary import (
    added_around,
    composes,
    is_control,
    is_in_brackets,
    puts_a_space,
    puts_first_space,
    spells_bytes,
    token_bytes,
    unknown_id,
    unspellable,
    untokenized,
    with_no_first_space,
)

TOKENIZER = "tokenizer.json"

SLICE_BYTES = 2 << 20  # bytes of text per call of a library
LARGEST_VOCABULARY = 1 << 24
"""Limit of ids, since tables by id take memory in every worker. Published vocabularies have less
than 2^19 (2026-11)."""

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Well-known names of end-of-text tokens. The first one that is a special token of the tokenizer is used."""

LARGEST_FILE = 1 << 30  # Bytes. Published files have less than 40 million (2026-11).
_DOES = {"eos": "end", "bos": "begin"}


class Encoder:
    """A tokenizer with its end-of-text token.

    Attributes:
        vocab_size: ids are 0 to vocab_size - 1, including added tokens.
        eos_token, eos_id: the token that ends every document, which `encode` does not append.
        bos_token, bos_id: the token that begins every document, which `encode` does not put there; None for none.
        added_tokens: ids of the added tokens by name.
        control_tokens: those of them that text never becomes, special or in brackets.
        unknown_id: the id of text without a token; None where all text has tokens.
        token_bytes: the bytes of text that each id stands for, (vocab_size,) int32; None where ids do not spell bytes.
        composes: whether they are the bytes of text in NFC.
        adds: what the post-processor of the file would add to a text.
        id_type: uint16 or uint32; see `schemas.token_type`.
        fingerprint: checksum of `to_json()`, full width.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        eos: str | None = None,
        bos: str | None = None,
        choice: Choice | None = None,
    ) -> None:
        """`source`: path of a tokenizer.json or of its folder, or the content of the file. `eos`:
        by default the first special token with a well-known name (`END_OF_TEXT`). `choice`: the
        library that encodes; by default that of the proof, which the first use of `proof` or
        `encode` makes."""
        name, content = ("tokenizer", source) if isinstance(source, bytes) else (os.fspath(source), _read(source))
        settings = _settings(name, content)
        self._json = _canonical(name, settings)
        tokenizer = load_tokenizer(name, self._json)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.eos_token = _end_of_text(name, settings, vocabulary, eos)
        self.eos_id = vocabulary[self.eos_token]
        self.bos_token = bos
        self.bos_id = None if bos is None else _begin_of_text(name, settings, vocabulary, bos, self.eos_token)
        self.vocab_size = _vocabulary_size(name, vocabulary)
        added = settings.get("added_tokens") or ()
        self.added_tokens = {each["content"]: vocabulary[each["content"]] for each in added}
        control = {each["content"] for each in added if is_control(each["content"], is_special=bool(each.get("special")))}
        self.control_tokens = {name: number for name, number in self.added_tokens.items() if name in control}
        self.unknown_id = self._unknown_id(name, settings, tokenizer)
        with _refusing(name):
            self.adds = added_around(tokenizer)
        named = [token for token in (self.eos_token, bos, *self.control_tokens) if token is not None and is_in_brackets(token)]
        encoding = unspellable(settings, tokenizer, named)
        self._tokenizer = tokenizer if encoding is settings else load_tokenizer(name, _canonical(name, encoding))
        self.id_type = token_type(self.vocab_size)
        self.fingerprint = bytes_checksum(self._json)
        with _refusing(name):
            decoded = [tokenizer.decode([number], skip_special_tokens=False) for number in self._markers.values()]
            self._without_markers(Reference(self._tokenizer).encode([*self._markers, *decoded])[0])
        self._choice = choice
        has_lengths = self.unknown_id is None and spells_bytes(settings)
        self.token_bytes = token_bytes(vocabulary, self.added_tokens, self.vocab_size) if has_lengths else None
        self.composes = composes(settings)
        self._puts_first_space = puts_first_space(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self._json, self.eos_token, self.bos_token, self._choice)

    @cached_property
    def proof(self) -> Proof:
        """Which library encodes; takes a few seconds where this machine has no proof of the tokenizer yet."""
        return proved("\0".join(self._markers).encode() + self._json, json.loads(self._json), self._tokenizer)

    @cached_property
    def _engine(self) -> Fastokens | Reference:
        choice = self._choice or self.proof.choice
        installed = installed_version(choice.library)
        if installed != choice.version:
            raise UserError(
                f"the tokenizer was proved with {choice.library} {choice.version}, and this process has {installed}, which may "
                f"give other ids. Install the same version on every machine, and run the same command again"
            )
        return (Fastokens if choice.library == FASTOKENS else Reference)(self._tokenizer)

    def load(self) -> None:
        """Loads the tokenizer of the library now; the first word would load it otherwise."""
        self._engine.encode(["a"])

    @cached_property
    def behind_tokens(self) -> Tokenizer | None:
        """The tokenizer of text behind a control token, where a space is put before the first text of a document alone; None
        where such text is encoded like any other."""
        if not self._puts_first_space:
            return None
        return load_tokenizer("tokenizer", json.dumps(with_no_first_space(json.loads(self._tokenizer.to_str()))).encode())

    @cached_property
    def puts_a_space_first(self) -> bool:
        """Whether the tokenizer puts a space before every text, also behind a control token."""
        return puts_a_space(self.behind_tokens or self._tokenizer)

    def spans(self, text: str, *, is_first: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The id, start and stop byte of each token of a text, (num_tokens,) int64 each: by `tokenizers`, slowly. `is_first`:
        whether no control token is before it."""
        tokenizer = self._tokenizer if is_first or self.behind_tokens is None else self.behind_tokens
        encoding = tokenizer.encode(text, add_special_tokens=False)
        pairs = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        sizes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ends = np.concatenate([[0], np.cumsum(1 + (sizes > 0x7F) + (sizes > 0x7FF) + (sizes > 0xFFFF))])
        return np.array(encoding.ids, np.int64), ends[pairs[:, 0]], ends[pairs[:, 1]]

    @property
    def _markers(self) -> dict[str, int]:
        begin = {} if self.bos_token is None or self.bos_id is None else {self.bos_token: self.bos_id}
        return {self.eos_token: self.eos_id} | begin

    def _unknown_id(self, name: str, settings: dict[str, Any], tokenizer: Tokenizer) -> int | None:
        unknown = unknown_id(settings["model"])
        with _refusing(name):
            lacks = untokenized(settings, tokenizer)
        if not lacks:
            return None
        if unknown is None:
            raise UserError(
                f"{name}: {lacks}, and there is no unknown token, so such text would be lost. Expected a token for every "
                f"byte, or an unknown token (`unk_token`, `unk_id`) that is in the vocabulary of the model"
            )
        for key, number in (("eos", self.eos_id), ("bos", self.bos_id)):
            if unknown == number:
                raise UserError(
                    f"{name}: {key}: the unknown token is {tokenizer.id_to_token(unknown)!r}, too, and {lacks}. A document "
                    f"could {_DOES[key]} anywhere. Expected a separate token as `{key}`"
                )
        return unknown

    def to_json(self) -> bytes:
        """The tokenizer.json in canonical form: equal tokenizers give equal bytes, whatever the spacing of the file."""
        return self._json

    def encode(self, texts: pa.Array, *, is_behind: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all texts, which have no nulls, (num_tokens,) uint16 or uint32, and offsets
        (num_docs + 1,) int64. Raises EncodingError where the library fails on a text. `is_behind`:
        whether the texts stand behind control tokens; see `behind_tokens`."""
        if texts.null_count:
            raise UserError(f"cannot encode: found {texts.null_count} null texts, expected strings. Drop or fill them")
        dtype = columns.dtype_of(self.id_type)
        ids, lengths = [np.zeros(0, dtype)], [np.zeros(1, np.int64)]
        engine = Reference(self.behind_tokens) if is_behind and self.behind_tokens is not None else self._engine
        for part in slices_of(columns.as_large_string(texts), SLICE_BYTES):
            slice_ids, num_tokens = engine.encode(_as_strings(part))
            ids.append(slice_ids.astype(dtype))
            lengths.append(num_tokens)
        return self._without_markers(np.concatenate(ids)), np.cumsum(np.concatenate(lengths))

    def _without_markers(self, ids: np.ndarray) -> np.ndarray:
        """The ids. Raises UserError if one of them begins or ends documents: those ids separate the documents of a shard."""
        for key, token, number in (("eos", self.eos_token, self.eos_id), ("bos", self.bos_token, self.bos_id)):
            if number is not None and np.any(ids == number):
                raise UserError(
                    f"{key}: the tokenizer encodes some text to {token!r}, so a document could {_DOES[key]} anywhere. Expected "
                    f"a special token that no text is encoded to"
                )
        return ids


def _as_strings(texts: pa.Array) -> list[str]:
    """The texts as objects, which both libraries take. Raises EncodingError for bytes that are not UTF-8."""
    try:
        return texts.to_pylist()
    except UnicodeDecodeError as error:
        raise EncodingError(f"cannot encode a text that is not UTF-8: {error}") from error


def slices_of(texts: pa.Array, limit_bytes: int) -> Iterator[pa.Array]:
    """Consecutive slices of `texts` of at most `limit_bytes`. A longer text is one slice."""
    offsets, _ = columns.text_buffers(texts)
    start = 0
    while start < len(texts):
        stop = max(int(np.searchsorted(offsets, offsets[start] + limit_bytes, "right")) - 1, start + 1)
        yield texts.slice(start, stop - start)
        start = stop


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(os.path.join(path, TOKENIZER) if os.path.isdir(path) else path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{os.fspath(path)}: {error.strerror}. Expected the path of a {TOKENIZER}, or of its folder") from error


def _settings(name: str, content: bytes) -> dict[str, Any]:
    """The parsed file without truncation, padding and dropout, which would lose or vary tokens."""
    if len(content) > LARGEST_FILE:
        raise UserError(f"{name}: found {len(content):,} bytes, expected a tokenizer.json of at most {LARGEST_FILE:,}")
    with _refusing(name):
        settings = json.loads(content)
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise UserError(f"{name}: found no `model`. Expected a tokenizer.json as Hugging Face tokenizers writes it")
    settings["truncation"] = settings["padding"] = None
    if settings["model"].get("dropout") is not None:
        settings["model"]["dropout"] = None
    return settings


def _canonical(name: str, settings: dict[str, Any]) -> bytes:
    with _refusing(name):
        return json.dumps(settings, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


def load_tokenizer(name: str, content: bytes) -> Tokenizer:
    """The tokenizer of a file. Raises UserError for one that `tokenizers` does not take."""
    with _refusing(name):
        tokenizer = Tokenizer.from_buffer(content)
        tokenizer.encode_special_tokens = True
        return tokenizer


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turns what `tokenizers` and `json` raise because of a file into UserError."""
    try:
        yield
    except BaseException as error:
        is_of_file = isinstance(error, ValueError | TypeError | RecursionError) or type(error) is Exception or is_panic(error)
        if not is_of_file:
            raise
        raise UserError(f"{name}: {error}. Expected a tokenizer.json as Hugging Face tokenizers writes it") from error


def _vocabulary_size(name: str, vocabulary: dict[str, int]) -> int:
    token = max(vocabulary, key=vocabulary.__getitem__)
    if vocabulary[token] >= LARGEST_VOCABULARY:
        raise UserError(f"{name}: {token!r} has id {vocabulary[token]}, expected ids below {LARGEST_VOCABULARY}")
    return vocabulary[token] + 1


def _end_of_text(name: str, settings: dict[str, Any], vocabulary: dict[str, int], eos: str | None) -> str:
    if eos is not None:
        if eos not in vocabulary:
            raise UserError(_no_token(name, "eos", settings, eos))
        return eos
    special = _special_tokens(settings)
    for known in END_OF_TEXT:
        if known in special and known in vocabulary:
            return known
    raise UserError(f"{name}: cannot infer the end-of-text token. Give `eos:`. Its special tokens: {sorted(special)[:20]}")


def _begin_of_text(name: str, settings: dict[str, Any], vocabulary: dict[str, int], bos: str, eos: str) -> int:
    if bos not in vocabulary:
        raise UserError(_no_token(name, "bos", settings, bos))
    if bos == eos:
        raise UserError(
            f"{name}: bos: {bos!r} is the end-of-text token, too, which already stands between documents. Leave `bos` out, or "
            f"give another token as `eos`"
        )
    return vocabulary[bos]


def _no_token(name: str, key: str, settings: dict[str, Any], token: str) -> str:
    special = sorted(_special_tokens(settings))
    return f"{name}: {key}: found no token {token!r}.{suggest(token, special)} Its special tokens: {special[:20]}"


def _special_tokens(settings: dict[str, Any]) -> list[str]:
    return [token["content"] for token in settings.get("added_tokens") or () if token.get("special")]
