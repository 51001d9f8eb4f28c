"""Encodes text with any tokenizer.json. The ids equal those of Hugging Face tokenizers.

    texts (num_docs,) ── chunks of about 1 MB ── slices of about 2 MB ── kernels or tokenizers ──▶ ids, offsets (num_docs + 1,)

The encoder adds no special token and encodes the spelling of a special token as text: data cannot end a document. It switches
off truncation, padding and dropout. Memory is bounded by a slice, since an `Encoding` takes about a hundred bytes per token;
a tokenizer that is not byte-level gets whole documents. Calls use one thread, because the engines are the only parallelism.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from datapipe import columns
from datapipe.errors import UserError, suggest
from datapipe.shards.checksum import bytes_checksum
from datapipe.shards.schemas import token_type
from datapipe.tokens.compiled import compiled_encoder
from datapipe.tokens.cuts import cut_long_texts

CHUNK_BYTES = 1 << 20
"""Longer documents are cut if the tokenizer allows it; see `cuts`."""

SLICE_BYTES = 2 << 20
"""Bytes of text per call of `tokenizers`."""

LARGEST_VOCABULARY = 1 << 24
"""Upper limit of ids, because tables by id take memory in every worker. Published vocabularies have less than 2^19 ids
(2026-11)."""

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Well-known names of end-of-text tokens. The first one that is a special token of the tokenizer is used."""

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read at each call; also silences the warning after a fork


