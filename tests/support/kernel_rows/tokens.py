"""Rows of `datapipe/kernels/tokens` that encode and deal rows; those that find and copy rows are in `loading`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from datapipe.kernels.tokens import added_tokens, bpe, quota
from datapipe.kernels.tokens.bpe_cache import LINE_WORDS, LONG_WORDS
from datapipe.kernels.types import input_record
from tests.oracles import bpe as bpe_oracle
from tests.oracles import loading as loading_oracle
from tests.support.kernel_table import Case, Steps, offsets_of, row

_ADDED = {
    b"  ": 300,
    b"    ": 301,
    b"the": 302,
    b"the word": 303,
    b"<|end|>": added_tokens.PASSED_OVER,
    b"<|": 304,
    b"d|>": 305,
}


@row(added_tokens.cut_at_tokens)
def cut_at_tokens(case: Case) -> Steps:
    """Runs of spaces, overlapping marks and marks that are read as text."""
    case = case.having((text + b"\n     the wor<|end|>the word<|en d|>the" for text in case.texts), b"<|", b"  ")
    fixed = np.where(case.generator.random(len(case.texts)) < 0.3, 7, -1).astype(np.int32)
    size = len(case.data) + len(case.texts)
    outputs = [np.zeros(len(case.offsets), np.int64), np.zeros(size, np.int64), np.zeros(size, np.int32)]
    yield [case.offsets, case.data, fixed, *added_tokens.token_trie(_ADDED)], outputs
    parts = [
        [(text, number)] if number >= 0 else bpe_oracle.cut_at_tokens(text, _ADDED)
        for text, number in zip(case.texts, fixed.tolist())
    ]
    flat = [part for text in parts for part in text]
    ends = offsets_of((part for part, _ in flat), len(case.before))[1:]
    yield len(flat), [offsets_of(parts), ends, [number for _, number in flat]]


_MOST_PRETOKEN_BYTES, _NUM_MERGES = 90, 60


def _merges(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ids of the 256 bytes, in any order; and merges of ids that are there: lefts, rights, results (num_merges,)."""
    rng, byte_ids = case.generator, case.generator.permutation(256).astype(np.int32)
    text = b"".join(case.texts) or b"ab"
    known = [int(byte_ids[text[index]]) for index in rng.integers(0, len(text), 12)]
    pairs = np.zeros((2, _NUM_MERGES), np.int64)
    for number in range(_NUM_MERGES):
        pairs[:, number] = known[rng.integers(len(known))], known[rng.integers(len(known))]
        known.append(256 + number)
    return byte_ids, *pairs, np.arange(256, 256 + _NUM_MERGES)


def _pretoken_ends(case: Case) -> np.ndarray:
    """Ends of pretokens: the end of each text, and random offsets inside."""
    rng, ends = case.generator, [np.zeros(0, np.int64)]
    for start, stop in pairwise(case.offsets.tolist()):
        steps = np.cumsum(rng.integers(1, _MOST_PRETOKEN_BYTES, stop - start + 1)) + start
        ends.append(np.append(steps[steps < stop], [stop] if stop > start else []).astype(np.int64))
    return np.concatenate(ends)


def _pretokens(case: Case) -> list[bytes]:
    return [case.data[start:stop].tobytes() for start, stop in pairwise([len(case.before), *_pretoken_ends(case).tolist()])]


def _vocabulary(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[bytes]]:
    """Every second pretoken of the texts: slots, offsets, bytes and the pretokens. Token n is the n-th in sorted order."""
    known = sorted(set(_pretokens(case)[::2]))[:200]
    slots = np.full(1 << (2 * len(known) + 2).bit_length(), -1, np.int32)
    return slots, offsets_of(known), np.frombuffer(b"".join(known) or b"\0", np.uint8), known


@row(bpe.encode_pretokens, 1 << 8, False)
@row(bpe.encode_pretokens, 2, False, variant="tiny cache")
@row(bpe.encode_pretokens, 1 << 8, True, variant="whole first")
def encode_pretokens(case: Case, num_lines: int, whole_first: bool) -> Steps:
    is_fixed, ends = case.generator.random(len(case.texts)) < 0.2, _pretoken_ends(case)
    byte_ids, *pairs = _merges(case)
    slots, offsets, data, known = _vocabulary(case)
    with np.errstate(over="ignore"):
        bpe.fill_vocabulary(offsets, data, slots)
        tokens = input_record(bpe.Tokens, (byte_ids, bpe.merge_table(*pairs), whole_first, slots, offsets, data))
    size = _MOST_PRETOKEN_BYTES + bpe.SHORT
    lines = [np.zeros((num_lines, words), np.uint64) for words in (LINE_WORDS, LONG_WORDS)]
    scratch = [np.zeros(size, np.int32) for _ in range(3)] + [np.zeros(size, np.uint64), np.zeros(3 * size, np.uint64)]
    outputs = [np.zeros(len(case.offsets), np.int64), np.zeros(len(case.data) + len(case.texts), np.int32)]
    fixed = np.where(is_fixed, 999, -1).astype(np.int32)
    yield [case.offsets, case.data, fixed, ends, tokens, bpe.Workspace(*lines, *scratch)], outputs
    merges = {pair: (rank, 256 + rank) for rank, pair in enumerate(zip(pairs[0].tolist(), pairs[1].tolist()))}
    whole = {pretoken: number for number, pretoken in enumerate(known) if pretoken} if whole_first else {}
    pretokens_left, ids = iter(_pretokens(case)), list[list[int]]()
    for text, only in zip(case.texts, is_fixed):
        ids.append([999] if only else [])
        size = 0
        while size < len(text):
            pretoken = next(pretokens_left)
            size += len(pretoken)
            found = [whole[pretoken]] if pretoken in whole else bpe_oracle.merged(pretoken, byte_ids.tolist(), merges)
            ids[-1] += [] if only else found
    yield sum(map(len, ids)), [offsets_of(ids), [number for own in ids for number in own]]


@row(bpe.longest_pretoken)
def longest_pretoken(case: Case) -> Steps:
    yield [len(case.before), _pretoken_ends(case)], []
    yield max(map(len, _pretokens(case)), default=0), []


@row(quota.assign)
def assign(case: Case) -> Steps:
    """A tree with a leaf per document, some of enormous weight: each node's left child is a leaf, the right one the rest."""
    generator = case.generator
    exponents = generator.integers(0, 50, max(1, len(case.texts)))
    weights = [int(2**exponent + generator.integers(0, 100)) for exponent in exponents[:500]]
    samples = np.concatenate([np.arange(100), generator.integers(0, 1 << 40, 100)])
    start, stop = int(generator.integers(0, 50)), int(generator.integers(60, 1 << 40))
    leaves = np.stack([generator.permutation(len(weights)), generator.integers(0, 1000, len(weights))], axis=1)
    last = len(weights) - 1
    lines = [[weights[node], sum(weights[node:]), ~node, node + 1 if node + 1 < last else ~last] for node in range(last)]
    nodes = np.array(lines, np.int64).reshape(-1, 4)
    yield [samples, start, stop, nodes, leaves], [np.full_like(samples, -5), np.full_like(samples, -5)]
    drawn, outside = list[tuple[int, int]](), 0
    for sample in samples.tolist():
        if start <= sample < stop:
            leaf, ordinal = loading_oracle.descend(sample - start, *nodes.T.tolist())
            drawn.append((int(leaves[leaf, 0]), int(leaves[leaf, 1]) + ordinal))
        else:
            drawn.append((-5, -5))
            outside += 1
    yield outside, [[source for source, _ in drawn], [ordinal for _, ordinal in drawn]]
