"""Fill in the middle: some documents in the order in which a model fills a gap (arXiv 2207.14255).

    document   prefix middle suffix
    PSM        <prefix> prefix <suffix> suffix <middle> middle
    SPM        <prefix> <suffix> suffix <middle> prefix middle

The two cuts are uniform over the characters of a document, or over its tokens; prefix, middle and suffix may be empty. All is
learned, as in the published recipes (SantaCoder, StarCoder, Megatron-LM). Which documents, which of the two orders and where
to cut are keyed hashes of the document's key, so they are the same on any machine. The parts are encoded by themselves, since a
model that fills a gap gets them so. Documents whose text spells a control token stay as they are.

In documents of several files, each file is changed by itself, as StarCoder2 does (arXiv 2402.19173): it is cut behind the line
with its path, which stays at the begin of the prefix.

    <file_sep><prefix> PATH\\n prefix <suffix> suffix <middle> middle <file_sep> …
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import compute, key_halves, make_keys, numbers, text_buffers, texts_from
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.text.replace import copy_spans
from datapipe.rng import below_fraction, keyed_hash, seed_for
from datapipe.stage.segments import Segments
from datapipe.tokens.encoder import Encoder
from datapipe.tokens.segments import BREAK, Encoded, copied_spans, encode_segments, parts_between
from datapipe.tokens.vocabulary import no_control_token

KNOWN_TOKENS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Gemma, cl100k
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek, with bars of full width, U+FF5C
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
"""The tokens before prefix, suffix and middle of published tokenizers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fim:
    rate: float  # share of the documents
    spm: float  # share of these in the order SPM
    at: Literal["characters", "tokens"]
    min_chars: int  # shorter documents stay as they are
    tokens: tuple[str, ...]  # before prefix, suffix and middle; empty: the first of `KNOWN_TOKENS` that the tokenizer has
    of_files: bool = False  # whether each file of a document is changed by itself


class _Cuts(NamedTuple):
    """The documents that are changed, (num_changed,) each, and how many there are of each kind."""

    documents: np.ndarray
    is_spm: np.ndarray
    # first, second: the two cuts, as shares of the document: uint64 of 2^64
    first: np.ndarray
    second: np.ndarray
    counts: Mapping[str, int]


def fim_tokens(encoder: Encoder, fim: Fim) -> tuple[str, ...]:
    """The tokens before prefix, suffix and middle. Raises UserError where the tokenizer lacks one."""
    for names in (fim.tokens,) if fim.tokens else KNOWN_TOKENS:
        if all(name in encoder.control_tokens for name in names):
            return names
    spelled = next((name for name in fim.tokens if name in encoder.added_tokens and name not in encoder.control_tokens), None)
    if spelled is not None:
        raise UserError(f"tokens: {no_control_token(spelled, encoder.added_tokens, encoder.control_tokens)}")
    wanted = ", ".join(fim.tokens) if fim.tokens else "those of StarCoder, Qwen, DeepSeek, Gemma or Code Llama"
    raise UserError(
        f"expected control tokens before prefix, suffix and middle: {wanted}. The tokenizer has "
        f"{', '.join(sorted(encoder.control_tokens)[:20]) or 'none'}. Name its three tokens: "
        "`fim: {tokens: [PREFIX, SUFFIX, MIDDLE]}`"
    )


def check_fim(encoder: Encoder, fim: Fim) -> None:
    """Raises UserError for a tokenizer that cannot do it."""
    fim_tokens(encoder, fim)
    if fim.at == "characters" and encoder.puts_a_space_first:
        raise UserError(
            "the tokenizer puts a space before each text, so a document that is cut between characters would get spaces that "
            "it does not have. Write `at: tokens`"
        )


def encode_filling(encoder: Encoder, fim: Fim, texts: pa.Array, keys: pa.Array, seed: int) -> Encoded:
    """The ids of documents, some in the order of prefix, suffix and middle: of texts (num_docs,) with `keys`. Counts those of
    each order, and those of `rate` that stay as they are, by reason."""
    cuts = _cuts(encoder, fim, texts, keys, seed)
    names = fim_tokens(encoder, fim)
    if fim.at == "characters":
        return encode_segments(encoder, *_rearranged(texts, cuts, names))._replace(learned=None, counts=cuts.counts)
    ids, offsets = encoder.encode(texts)
    tokens = np.array([encoder.control_tokens[name] for name in names], ids.dtype)
    return _rearranged_ids(ids, offsets, cuts, tokens)._replace(counts=cuts.counts)