class Encoder:
    """A tokenizer with its end-of-text token.

    Attributes:
        vocab_size: ids are 0 to vocab_size - 1, including added tokens.
        eos_token, eos_id: the token that ends every document. `encode` does not append it.
        id_type: uint16 or uint32; see `schemas.token_type`.
        fingerprint: checksum of `to_json()`, full width.
        fallback_reason: why `tokenizers` encodes instead of the kernels, which are thirty times as fast; "" if they do.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, eos: str | None = None) -> None:
        """
        Args:
            source: path of a tokenizer.json, or its content.
            eos: the end-of-text token; by default the first special token with a well-known name (`END_OF_TEXT`).
        """
        name, content = ("tokenizer", source) if isinstance(source, bytes) else (os.fspath(source), _read(source))
        settings = _settings(name, content)
        self._json = _canonical(settings)
        self._tokenizer = _load(name, self._json)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.eos_token = _end_of_text(name, settings, vocabulary, eos)
        self.eos_id = vocabulary[self.eos_token]
        self.vocab_size = _vocabulary_size(name, vocabulary)
        self._compiled, self.fallback_reason = compiled_encoder(settings, vocabulary)
        self._may_cut = _splits_between_words(settings, self._tokenizer)
        self.id_type = token_type(self.vocab_size)
        self.fingerprint = bytes_checksum(self._json)
        spelled = [self.eos_token, self._tokenizer.decode([self.eos_id], skip_special_tokens=False)]
        self._without_end_of_text(self._encode_by_library(pa.array(spelled), np.dtype(np.uint32))[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self._json, self.eos_token)

    def to_json(self) -> bytes:
        """The tokenizer.json in canonical form: equal tokenizers give equal bytes, whatever the spacing of the file."""
        return self._json

    def encode(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of each text.

        Args:
            texts: (num_docs,) strings without nulls.

        Returns:
            ids: (num_tokens,) uint16 or uint32, the ids of all texts.
            offsets: (num_docs + 1,) int64; the ids of text i are `ids[offsets[i]:offsets[i + 1]]`.
        """
        if texts.null_count:
            raise UserError(f"cannot encode: found {texts.null_count} null texts, expected strings. Drop or fill them")
        chunks, first_chunk = cut_long_texts(columns.as_large_string(texts), CHUNK_BYTES if self._may_cut else 1 << 62)
        dtype = columns.dtype_of(self.id_type)
        ids, lengths = [np.zeros(0, dtype)], [np.zeros(0, np.int64)]
        for part in slices_of(chunks, SLICE_BYTES):
            slice_ids, num_tokens = self._encode_slice(part, dtype)
            ids.append(slice_ids)
            lengths.append(num_tokens)
        chunk_offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        return self._without_end_of_text(np.concatenate(ids)), chunk_offsets[first_chunk]

    def _without_end_of_text(self, ids: np.ndarray) -> np.ndarray:
        """The ids. Raises UserError if one of them is the end-of-text id, which separates the documents of a shard."""
        if np.any(ids == self.eos_id):
            raise UserError(
                f"eos: the tokenizer encodes some text to {self.eos_token!r}, so a document could end anywhere. Expected a "
                f"special token that no text is encoded to"
            )
        return ids

    def _encode_slice(self, texts: pa.Array, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a slice, and their number per text. `tokenizers` encodes the texts that the kernels cannot."""
        if self._compiled is None:
            return self._encode_by_library(texts, dtype)
        offsets, data = columns.text_buffers(texts)
        is_unstable = self._compiled.unstable(offsets, data)
        if not is_unstable.any():
            kernel_ids, starts = self._compiled.encode(offsets, data)
            return kernel_ids.astype(dtype), np.diff(starts)
        by_kernels, by_library = texts.filter(pa.array(~is_unstable)), texts.filter(pa.array(is_unstable))
        kernel_ids, starts = self._compiled.encode(*columns.text_buffers(by_kernels))
        library_ids, library_lengths = self._encode_by_library(by_library, dtype)
        lengths = np.empty(len(texts), np.int64)
        lengths[~is_unstable], lengths[is_unstable] = np.diff(starts), library_lengths
        is_by_library = np.repeat(is_unstable, lengths)  # (num_ids,)
        ids = np.empty(len(is_by_library), dtype)
        ids[~is_by_library], ids[is_by_library] = kernel_ids, library_ids
        return ids, lengths

    def _encode_by_library(self, texts: pa.Array, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        except Exception as error:  # `tokenizers` raises Exception itself
            raise UserError(f"the tokenizer cannot encode a text: {error}. Expected tokens for every byte of text") from error
        num_tokens = np.fromiter(map(len, encodings), np.int64, len(encodings))
        return np.fromiter(
            chain.from_iterable(encoding.ids for encoding in encodings), dtype, int(num_tokens.sum())
        ), num_tokens


def slices_of(texts: pa.Array, limit_bytes: int) -> Iterator[pa.Array]:
    """Consecutive slices of `texts` of at most `limit_bytes`. A longer text is a slice of its own."""
    offsets, _ = columns.text_buffers(texts)
    start = 0
    while start < len(texts):
        stop = max(int(np.searchsorted(offsets, offsets[start] + limit_bytes, "right")) - 1, start + 1)
        yield texts.slice(start, stop - start)
        start = stop


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{os.fspath(path)}: {error.strerror}. Expected the path of a tokenizer.json") from error


def _settings(name: str, content: bytes) -> dict[str, Any]:
    """The parsed file without truncation, padding and dropout, which would lose or vary tokens."""
    try:
        settings = json.loads(content)
    except ValueError as error:
        raise UserError(
            f"{name}: invalid JSON: {error}. Expected a tokenizer.json as Hugging Face tokenizers writes it"
        ) from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise UserError(f"{name}: found no `model`. Expected a tokenizer.json as Hugging Face tokenizers writes it")
    settings["truncation"] = settings["padding"] = None
    if settings["model"].get("dropout") is not None:
        settings["model"]["dropout"] = None
    return settings


def _canonical(settings: dict[str, Any]) -> bytes:
    return json.dumps(settings, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


def _load(name: str, content: bytes) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except BaseException as error:
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":  # not an Exception
            raise
        raise UserError(f"{name}: {error}. Expected a tokenizer.json as Hugging Face tokenizers writes it") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def _vocabulary_size(name: str, vocabulary: dict[str, int]) -> int:
    token = max(vocabulary, key=vocabulary.__getitem__)
    if vocabulary[token] >= LARGEST_VOCABULARY:
        raise UserError(f"{name}: {token!r} has id {vocabulary[token]}, expected ids below {LARGEST_VOCABULARY}")
    return vocabulary[token] + 1


def _end_of_text(name: str, settings: dict[str, Any], vocabulary: dict[str, int], eos: str | None) -> str:
    if eos is not None:
        if eos not in vocabulary:
            special = sorted(token["content"] for token in settings.get("added_tokens") or () if token.get("special"))
            raise UserError(f"{name}: eos: found no token {eos!r}.{suggest(eos, special)} Its special tokens: {special[:20]}")
        return eos
    special = [token["content"] for token in settings.get("added_tokens") or () if token.get("special")]
    for known in END_OF_TEXT:
        if known in special and known in vocabulary:
            return known
    raise UserError(f"{name}: cannot infer the end-of-text token. Give `eos:`. Its special tokens: {sorted(special)[:20]}")


def _splits_between_words(settings: dict[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer always begins a pre-token at a space between two ASCII letters; see `cuts`."""
    steps = _steps(settings.get("pre_tokenizer"), "pretokenizers")
    normalizers = _steps(settings.get("normalizer"), "normalizers")
    if (
        "ByteLevel" not in steps
        or not steps <= {"ByteLevel", "Split", "Digits"}
        or not normalizers <= {"NFC", "NFD", "NFKC", "NFKD"}
    ):
        return False
    for token in settings.get("added_tokens") or ():
        if token.get("rstrip") or re.search("[A-Za-z] ", token["content"]):
            return False
    return _probe(tokenizer)


def _steps(setting: dict[str, Any] | None, members: str) -> set[str]:
    """The type of a step, or the types of the steps of a sequence."""
    if setting is None:
        return set()
    if setting["type"] == "Sequence":
        return set().union(*(_steps(member, members) for member in setting[members]))
    return {setting["type"]}


def _probe(tokenizer: Tokenizer) -> bool:
    """Tests the pattern on pairs of letters beside contractions, digits, marks, line ends and runs of words."""
    letters = "aAzZsStTmMdDlLrReEvV"
    around = (
        "{0} {1}",
        "x's{0} {1}'s",
        "1{0} {1}2",
        ".{0} {1}.",
        "\n{0} {1}\n",
        "  {0} {1} {0} {1}  ",
        "é{0} {1}é",
        "Of{0} {1}he x",
    )
    text = "".join(shape.format(left, right) + ";" for left in letters for right in letters for shape in around)
    steps = tokenizer.pre_tokenizer
    assert steps is not None  # the caller found its type
    starts = {start for _, (start, _) in steps.pre_tokenize_str(text)}
    return all(space.start() in starts for space in re.finditer("(?<=[A-Za-z]) (?=[A-Za-z])", text))
