"""Encodes documents with segments: control tokens that they mean, and which of their tokens a loss counts.

    texts, segments ─▶ parts between control tokens ─▶ `Encoder.encode` ─▶ ids of parts, control tokens in between
                                                                      └─▶ runs of tokens that no loss counts

A part is encoded as one text, whatever its segments, as the template of a tokenizer does: "assistant\\nHi" may have a token
that holds the end of a header and the begin of an answer. Such a token is learned if any byte of it is
(`return_assistant_tokens_mask` of transformers). Where a byte-level tokenizer spells a part byte by byte, the lengths of its
tokens have the borders; other parts are encoded again by `tokenizers`, which has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import text_buffers, texts_from
from datapipe.errors import UserError, suggest
from datapipe.kernels.text.replace import copy_spans
from datapipe.stage.segments import Segments

_NO_ID = -1
_LINE_END = ord("\n")

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


def encode_segments(encoder: Encoder, texts: pa.Array, segments: Segments) -> Encoded:
    """The ids of documents, as the segments of their texts (num_docs,) have them. Raises UserError for a control token that
    the tokenizer does not have, EncodingError where the library fails on a text."""
    offsets, data = text_buffers(texts)
    is_token = ~segments.is_text
    numbers = _ids_of(encoder, segments.tokens.filter(pa.array(is_token)))
    # parts: every document has one more than control tokens
    spans, counts = _parts(segments, offsets, data, is_token)
    copied = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), np.uint8)
    copy_spans(np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1]), data, copied)
    is_first = np.zeros(len(spans), np.bool_)  # (num_parts,) of its document: no control token before it
    is_first[np.cumsum(counts) - counts] = True
    ids, ends = _encoded(encoder, texts_from(np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])]), copied), is_first)
    learned = _learned(encoder, (spans, data), (ids, ends), segments, offsets[:-1], is_first)

    is_last = np.zeros(len(spans), np.bool_)  # (num_parts,) of its document: no control token follows
    is_last[np.cumsum(counts) - 1] = True
    behind = np.cumsum(~is_last)  # control tokens up to and behind each part
    out_ids = np.empty(len(ids) + len(numbers), ids.dtype)
    out_learned, of_text = np.empty(len(out_ids), np.bool_), np.ones(len(out_ids), np.bool_)
    of_text[(ends[1:] + behind - 1)[~is_last]] = False
    out_ids[of_text], out_ids[~of_text] = ids, np.maximum(numbers, 0)
    out_learned[of_text], out_learned[~of_text] = learned, segments.learned[is_token]
    out_offsets = np.concatenate([[0], (ends[1:] + behind)[is_last]])
    breaks = np.flatnonzero(~of_text)[numbers == _NO_ID]
    if len(breaks):
        out_offsets -= np.searchsorted(breaks, out_offsets)
        out_ids, out_learned = np.delete(out_ids, breaks), np.delete(out_learned, breaks)
    return Encoded(out_ids, out_offsets, out_learned)


def _parts(segments: Segments, offsets: np.ndarray, data: np.ndarray, is_token: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The text between control tokens: start and stop of each part in `data`, (num_parts, 2) int64; and how many parts each
    document has. White space in the place of a token is no text; what an edit has left there besides is."""
    stops = np.append(segments.starts[1:], offsets[-1])
    is_last = np.diff(segments.documents, append=len(offsets)) != 0
    stops[is_last] = offsets[1:][segments.documents[is_last]]
    places, behind, documents = segments.starts[is_token], stops[is_token], segments.documents[is_token]
    is_line_end = behind == places + 1
    is_line_end[is_line_end] = data[places[is_line_end]] == _LINE_END
    for number in np.flatnonzero((behind > places) & ~is_line_end).tolist():
        if data[places[number] : behind[number]].tobytes().strip():
            behind[number] = places[number]
    num_docs = len(offsets) - 1
    order = np.argsort(np.concatenate([np.arange(num_docs), documents]), kind="stable")  # a document's begin before its tokens
    starts = np.concatenate([offsets[:-1], behind])[order]
    ends = np.concatenate([places, offsets[1:]])[np.argsort(np.concatenate([documents, np.arange(num_docs)]), kind="stable")]
    return np.stack([starts, ends], axis=1), np.bincount(documents, minlength=num_docs) + 1


