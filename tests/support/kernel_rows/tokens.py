"""Rows of `datapipe/kernels/tokens` that encode, permute, deal rows and make batches; others are in `packing` and `loading`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from datapipe.kernels.tokens import added_tokens, balance, batch, bpe, bpe_training, context, permute, pretokens, quota
from datapipe.kernels.tokens.bpe_cache import LINE_WORDS, LONG_WORDS
from datapipe.kernels.types import input_record
from datapipe.tokens.character_classes import cl100k_table, deepseek_table, gpt2_table, o200k_table
from datapipe.tokens.published_patterns import PATTERNS, Family, Flags
from datapipe.tokens.vocabulary import byte_alphabet
from tests.oracles import batch as batch_oracle
from tests.oracles import bpe as bpe_oracle
from tests.oracles import loading as loading_oracle
from tests.oracles.pretokens import ends_of_case
from tests.oracles.texts import fnv
from tests.support.kernel_table import RUNS_AS_PYTHON, Case, Steps, grouped, offsets_of, room, row

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


@row(balance.deal_rows)
def deal_rows(case: Case) -> Steps:
    """Costs of any size, ranks with different room."""
    generator = case.generator
    num_rows, num_ranks = int(generator.integers(0, 40)), int(generator.integers(1, 9))
    costs = generator.integers(0, 2 ** int(generator.integers(1, 40)), num_rows)
    rooms = np.bincount(generator.integers(0, num_ranks, num_rows), minlength=num_ranks).astype(np.int64)
    order = np.argsort(-costs, kind="stable")
    yield [costs, order], [rooms.copy(), np.zeros(num_ranks, np.int64), *room(num_rows, np.int64)]
    hands: list[list[int]] = [[] for _ in rooms]
    for number in order.tolist():
        free = [rank for rank, hand in enumerate(hands) if len(hand) < rooms[rank]]
        hands[min(free, key=lambda rank: costs[hands[rank]].sum())].append(number)
    rank_of = {number: rank for rank, hand in enumerate(hands) for number in hand}
    yield None, [[0] * num_ranks, [costs[hand].sum() for hand in hands], [rank_of[number] for number in range(num_rows)]]


_BATCH_LENGTH = 23


def _batch(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (num_rows, S), chunk offsets (num_rows + 1,) and chunk lengths; one row per document, some padded."""
    generator, rows = case.generator, list[list[int]]()
    for _ in case.texts:
        rows, left = [*rows, []], int(generator.integers(1, _BATCH_LENGTH + 1))
        while left:
            rows[-1].append(int(generator.integers(1, left + 1)))
            left -= rows[-1][-1]
    lengths = np.array([length for own in rows for length in own], np.int32)
    return generator.integers(0, 1000, (len(rows), _BATCH_LENGTH)), offsets_of(rows), lengths


@row(batch.shifted_labels_64, np.int64, batch_oracle.shifted_labels)
@row(batch.shifted_labels_32, np.int32, batch_oracle.shifted_labels)
@row(batch.unshifted_labels_64, np.int64, batch_oracle.unshifted_labels)
@row(batch.unshifted_labels_32, np.int32, batch_oracle.unshifted_labels)
def labels(case: Case, dtype: type, of_row: Callable[..., list[int]]) -> Steps:
    tokens, offsets, lengths = _batch(case)
    yield [tokens.astype(dtype), offsets, lengths], room(tokens.shape, dtype)
    yield None, [[of_row(*both) for both in zip(tokens.tolist(), grouped(offsets, lengths.tolist()))]]


@row(batch.positions_64, np.int64, batch_oracle.positions)
@row(batch.positions_32, np.int32, batch_oracle.positions)
@row(batch.segments_64, np.int64, batch_oracle.segments)
@row(batch.segments_32, np.int32, batch_oracle.segments)
def positions(case: Case, dtype: type, of_row: Callable[..., list[int]]) -> Steps:
    tokens, offsets, lengths = _batch(case)
    yield [offsets, lengths], room(tokens.shape, dtype)
    yield None, [[of_row(own, _BATCH_LENGTH) for own in grouped(offsets, lengths.tolist())]]


