"""Encodes documents with segments: control tokens that they mean, and which of their tokens a loss counts.

    texts, segments ─▶ parts between control tokens ─▶ `Encoder.encode` ─▶ ids of parts, control tokens in between
                                                                      └─▶ runs of tokens that no loss counts

A part is encoded as one text, whatever its segments, as the template of a tokenizer does: "assistant\\nHi" may have a token
that holds the end of a header and the begin of an answer. Such a token is learned if any byte of it is
(`return_assistant_tokens_mask` of transformers). The lengths of tokens have the borders where a tokenizer spells text byte by
byte; parts of other tokenizers that have both are encoded again by `tokenizers` up to the last border, which has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import numbers, text_buffers, texts_from
from datapipe.errors import UserError
from datapipe.kernels.text.replace import copy_spans
from datapipe.kernels.tokens.borders import learn_tokens
from datapipe.stage.segments import Segments
from datapipe.tokens.vocabulary import no_control_token

_NO_ID = -1
_WORD_BYTES = 8  # shorter parts are encoded once each
_1, _8 = np.uint64(1), np.uint64(8)
_AHEAD_BYTES = 32  # behind a border: most words end within
_IS_WHITE = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))  # as `bytes.strip` has it

if TYPE_CHECKING:
    from datapipe.tokens.encoder import Encoder


BREAK = ""
"""The token of a segment at which text is cut into parts that are encoded apart, without a token between them."""


class Encoded(NamedTuple):
    """The tokens of documents."""

    ids: np.ndarray  # (num_tokens,) uint16 or uint32
    offsets: np.ndarray  # (num_docs + 1,) int64
    learned: np.ndarray | None  # (num_tokens,) bool, whether a loss counts the token as a target; None: all
    counts: Mapping[str, int] = MappingProxyType({})  # of documents, by what was done to them


class Parts(NamedTuple):
    """The text between control tokens: of each document one part more than tokens."""

    starts: np.ndarray  # (num_parts,) int64, in the bytes of all texts
    stops: np.ndarray  # (num_parts,) int64
    is_first: np.ndarray  # (num_parts,) bool, whether no control token is before the part in its document
    is_last: np.ndarray  # (num_parts,) bool, whether none follows


def encode_segments(encoder: Encoder, texts: pa.Array, segments: Segments) -> Encoded:
    """The ids of documents, as the segments of their texts (num_docs,) have them. Raises UserError for a control token that
    the tokenizer does not have, EncodingError where the library fails on a text."""
    offsets, data = text_buffers(texts)
    is_token = ~segments.is_text
    token_ids = _ids_of(encoder, segments.tokens.filter(pa.array(is_token)))
    parts = parts_between(segments, offsets, data, is_token)
    source, part_starts, part_stops = _encoded(encoder, parts, data)

    # starts, stops: (num_parts + num_control_tokens,) spans of ids, in the order of documents. Ids of control tokens lie behind
    part_places = np.arange(len(parts.starts)) + np.cumsum(~parts.is_last) - ~parts.is_last
    token_places = part_places[~parts.is_last] + 1
    starts, stops = np.empty((2, len(part_places) + len(token_places)), np.int64)
    starts[part_places], stops[part_places] = part_starts, part_stops
    starts[token_places] = len(source) + np.arange(len(token_ids))
    stops[token_places] = starts[token_places] + (token_ids != _NO_ID)
    ids, ends = copied_spans(np.concatenate([source, np.maximum(token_ids, 0).astype(source.dtype)]), starts, stops)

    borders, flags = _Borders.of(segments, offsets[:-1]), np.empty(len(starts), np.bool_)
    last, num_learned, num_borders = borders.within(parts.starts, np.maximum(parts.stops, parts.starts + 1))
    flags[part_places], flags[token_places] = borders.is_learned[last], segments.learned[is_token]
    learned = np.repeat(flags, np.diff(ends))
    mixed = np.flatnonzero((num_learned > 0) & (num_learned < num_borders) & (part_starts < part_stops))
    is_spelled = _are_spelled(encoder, data, parts.starts[mixed], borders.starts[last[mixed]])
    if len(own := mixed[is_spelled]) and encoder.token_bytes is not None:
        texts, of_tokens = (parts.starts[own], borders.starts[last[own]] - parts.starts[own]), part_places[own]
        _learn_by_bytes(encoder.token_bytes, ids, texts, (ends[of_tokens], ends[of_tokens + 1]), borders, learned)
    for number in mixed[~is_spelled].tolist():
        of_tokens = slice(ends[part_places[number]], ends[part_places[number] + 1])
        text, is_first = data[parts.starts[number] : parts.stops[number]].tobytes(), bool(parts.is_first[number])
        border = int(borders.starts[last[number]] - parts.starts[number])
        starts, stops = (each + parts.starts[number] for each in _spans_to(encoder, text, border, ids[of_tokens], is_first))
        _, num_learned, _ = borders.within(starts, np.maximum(stops, starts + 1))
        learned[of_tokens][: len(starts)] = num_learned > 0
    return Encoded(ids, np.append(0, ends[1:][part_places[parts.is_last]]), learned)


def copied_spans(values: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans of some values, end to end, and their offsets (num_spans + 1,)."""
    offsets, size = np.append(0, np.cumsum(stops - starts)), values.itemsize
    copied = np.empty(int(offsets[-1]), values.dtype)
    copy_spans(starts * size, stops * size, values.view(np.uint8), copied.view(np.uint8))
    return copied, offsets


