"""Rows of `datapipe/kernels/tokens/bpe.py`: made-up merges over the bytes of each case, and pretokens cut at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datapipe.kernels.tokens import bpe
from datapipe.kernels.tokens.bpe_cache import LINE_WORDS, LONG_WORDS
from datapipe.kernels.types import input_record
from tests.oracles import bpe as oracle
from tests.support.kernel_table import Case, Row

_MOST_PRETOKEN_BYTES = 90
_NUM_MERGES = 60


def _byte_ids(case: Case) -> np.ndarray:
    """Ids of the 256 bytes, in any order."""
    return case.generator.permutation(256).astype(np.int32)


def _merges(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merges of ids that are there, of bytes that occur: lefts, rights, results (num_merges,)."""
    rng, byte_ids = case.generator, _byte_ids(case)
    text = b"".join(case.texts) or b"ab"
    known = [int(byte_ids[text[index]]) for index in rng.integers(0, len(text), 12)]
    lefts, rights = np.zeros(_NUM_MERGES, np.int64), np.zeros(_NUM_MERGES, np.int64)
    for number in range(_NUM_MERGES):
        lefts[number], rights[number] = known[rng.integers(len(known))], known[rng.integers(len(known))]
        known.append(256 + number)
    return lefts, rights, np.arange(256, 256 + _NUM_MERGES)


def _ends(case: Case) -> np.ndarray:
    """Ends of pretokens: the end of each text, and random offsets inside."""
    rng, ends = case.generator, [np.zeros(0, np.int64)]
    for start, stop in zip(case.offsets[:-1].tolist(), case.offsets[1:].tolist()):
        steps = np.cumsum(rng.integers(1, _MOST_PRETOKEN_BYTES, stop - start + 1)) + start
        ends.append(np.append(steps[steps < stop], [stop] if stop > start else []).astype(np.int64))
    return np.concatenate(ends)