def encode_filling_files(encoder: Encoder, fim: Fim, texts: pa.Array, segments: Segments, keys: pa.Array, seed: int) -> Encoded:
    """As `encode_filling`, of documents of several files, each behind a control token, and with its path as its first line.
    Counts files."""
    (offsets, data), is_token = text_buffers(texts), ~segments.is_text
    between = parts_between(segments, offsets, data, is_token)
    copied, part_offsets = copied_spans(data, between.starts, between.stops)
    parts = texts_from(part_offsets, copied)
    # lengths, documents, paths: (num_parts,)
    lengths, documents, paths = np.diff(part_offsets), np.cumsum(between.is_first) - 1, _first_lines(parts)
    firsts = np.flatnonzero(between.is_first)
    hashes = keyed_hash(key_halves(keys), seed_for(seed, "fim", "files"))
    of_parts = make_keys(hashes[documents], (np.arange(len(parts)) - firsts[documents]).astype(np.uint64))
    has_content = pa.array(paths < lengths)
    cuts = _cuts(encoder, fim, parts.filter(has_content), of_parts.filter(has_content), seed)
    cuts = cuts._replace(documents=np.flatnonzero(paths < lengths)[cuts.documents])
    rearranged, within = _rearranged(parts, cuts, fim_tokens(encoder, fim), paths)
    new, moved = text_buffers(rearranged)
    behind = np.delete(np.arange(len(parts)), firsts)  # the parts behind a token
    tokens = segments.tokens.filter(pa.array(is_token)).take(pa.array(np.arange(len(behind)).repeat(2)))
    tokens = compute.if_else(pa.array(np.tile([False, True], len(behind))), pa.scalar(None, pa.string()), tokens)
    of_part = np.concatenate([behind.repeat(2), within.documents])
    order = np.argsort(of_part, kind="stable")
    joined = Segments(
        documents[of_part[order]],
        np.concatenate([new[behind].repeat(2), within.starts])[order],
        pa.concat_arrays([tokens, within.tokens]).take(pa.array(order)),
        np.ones(len(order), np.bool_),
    )
    in_order = texts_from(new[np.append(firsts, len(parts))], moved)
    return encode_segments(encoder, in_order, joined)._replace(counts=cuts.counts)


def _first_lines(texts: pa.Array) -> np.ndarray:
    """The bytes of the first line of each text with its line end: (num_texts,)."""
    offsets, data = text_buffers(texts)
    line_ends = np.append(np.flatnonzero(data[: offsets[-1]] == ord("\n")) + 1, offsets[-1])
    found = line_ends[np.minimum(np.searchsorted(line_ends, offsets[:-1], "right"), len(line_ends) - 1)]
    return np.minimum(found, offsets[1:]) - offsets[:-1]


def _cuts(encoder: Encoder, fim: Fim, texts: pa.Array, keys: pa.Array, seed: int) -> _Cuts:
    halves = key_halves(keys)
    chosen = below_fraction(keyed_hash(halves, seed_for(seed, "fim", "rate")), fim.rate)
    long_enough = np.flatnonzero(chosen & (numbers(compute.utf8_length(texts)) >= fim.min_chars))
    documents = long_enough
    if encoder.control_tokens:
        pattern = "|".join(map(re.escape, sorted(encoder.control_tokens)))
        documents = documents[~numbers(compute.match_substring_regex(texts.take(pa.array(documents)), pattern))]
    own = halves[0][documents], halves[1][documents]
    hashes = [keyed_hash(own, seed_for(seed, "fim", name)) for name in ("one", "other")]
    is_spm = below_fraction(keyed_hash(own, seed_for(seed, "fim", "spm")), fim.spm)
    counts = {
        "psm": int((~is_spm).sum()),
        "spm": int(is_spm.sum()),
        "too_short": int(chosen.sum()) - len(long_enough),
        "control_token": len(long_enough) - len(documents),
    }
    return _Cuts(documents, is_spm, np.minimum(*hashes), np.maximum(*hashes), counts)


