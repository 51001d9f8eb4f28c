"""Encodes text with compiled kernels, for tokenizers that `recognition` knows. The ids equal those of `tokenizers`.

    texts ── cut at added tokens ── pre-tokens (`kernels/tokens/pretokens.py`) ── merges (`kernels/tokens/bpe.py`) ──▶ ids
      └──── not in the tokenizer's normal form: left to the caller

The kernels are thirty times as fast as `tokenizers`. Memory is 12 bytes per byte of text in a call, and 7 MB of caches per
encoder. An encoder is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.text import normalize
from datapipe.kernels.text.unicode_classes import stable_table
from datapipe.kernels.tokens import bpe
from datapipe.kernels.tokens.added_tokens import PASSED_OVER, TEXT, cut_at_tokens, token_trie
from datapipe.kernels.tokens.bpe_cache import LINE_WORDS, LONG_WORDS
from datapipe.kernels.types import input_record
from datapipe.tokens.recognition import AddedToken, Recognised, recognise
from datapipe.tokens.vocabulary import byte_alphabet

_NUM_LINES, _NUM_LONG_LINES = 1 << 17, 1 << 14


def compiled_encoder(settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> tuple[CompiledEncoder | None, str]:
    """The encoder of a parsed tokenizer.json, or None and the reason why the kernels cannot encode with it.

    Args:
        settings: a file that `tokenizers` has loaded.
        vocabulary: the ids that `tokenizers` has assigned, including added tokens.
    """
    recognised, reason = recognise(settings)
    if recognised is None:
        return None, reason or ""
    model = settings["model"]
    if len({token.content for token in recognised.added}) < len(recognised.added):
        return None, "added_tokens: a token occurs twice"
    looked_for = [token for token in recognised.added if not token.special and token.content]
    for token in looked_for:
        number = vocabulary[token.content]
        if number != token.id:  # `tokenizers` assigns ids itself: the model's, or the next free one
            return None, f"added_tokens: {token.content!r} has id {token.id} in the file, and {number} in `tokenizers`"
        if token.single_word or token.lstrip or token.rstrip:
            return None, f"added_tokens: {token.content!r} depends on the text around it"
        if recognised.normalizer and token.normalized and not token.content.isascii():
            return None, f"added_tokens: {token.content!r} may have another normal form"
    return CompiledEncoder(model, recognised), ""


class CompiledEncoder:
    """The kernels with the tables of a tokenizer."""

    def __init__(self, model: Mapping[str, Any], recognised: Recognised) -> None:
        self._recognised = recognised
        vocabulary, letters = model["vocab"], byte_alphabet()
        byte_ids = np.zeros(256, np.int32)
        for letter, byte in letters.items():
            byte_ids[byte] = vocabulary.get(letter, 0)  # bytes that UTF-8 never has may be no tokens
        lines = [merge for merge in model["merges"] if not (isinstance(merge, str) and merge.startswith("#version"))]
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in lines]
        ids = np.array([(vocabulary[a], vocabulary[b], vocabulary[a + b]) for a, b in merges], np.int64).reshape(-1, 3)
        merge_table = bpe.merge_table(*(np.ascontiguousarray(column) for column in ids.T))
        whole = _token_table(vocabulary if recognised.ignore_merges else {}, letters)
        self._tokens = input_record(bpe.Tokens, (byte_ids, merge_table, recognised.ignore_merges, *whole))
        self._tries = [
            token_trie(_tokens_of(recognised.added, normalized))
            for normalized in (False, True)
            if any(not token.special and token.normalized == normalized for token in recognised.added)
        ]
        self._stable = stable_table(recognised.normalizer) if recognised.normalizer else None  # pyright: ignore[reportArgumentType]
        caches = np.zeros((_NUM_LINES, LINE_WORDS), np.uint64), np.zeros((_NUM_LONG_LINES, LONG_WORDS), np.uint64)
        self._workspace = bpe.Workspace(*caches, *_scratch(1 << 12))
        self._ends = np.zeros(0, np.int64)  # kept from call to call: its pages are touched once

    def unstable(self, offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Which texts normalization may change: (num_texts,) bool. `encode` does not accept them."""
        marks = np.zeros(len(offsets) - 1, np.uint8)
        if self._stable is not None:
            nothing = normalize.actions(fix_newlines=False, strip_control=False)
            normalize.survey(offsets, data, nothing, self._stable, False, False, marks)
        return marks & normalize.UNSTABLE != 0

    def encode(self, offsets: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, (num_ids,) int32, and the offset of each text in them, (num_texts + 1,) int64.

        Args:
            offsets: (num_texts + 1,) int64.
            data: (num_bytes,) uint8, UTF-8.
        """
        parts, fixed, text_offsets = self._parts(offsets, data)
        num_bytes = int(parts[-1] - parts[0])
        if num_bytes > len(self._ends):
            self._ends = np.empty(num_bytes, np.int64)
        ends = self._ends[: self._recognised.cut(parts, data, self._ends)]
        self._make_room(bpe.longest_pretoken(int(parts[0]), ends))
        part_offsets, out = np.empty(len(parts), np.int64), np.empty(num_bytes + len(parts), np.int32)
        num_ids = bpe.encode_pretokens(parts, data, fixed, ends, self._tokens, self._workspace, part_offsets, out)
        return out[:num_ids], part_offsets[text_offsets]

    def _parts(self, offsets: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The texts cut at added tokens: the offsets of the parts (num_parts + 1,), per part the id of its added token or TEXT,
        and the first part of each text (num_texts + 1,)."""
        fixed, text_offsets = np.full(len(offsets) - 1, TEXT, np.int32), np.arange(len(offsets), dtype=np.int64)
        for children, ids in self._tries:
            room = int(offsets[-1] - offsets[0]) + len(offsets)
            ends, numbers, begins = np.empty(room, np.int64), np.empty(room, np.int32), np.empty(len(offsets), np.int64)
            num_parts = cut_at_tokens(offsets, data, fixed, children, ids, begins, ends, numbers)
            offsets, fixed = np.concatenate([offsets[:1], ends[:num_parts]]), numbers[:num_parts].copy()
            text_offsets = begins[text_offsets]
        return np.ascontiguousarray(offsets), fixed, text_offsets

    def _make_room(self, longest_piece: int) -> None:
        if longest_piece > len(self._workspace.ids):
            self._workspace = bpe.Workspace(*self._workspace[:2], *_scratch(1 << longest_piece.bit_length()))


def _tokens_of(added: tuple[AddedToken, ...], normalized: bool) -> dict[bytes, int]:
    """The added tokens to find before or after normalization. Special tokens are encoded as text."""
    chosen = [token for token in added if token.normalized == normalized and token.content]
    return {token.content.encode(): PASSED_OVER if token.special else token.id for token in chosen}


def _token_table(vocabulary: Mapping[str, int], letters: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slots, offsets and bytes of the tokens that consist of byte characters. Other ids have no bytes."""
    tokens = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, number in vocabulary.items():
        if all(letter in letters for letter in token):
            tokens[number] = bytes(letters[letter] for letter in token)
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    data = np.frombuffer(b"".join(tokens) or b"\0", np.uint8)
    slots = np.full(num_slots_for(len(tokens)), -1, np.int32)
    bpe.fill_vocabulary(offsets, data, slots)
    return slots, offsets, data


def _scratch(longest_piece: int) -> tuple[np.ndarray, ...]:
    """What `bpe.Workspace` has beside its caches."""
    ids, following, before = (np.empty(longest_piece, np.int32) for _ in range(3))
    return ids, following, before, np.empty(longest_piece, np.uint64), np.empty(3 * longest_piece, np.uint64)