def _tokens(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A vocabulary of every second pretoken of the texts: slots, offsets, bytes. Token n is the n-th in sorted order."""
    pretokens = sorted(set(_pretokens(case)[::2]))[:200]
    offsets = np.cumsum([0, *map(len, pretokens)], dtype=np.int64)
    data = np.frombuffer(b"".join(pretokens) or b"\0", np.uint8)
    slots = np.full(1 << (2 * len(pretokens) + 2).bit_length(), -1, np.int32)
    with np.errstate(over="ignore"):
        bpe.fill_vocabulary(offsets, data, slots)
    return slots, offsets, data


def _pretokens(case: Case) -> list[bytes]:
    starts = np.concatenate([case.offsets[:1], _ends(case)[:-1]]) if len(_ends(case)) else []
    return [case.data[start:stop].tobytes() for start, stop in zip(starts, _ends(case))]


def _arguments(num_lines: int, whole_first: bool) -> Callable[[Case], Sequence[Any]]:
    def arguments(case: Case) -> Sequence[Any]:
        fixed = np.where(case.generator.random(len(case.texts)) < 0.2, 999, -1).astype(np.int32)
        with np.errstate(over="ignore"):
            fields = (_byte_ids(case), bpe.merge_table(*_merges(case)), whole_first, *_tokens(case))
        lines = [np.zeros((num_lines, LINE_WORDS), np.uint64), np.zeros((num_lines, LONG_WORDS), np.uint64)]
        room = _MOST_PRETOKEN_BYTES + bpe.SHORT
        scratch = [np.zeros(room, np.int32) for _ in range(3)] + [np.zeros(room, np.uint64), np.zeros(3 * room, np.uint64)]
        outputs = [np.zeros(len(case.offsets), np.int64), np.zeros(len(case.data) + len(case.texts), np.int32)]
        tables = [input_record(bpe.Tokens, fields), bpe.Workspace(*lines, *scratch)]
        return [case.offsets, case.data, fixed, _ends(case), *tables, *outputs]

    return arguments


def _expected(whole_first: bool) -> Callable[[Case], tuple[Any, Sequence[Any]]]:
    def expected(case: Case) -> tuple[Any, Sequence[Any]]:
        merges = {}
        for rank, (left, right, result) in enumerate(zip(*(column.tolist() for column in _merges(case)))):
            merges[left, right] = (rank, result)
        whole = {pretoken: number for number, pretoken in enumerate(sorted(set(_pretokens(case)[::2]))[:200]) if pretoken}
        fixed, byte_ids = case.generator.random(len(case.texts)) < 0.2, _byte_ids(case).tolist()
        ends, pretokens, offsets, ids = iter(_ends(case).tolist()), iter(_pretokens(case)), [0], []
        for is_fixed, stop in zip(fixed, case.offsets[1:].tolist()):
            start = stop - len(case.texts[len(offsets) - 1])
            ids += [999] if is_fixed else []
            while start < stop:
                start, pretoken = next(ends), next(pretokens)
                if not is_fixed:
                    known = whole_first and pretoken in whole
                    ids += [whole[pretoken]] if known else oracle.merged(pretoken, byte_ids, merges)
            offsets.append(len(ids))
        return len(ids), [offsets, ids]

    return expected


def _merge_arguments(case: Case) -> Sequence[Any]:
    return [*_merges(case), np.zeros((256, 2), np.uint64)]


def _filled(lefts: np.ndarray, rights: np.ndarray, results: np.ndarray) -> tuple[Any, Sequence[Any]]:
    """Slots by linear probing from the hash, as told by the kernel's docstring."""
    table = [[0, 0] for _ in range(256)]
    for rank, (left, right, result) in enumerate(zip(lefts.tolist(), rights.tolist(), results.tolist())):
        key = (left << 32 | right) + 1
        hashed = key * 0x9E3779B97F4A7C15 % 2**64
        slot = (hashed ^ (hashed >> 32)) % 256
        while table[slot][0] not in (0, key):
            slot = (slot + 1) % 256
        table[slot] = [key, rank << 32 | result]
    return None, [table]


def _vocabulary_arguments(case: Case) -> Sequence[Any]:
    slots, offsets, data = _tokens(case)
    return [offsets, data, np.full_like(slots, -1)]


def _slots(offsets: np.ndarray, data: np.ndarray) -> tuple[Any, Sequence[Any]]:
    """Every token is found from its hash on, before a free slot."""
    num_tokens = len(offsets) - 1
    slots = [-1] * (1 << (2 * num_tokens + 2).bit_length())
    for token in range(num_tokens):
        pretoken = data[offsets[token] : offsets[token + 1]].tobytes()
        if not pretoken:
            continue
        hashed = 0xCBF29CE484222325
        for byte in pretoken:
            hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
        slot = ((hashed ^ (hashed >> 29)) * 0xD6E8FEB86659FD93 % 2**64 >> 8) % len(slots)
        while slots[slot] >= 0:
            slot = (slot + 1) % len(slots)
        slots[slot] = token
    return None, [slots]


def _longest(case: Case) -> tuple[Any, Sequence[Any]]:
    return max(map(len, _pretokens(case)), default=0), []


def _rows() -> list[Row]:
    encodings = [(1 << 8, False, ""), (2, False, "tiny cache"), (1 << 8, True, "whole first")]
    return [
        Row(
            kernel=bpe.encode_pretokens,
            arguments=_arguments(num_lines, whole_first),
            oracle=_expected(whole_first),
            num_outputs=2,
            variant=variant,
            from_case=True,
        )
        for num_lines, whole_first, variant in encodings
    ]


ROWS = [
    *_rows(),
    Row(kernel=bpe.fill_merges, arguments=_merge_arguments, oracle=_filled),
    Row(kernel=bpe.fill_vocabulary, arguments=_vocabulary_arguments, oracle=_slots),
    Row(
        kernel=bpe.longest_pretoken,
        arguments=lambda case: [int(case.offsets[0]), _ends(case)],
        oracle=_longest,
        num_outputs=0,
        from_case=True,
    ),
]