def _cut_indices(cuts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Cuts before one of the `counts` characters or tokens of each document, or behind the last one: (num_changed,)."""
    return (cuts >> np.uint64(32)) * (counts + 1).astype(np.uint64) >> np.uint64(32)


def _rearranged(texts: pa.Array, cuts: _Cuts, names: Sequence[str], uncut: np.ndarray | int = 0) -> tuple[pa.Array, Segments]:
    """Texts with the parts of the changed documents in their new order, and the tokens before them. `uncut`: bytes at the begin
    of each text that are not cut, (num_docs,)."""
    offsets, data = text_buffers(texts)
    chars = np.flatnonzero((data[offsets[0] : offsets[-1]] & 0xC0) != 0x80) + offsets[0]  # first byte of each character
    begins = np.searchsorted(chars, (offsets[:-1] + uncut)[cuts.documents])
    ends = np.searchsorted(chars, offsets[cuts.documents + 1])
    chars = np.append(chars, offsets[-1])
    first, second = (chars[begins + _cut_indices(cut, ends - begins).astype(np.int64)] for cut in (cuts.first, cuts.second))
    start, stop = offsets[cuts.documents], offsets[cuts.documents + 1]
    first, second = np.minimum(first, stop), np.minimum(second, stop)
    # spans: (num_docs, 3, 2) start and stop; documents that are not changed have one
    spans = np.zeros((len(texts), 3, 2), np.int64)
    spans[:, 0], spans[:, 1:] = np.stack([offsets[:-1], offsets[1:]], axis=1), 0
    spans[cuts.documents] = _in_order(cuts.is_spm, start, first, second, stop)
    copied = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    flat = spans.reshape(-1, 2)
    copy_spans(np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]), data, copied)
    new = offsets - offsets[0]
    base, suffix = new[cuts.documents], stop - second
    prefix = first - start
    second_token = base + np.where(cuts.is_spm, 0, prefix)
    third_token = second_token + suffix
    # behind the prefix of SPM there is a break, so that prefix and middle are encoded apart; in PSM it cuts nothing
    break_at = third_token + np.where(cuts.is_spm, prefix, 0)
    # starts: of each token, and of the text behind it
    starts = np.stack([base, second_token, third_token, break_at], axis=1).repeat(2, axis=1)
    tokens = pa.array([each for name in (*names, BREAK) for each in (name, None)] * len(starts), pa.string())
    return texts_from(new, copied), Segments(
        np.repeat(cuts.documents, 8), starts.reshape(-1), tokens, np.ones(8 * len(starts), np.bool_)
    )


def _in_order(is_spm: np.ndarray, start: np.ndarray, first: np.ndarray, second: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The spans of the three parts of each document in their order: (num_changed, 3, 2)."""
    prefix, middle, suffix = (np.stack(pair, axis=1) for pair in ((start, first), (first, second), (second, stop)))
    psm, spm = np.stack([prefix, suffix, middle], axis=1), np.stack([suffix, prefix, middle], axis=1)
    return np.where(is_spm[:, None, None], spm, psm)


def _rearranged_ids(ids: np.ndarray, offsets: np.ndarray, cuts: _Cuts, tokens: np.ndarray) -> Encoded:
    """Ids with the parts of the changed documents in their new order, and the `tokens` before them, (3,)."""
    start, stop = offsets[cuts.documents], offsets[cuts.documents + 1]
    first, second = (start + _cut_indices(cut, stop - start).astype(np.int64) for cut in (cuts.first, cuts.second))
    source = np.concatenate([ids, tokens])  # a token is a span of one id behind the others
    spans = np.zeros((len(offsets) - 1, 6, 2), np.int64)
    spans[:, 0] = np.stack([offsets[:-1], offsets[1:]], axis=1)
    parts = _in_order(cuts.is_spm, start, first, second, stop)
    control = np.stack([len(ids) + np.arange(3), len(ids) + np.arange(1, 4)], axis=1)
    is_spm = cuts.is_spm[:, None]
    changed = np.empty((len(start), 6, 2), np.int64)
    changed[:, 0] = control[0]
    changed[:, 1] = np.where(is_spm, control[1], parts[:, 0])
    changed[:, 2] = np.where(is_spm, parts[:, 0], control[1])
    changed[:, 3] = np.where(is_spm, control[2], parts[:, 1])
    changed[:, 4] = np.where(is_spm, parts[:, 1], control[2])
    changed[:, 5] = parts[:, 2]
    spans[cuts.documents] = changed
    lengths = spans[:, :, 1] - spans[:, :, 0]
    flat, ends = lengths.reshape(-1), np.cumsum(lengths.reshape(-1))
    index = np.repeat(spans[:, :, 0].reshape(-1) - (ends - flat), flat) + np.arange(int(ends[-1]) if len(ends) else 0)
    return Encoded(source[index], np.concatenate([[0], np.cumsum(lengths.sum(axis=1))]), None)