def parts_between(segments: Segments, offsets: np.ndarray, data: np.ndarray, is_token: np.ndarray) -> Parts:
    """The parts of documents. White space in the place of a token is no text; what an edit has left there besides is."""
    stops = np.append(segments.starts[1:], offsets[-1])
    is_last = np.diff(segments.documents, append=len(offsets)) != 0
    stops[is_last] = offsets[1:][segments.documents[is_last]]
    token_starts, token_stops, documents = segments.starts[is_token], stops[is_token], segments.documents[is_token]
    held = token_stops - token_starts  # bytes that stand for each token, almost always one
    is_text = held == 1
    is_text[is_text] = ~_IS_WHITE[data[token_starts[is_text]]]
    for number in np.flatnonzero(held > 1).tolist():
        is_text[number] = bool(data[token_starts[number] : token_stops[number]].tobytes().strip())
    token_stops[is_text] = token_starts[is_text]

    # a part begins with its document or behind a token, and ends before a token or with its document
    num_docs, num_tokens = len(offsets) - 1, len(documents)
    ends = np.arange(num_docs) + np.cumsum(np.bincount(documents, minlength=num_docs))  # the last part of each document
    begins = np.append(0, ends[:-1] + 1)[:num_docs]
    of_tokens = np.arange(num_tokens) + documents  # the part before each token
    is_first, is_last = np.zeros((2, num_docs + num_tokens), np.bool_)
    is_first[begins], is_last[ends] = True, True
    starts, stops = np.empty((2, num_docs + num_tokens), np.int64)
    starts[begins], starts[of_tokens + 1] = offsets[:-1], token_stops
    stops[of_tokens], stops[ends] = token_starts, offsets[1:]
    return Parts(starts, stops, is_first, is_last)