@row(batch.borders)
def borders(case: Case) -> Steps:
    _, offsets, lengths = _batch(case)
    num_rows = len(case.texts)
    rows = np.array([0, *np.sort(case.generator.integers(0, num_rows + 1, 3)).tolist(), num_rows], np.int64)
    size = len(rows) - 1 + num_rows + len(lengths)
    outputs = [*room(size, np.int32), *room(len(rows), np.int64), *room(len(rows) - 1, int)]
    yield [offsets, lengths, rows, _BATCH_LENGTH], outputs
    batches = [batch_oracle.borders(own, _BATCH_LENGTH) for own in grouped(rows, grouped(offsets, lengths.tolist()))]
    longest = [max((b - a for a, b in pairwise(found)), default=0) for found in batches]
    yield None, [[border for found in batches for border in found], offsets_of(batches), longest]


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


@row(bpe.fill_merges)
def fill_merges(case: Case) -> Steps:
    """Slots by linear probing from the hash, as the kernel's docstring has it."""
    _, lefts, rights, results = _merges(case)
    yield [lefts, rights, results], [np.zeros((256, 2), np.uint64)]
    table = [[0, 0] for _ in range(256)]
    for rank, (left, right, result) in enumerate(zip(lefts.tolist(), rights.tolist(), results.tolist())):
        key = (left << 32 | right) + 1
        hashed = key * 0x9E3779B97F4A7C15 % 2**64
        slot = (hashed ^ (hashed >> 32)) % 256
        while table[slot][0] not in (0, key):
            slot = (slot + 1) % 256
        table[slot] = [key, rank << 32 | result]
    yield None, [table]


@row(bpe.fill_vocabulary)
def fill_vocabulary(case: Case) -> Steps:
    """Every token is found from its hash on, before a free slot."""
    out, offsets, data, known = _vocabulary(case)
    yield [offsets, data], [out]
    slots = [-1] * len(out)
    for token, pretoken in enumerate(known):
        hashed = fnv(pretoken)
        slot = ((hashed ^ (hashed >> 29)) * 0xD6E8FEB86659FD93 % 2**64 >> 8) % len(slots)
        while pretoken and slots[slot] >= 0:
            slot = (slot + 1) % len(slots)
        if pretoken:
            slots[slot] = token
    yield None, [slots]


@row(bpe.longest_pretoken)
def longest_pretoken(case: Case) -> Steps:
    yield [len(case.before), _pretoken_ends(case)], []
    yield max(map(len, _pretokens(case)), default=0), []