def _encoded(encoder: Encoder, parts: pa.Array, is_first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids of parts and their offsets (num_parts + 1,), as `Encoder.encode`."""
    if encoder.behind_tokens is None:
        return encoder.encode(parts)
    first_ids, first_ends = encoder.encode(parts.filter(pa.array(is_first)))
    other_ids, other_ends = encoder.encode(parts.filter(pa.array(~is_first)), is_behind=True)
    counts = np.empty(len(parts), np.int64)
    counts[is_first], counts[~is_first] = np.diff(first_ends), np.diff(other_ends)
    ids = np.empty(int(counts.sum()), first_ids.dtype)
    of_first = np.repeat(is_first, counts)
    ids[of_first], ids[~of_first] = first_ids, other_ids
    return ids, np.concatenate([[0], np.cumsum(counts)])


def _ids_of(encoder: Encoder, tokens: pa.Array) -> np.ndarray:
    """The ids of control tokens by name: (num_tokens,). Raises UserError."""
    encoded = tokens.dictionary_encode()
    known = {**encoder.added_tokens, BREAK: _NO_ID}
    for name in encoded.dictionary.to_pylist():
        if name not in known:
            listed = sorted(encoder.added_tokens)
            raise UserError(
                f"segments: found the token {name!r}, and the tokenizer has no such control token.{suggest(name, listed)} It "
                f"has {', '.join(listed[:20]) or 'none'}"
            )
    table = np.array([known[name] for name in encoded.dictionary.to_pylist()], np.int64)
    return table[encoded.indices.to_numpy()]


def _learned(
    encoder: Encoder,
    parts: tuple[np.ndarray, np.ndarray],
    encoded: tuple[np.ndarray, np.ndarray],
    segments: Segments,
    doc_starts: np.ndarray,
    is_first: np.ndarray,
) -> np.ndarray:
    """Whether a loss counts each token of the parts, (num_ids,) bool. `doc_starts`: of the texts, (num_docs,) int64.
    `is_first`: whether no control token is before a part in its document, (num_parts,) bool."""
    (spans, _), (_, ends) = parts, encoded
    borders = _Borders.of(segments, doc_starts)
    first, last = borders.before_or_at(spans[:, 0]), borders.before_or_at(np.maximum(spans[:, 1] - 1, spans[:, 0]))
    num_learned = borders.num_learned(first, last)
    learned = np.repeat(num_learned > 0, np.diff(ends))
    mixed = (num_learned > 0) & (num_learned <= last - first)
    if mixed.any():
        tokens, starts, stops = _token_spans(encoder, parts, encoded, mixed, is_first)
        learned[tokens] = borders.num_learned(borders.before_or_at(starts), borders.before_or_at(stops - 1)) > 0
    return learned


class _Borders(NamedTuple):
    """The bytes at which text begins to be learned or not: (num_borders,), ascending, and how many learned ones are before."""

    starts: np.ndarray
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
        return cls(starts[decides], np.concatenate([[0], np.cumsum(flags[decides])]))

    def before_or_at(self, byte_offsets: np.ndarray) -> np.ndarray:
        """The last border at or before each byte."""
        return np.searchsorted(self.starts, byte_offsets, "right") - 1

    def num_learned(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """How many learned spans of text begin at the borders from `first` to `last`."""
        return self.before[last + 1] - self.before[first]


def _token_spans(
    encoder: Encoder,
    parts: tuple[np.ndarray, np.ndarray],
    encoded: tuple[np.ndarray, np.ndarray],
    chosen: np.ndarray,
    is_first: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of the `chosen` parts, (num_parts,) bool: their numbers, and the start and stop byte of each."""
    (spans, data), (ids, ends) = parts, encoded
    counts = np.diff(ends)
    tokens = np.flatnonzero(np.repeat(chosen, counts))
    part = np.repeat(np.arange(len(spans)), counts)[tokens]
    if encoder.token_bytes is None:
        lengths, spelled = np.zeros(len(tokens), np.int64), np.full(len(spans), -1)
    else:
        lengths = encoder.token_bytes[ids[tokens]]
        spelled = np.bincount(part, lengths, len(spans)).astype(np.int64)  # bytes of its tokens; exact below 2**53
    stops = np.cumsum(lengths)
    before = np.concatenate([[0], np.cumsum(np.where(chosen, np.maximum(spelled, 0), 0))])[
        :-1
    ]  # bytes of the chosen parts before
    stops += (spans[:, 0] - before)[part]
    starts = stops - lengths
    for number in np.flatnonzero(chosen & (counts > 0) & (spelled != spans[:, 1] - spans[:, 0])).tolist():
        own = np.flatnonzero(part == number)
        text = data[spans[number, 0] : spans[number, 1]].tobytes().decode()
        begins, ends_here = encoder.spans(text, is_first=bool(is_first[number]))
        starts[own], stops[own] = spans[number, 0] + begins, spans[number, 0] + ends_here
    return tokens, starts, np.maximum(stops, starts + 1)