def _encoded(encoder: Encoder, parts: Parts, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, and the start and stop in them of each part, (num_parts,). Short parts, such as the line end between two turns, are
    many and encoded once each."""
    is_short = parts.stops - parts.starts < _WORD_BYTES
    starts, stops, encoded, num_ids = *np.empty((2, len(is_short)), np.int64), [], 0
    for is_behind in (False,) if encoder.behind_tokens is None else (False, True):
        own = np.ones(len(is_short), np.bool_) if encoder.behind_tokens is None else parts.is_first != is_behind
        long, short = np.flatnonzero(own & ~is_short), np.flatnonzero(own & is_short)
        which = numbers(pa.array(_words(parts, data, short)).dictionary_encode().indices)
        one_of = np.empty(which.max(initial=-1) + 1, np.int64)
        one_of[which] = short
        chosen = np.append(long, one_of)
        copied, offsets = copied_spans(data, parts.starts[chosen], parts.stops[chosen])
        ids, ends = encoder.encode(texts_from(offsets, copied), is_behind=is_behind)
        for places, texts in ((long, np.arange(len(long))), (short, len(long) + which)):
            starts[places], stops[places] = num_ids + ends[texts], num_ids + ends[texts + 1]
        encoded.append(ids)
        num_ids += len(ids)
    return np.concatenate(encoded), starts, stops


def _words(parts: Parts, data: np.ndarray, short: np.ndarray) -> np.ndarray:
    """The bytes and the length of short parts as one number each: (num_short,) uint64."""
    lengths = (parts.stops - parts.starts)[short].astype(np.uint64)
    padded = np.append(data, np.zeros(_WORD_BYTES, np.uint8))
    words = np.ndarray(len(data) + 1, np.uint64, padded, strides=(1,))[parts.starts[short]]  # from each byte on
    return words & ((_1 << (_8 * lengths)) - _1) | lengths << (_8 * np.uint64(_WORD_BYTES - 1))


def _ids_of(encoder: Encoder, tokens: pa.Array) -> np.ndarray:
    """The ids of control tokens by name: (num_tokens,). Raises UserError."""
    encoded = tokens.dictionary_encode()
    known = {**encoder.control_tokens, BREAK: _NO_ID}
    for name in encoded.dictionary.to_pylist():
        if name not in known:
            raise UserError(f"segments: {no_control_token(name, encoder.added_tokens, encoder.control_tokens)}")
    table = np.array([known[name] for name in encoded.dictionary.to_pylist()], np.int64)
    return table[encoded.indices.to_numpy()]


class _Borders(NamedTuple):
    """The bytes at which text begins to be learned or not: (num_borders,), ascending, and how many learned ones are before."""

    starts: np.ndarray
    is_learned: np.ndarray
    before: np.ndarray  # (num_borders + 1,)

    @classmethod
    def of(cls, segments: Segments, doc_starts: np.ndarray) -> _Borders:
        """Text is learned from the start of each document on, until a segment of text begins."""
        is_text, num_docs = segments.is_text, len(doc_starts)
        starts = np.concatenate([doc_starts, segments.starts[is_text]])
        flags = np.concatenate([np.ones(num_docs, np.bool_), segments.learned[is_text]])
        order = np.argsort(np.concatenate([np.arange(num_docs), segments.documents[is_text]]), kind="stable")
        starts, flags = starts[order], flags[order]
        decides = np.diff(starts, append=-1) != 0  # the last one at a byte
        return cls(starts[decides], flags[decides], np.append(0, np.cumsum(flags[decides])))

    def within(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of spans of bytes, which are not empty, the last border before their end; how many learned spans of text, and how
        many of all, they have a part of: (num_spans,) each."""
        first, stop = np.searchsorted(self.starts, starts, "right") - 1, np.searchsorted(self.starts, stops, "left")
        return stop - 1, self.before[stop] - self.before[first], stop - first


def _are_spelled(encoder: Encoder, data: np.ndarray, starts: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Whether the tokens of parts spell their text byte by byte up to the last border, (num_parts,). NFC changes no ASCII, and
    joins no character with white space before it."""
    if encoder.token_bytes is None or not encoder.composes:
        return np.full(len(starts), encoder.token_bytes is not None)
    is_apart = _IS_WHITE[data[np.maximum(borders - 1, 0)]] & (borders > starts)
    copied, offsets = copied_spans(data, starts, np.where(is_apart, borders, np.minimum(borders + 1, len(data))))
    num_others = np.append(0, np.cumsum(copied >= 0x80))
    return num_others[offsets[:-1]] == num_others[offsets[1:]]


def _learn_by_bytes(
    token_bytes: np.ndarray,
    ids: np.ndarray,
    texts: tuple[np.ndarray, np.ndarray],
    of_tokens: tuple[np.ndarray, np.ndarray],
    borders: _Borders,
    learned: np.ndarray,
) -> None:
    """Sets what is `learned` (num_ids,) of the tokens of parts up to their last border; those behind have it already. `texts`:
    the first byte of each part, and how many are before its last border. `of_tokens`: the start and stop of its ids."""
    (begins, before_last), (starts, stops) = texts, of_tokens
    counts = np.minimum(stops - starts, before_last + 1)  # tokens of at least a byte each
    ends = np.append(0, np.cumsum(counts))
    index = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], counts)
    own = np.empty(len(index), np.bool_)
    learn_tokens(token_bytes[ids[index]], ends, begins, borders.starts, borders.is_learned, own)
    learned[index] = own


def _spans_to(encoder: Encoder, text: bytes, border: int, ids: np.ndarray, is_first: bool) -> tuple[np.ndarray, np.ndarray]:
    """The start and stop byte of the tokens of a text that begin before a border, and of those behind that are known. Equal ids
    of the begin of a text stand for the same bytes there, where each id has a text."""
    stop = border + _AHEAD_BYTES
    while stop < len(text) and text[stop] & 0xC0 == 0x80:
        stop += 1
    if encoder.unknown_id is None and stop < len(text):
        own, starts, stops = encoder.spans(text[:stop].decode(), is_first=is_first)
        known = int(np.searchsorted(starts, border))
        if known < len(own) and np.array_equal(own[:known], ids[:known]):
            return starts[:known], stops[:known]
    return encoder.spans(text.decode(), is_first=is_first)[1:]