@row(bpe_training.join_pairs, 257, 2, variant="257 tokens, 2")
@row(bpe_training.join_pairs, 300, 2, variant="300 tokens, 2")
@row(bpe_training.join_pairs, 2000, 2, variant="2000 tokens, 2")
@row(bpe_training.join_pairs, 1200, 1, variant="1200 tokens, 1")
def join_pairs(case: Case, num_tokens: int, min_count: int) -> Steps:
    """Words of the texts, and of two letters, in which pairs overlap, by the trainer of Hugging Face `tokenizers`."""
    alphabet, most = byte_alphabet(), 2_000 if RUNS_AS_PYTHON else 20_000
    runs = [bytes(case.generator.integers(97, 99, size, np.uint8)) for size in (3, 5, 9, 17, 40)]
    words = [word for text in case.texts for word in text[:most].split(b" ")] + runs
    words = [word for word in dict.fromkeys(words) if word]
    letters = np.array([alphabet[letter] for letter in sorted(alphabet)], np.uint8)
    ids = np.zeros(256, np.int32)
    ids[letters] = np.arange(1, 257)
    symbols, counts = ids[np.frombuffer(b"".join(words), np.uint8)], case.generator.integers(1, 6, len(words))
    yield [offsets_of(words), symbols, counts, letters, num_tokens, min_count], [np.zeros(6 * num_tokens, np.int32)]
    letter_of = {byte: letter for letter, byte in alphabet.items()}
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=min_count,
        special_tokens=["<|special|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    spelled = ("".join(map(letter_of.__getitem__, word)) for word, count in zip(words, counts) for _ in range(count))
    tokenizer.train_from_iterator(spelled, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [model["vocab"][token] for left, right in model["merges"] for token in (left, right, left + right)]
    yield len(model["merges"]), [merges]


@row(context.split_runs)
def split_runs(case: Case) -> Steps:
    """Runs of any length, also none, padded to a multiple of the number of parts."""
    generator, num_docs = case.generator, len(case.texts)
    num_parts = int(generator.integers(1, 9))
    lengths = generator.integers(0, 40, num_docs)
    sizes = -(-lengths // num_parts) + generator.integers(0, 2, num_docs)
    parts = generator.choice(num_parts, min(num_parts, 2), replace=False)
    offsets, starts = (np.cumsum([0, *steps], dtype=np.int64) for steps in (sizes * len(parts), lengths))
    yield [starts[:-1], lengths, offsets, parts.astype(np.int64)], room(offsets[-1], np.int64, np.int64)
    tokens = [
        (start + t if t < length else -1, t)
        for start, length, size in zip(starts.tolist(), lengths.tolist(), sizes.tolist())
        for part in parts.tolist()
        for t in range(part * size, (part + 1) * size)
    ]
    yield None, [[place for place, _ in tokens], [position for _, position in tokens]]


@row(permute.feistel, (2, 3, 5, 1000, 65_536, 65_537, (1 << 30) + 1), False)
@row(permute.feistel_inverse, (2, 3, 5, 64, 300), True)
def feistel(case: Case, sizes: Sequence[int], is_inverse: bool) -> Steps:
    generator, size = case.generator, sizes[(len(case.texts) + case.seed) % len(sizes)]
    indices, keys = generator.integers(0, size, 64), permute.round_keys(int(generator.integers(0, 1 << 62)))
    yield [indices, size, keys], room(64, np.int64)
    own = range(size) if is_inverse else indices.tolist()
    found = [loading_oracle.feistel(index, size, keys.tolist()) for index in own]
    yield None, [[found.index(position) for position in indices.tolist()] if is_inverse else found]


@row(permute.shuffle_table)
def shuffle_table(case: Case) -> Steps:
    size = (len(case.texts) + case.seed) % 251
    key = case.seed * 7919
    yield [np.uint64(key)], room(size, np.uint16)
    yield None, [loading_oracle.shuffled(key, size)]


@row(pretokens.cut_gpt2, "gpt2", Flags(), gpt2_table(), 0, valid_only=True)
@row(
    pretokens.cut_gpt2,
    *("gpt2", Flags(longest_number=1, numbers_apart=True), gpt2_table(digits_apart=True), 1),
    variant="digits",
    valid_only=True,
)
@row(pretokens.cut_cl100k, "cl100k", Flags(longest_number=3), cl100k_table(), 3, False, valid_only=True)
@row(pretokens.cut_cl100k, "cl100k", Flags(whole_tail=True), cl100k_table(), 0, True, variant="tail", valid_only=True)
@row(pretokens.cut_o200k, "o200k", Flags(longest_number=3, contractions=True), o200k_table(), 3, True, valid_only=True)
@row(pretokens.cut_o200k, "o200k", Flags(longest_number=1), o200k_table(), 1, False, variant="tekken", valid_only=True)
@row(pretokens.cut_deepseek, "deepseek", Flags(longest_number=3), deepseek_table(), valid_only=True)
def cut_pretokens(case: Case, family: Family, flags: Flags, *arguments: Any) -> Steps:
    """The pattern that has these flags, compared with `tokenizers`; see also `test_patterns.py`."""
    yield [case.offsets, case.data, *arguments], [np.zeros(len(case.data), np.int64)]
    expressions = next(pattern for pattern, known in PATTERNS.items() if (known.family, known.flags) == (family, flags))
    ends = ends_of_case(expressions, case.offsets, case.texts)
    yield len(ends), [ends]


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
