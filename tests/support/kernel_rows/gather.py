"""Rows of `datapipe/kernels/tokens/gather.py`: record batches of random rows, some with damaged offsets and lengths.

Their memory is kept for as long as the tests run, since kernels know it by its address alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from datapipe.kernels.tokens import gather as kernels
from tests.oracles import gather as oracle
from tests.support.kernel_table import Case, Row

_LENGTH, _ROWS_PER_BLOCK, _NUM_BLOCKS = 19, 5, 4
_COUNTS = (7, 0, 20, 1, 0, 11)
"""Rows of some shards; those of even number have a table."""


@cache
def _blocks(case: Case, damaged: bool = False) -> tuple[list[oracle.ListBlock], np.ndarray, list[np.ndarray]]:
    """Blocks, their entries (num_blocks, BLOCK_WIDTH), and the arrays that the entries point to."""
    generator, blocks, entries, kept = case.generator, [], [], []
    for _ in range(_NUM_BLOCKS):
        counts = generator.integers(0, 4, _ROWS_PER_BLOCK)
        offsets = np.cumsum([0, *counts]).astype(np.int32)
        lengths = generator.integers(1, _LENGTH // 3, offsets[-1]).astype(np.int32)
        if damaged and generator.integers(2) and len(lengths):
            lengths[generator.integers(len(lengths))] = generator.choice([0, -1, _LENGTH + 1, 2**31 - 1, -(2**31)])
        if damaged and generator.integers(2):
            offsets[generator.integers(len(offsets))] = generator.choice([-1, 2**31 - 1, 5])
        columns = [
            generator.integers(0, 65_536, (_ROWS_PER_BLOCK, _LENGTH)).astype(np.uint16),
            offsets,
            lengths,
            generator.integers(0, 1 << 62, (len(lengths), 2)).astype(np.uint64),
            generator.integers(0, 1 << 40, len(lengths)),
        ]
        wide, end = columns[0].astype(np.uint32), np.frombuffer(b"\0" if len(blocks) == 2 else b"1", np.uint8)
        kept += [*columns, wide, end]
        entries.append(
            [*(column.ctypes.data for column in columns), len(lengths), end.ctypes.data * (len(blocks) != 1), wide.ctypes.data]
        )
        keys = [(int(first), int(second)) for first, second in columns[3]]
        tokens, starts = columns[0].tolist(), columns[4].tolist()
        blocks.append(oracle.ListBlock(tokens, offsets.tolist(), lengths.tolist(), keys, starts))
    table = np.array(entries, np.int64)
    narrow = np.ascontiguousarray(table[:, : kernels.BLOCK_WIDTH])
    broad = narrow.copy()
    broad[:, kernels.TOKENS] = table[:, -1]
    return blocks, np.stack([narrow, broad]), kept


def _wanted(case: Case, damaged: bool = False) -> list[tuple[int, int]]:
    """(block, row) of the wanted rows: as many as there are documents."""
    generator = case.generator
    numbers = generator.integers(0, _NUM_BLOCKS, len(case.texts))
    return [(int(number), int(row)) for number, row in zip(numbers, generator.integers(0, _ROWS_PER_BLOCK, len(numbers)))]


def _locations(case: Case, wide: bool = False, damaged: bool = False) -> tuple[np.ndarray, np.ndarray]:
    entries = _blocks(case, damaged)[1][int(wide)]
    wanted = _wanted(case)
    blocks = np.array([entries[number].ctypes.data for number, _ in wanted], np.int64)
    return blocks, np.array([row for _, row in wanted], np.int64)


def _copy_row(kernel: Any, wide: bool, dtype: type) -> Row:
    def arguments(case: Case) -> list[Any]:
        return [*_locations(case, wide), np.empty((len(case.texts), _LENGTH), dtype)]

    def expected(case: Case) -> tuple[None, list[Any]]:
        return None, [[_blocks(case)[0][number].tokens[row] for number, row in _wanted(case)]]

    return Row(kernel=kernel, arguments=arguments, oracle=expected, from_case=True)


def _cut_expected(case: Case) -> tuple[int, list[Any]]:
    """Block 2 ends with a zero, as a file does that was cut short; block 1 is of no file."""
    return next((i for i, (number, _) in enumerate(_wanted(case)) if number == 2), -1), []


def _count_arguments(damaged: bool) -> Callable[[Case], list[Any]]:
    return lambda case: [
        *_locations(case, damaged=damaged),
        np.empty(len(case.texts), np.int64),
        np.empty(len(case.texts) + 1, np.int64),
    ]


def _count_expected(damaged: bool) -> Callable[[Case], tuple[int, list[Any]]]:
    def expected(case: Case) -> tuple[int, list[Any]]:
        blocks, firsts, offsets = _blocks(case, damaged)[0], [], [0]
        for i, (number, row) in enumerate(_wanted(case)):
            if not blocks[number].is_sound(row):
                return i, [firsts, offsets]
            firsts.append(blocks[number].offsets[row])
            offsets.append(offsets[-1] + len(blocks[number].chunks(row)))
        return -1, [firsts, offsets]

    return expected


def _sound_rows(case: Case, damaged: bool) -> list[tuple[int, int]]:
    """The wanted rows with sound offsets: `gather_*` are not called with others."""
    blocks = _blocks(case, damaged)[0]
    return [(number, row) for number, row in _wanted(case) if blocks[number].is_sound(row)]


def _chunk_locations(case: Case, damaged: bool = False) -> list[Any]:
    blocks, entries, _ = _blocks(case, damaged)
    wanted = _sound_rows(case, damaged)
    counts = [len(blocks[number].chunks(row)) for number, row in wanted]
    return [
        np.array([entries[0][number].ctypes.data for number, _ in wanted], np.int64),
        np.array([blocks[number].offsets[row] for number, row in wanted], np.int64),
        np.cumsum([0, *counts]).astype(np.int64),
    ]


def _length_arguments(damaged: bool) -> Callable[[Case], list[Any]]:
    def arguments(case: Case) -> list[Any]:
        locations = _chunk_locations(case, damaged)
        return [*locations, _LENGTH, np.empty(locations[2][-1], np.int32)]

    return arguments


def _length_expected(damaged: bool) -> Callable[[Case], tuple[int, list[Any]]]:
    def expected(case: Case) -> tuple[int, list[Any]]:
        lengths: list[int] = []
        for i, (number, row) in enumerate(_sound_rows(case, damaged)):
            block = _blocks(case, damaged)[0][number]
            if not block.fits(row):
                return i, [lengths]
            lengths += [block.lengths[chunk] for chunk in block.chunks(row)]
        return -1, [lengths]

    return expected


def _chunk_row(kernel: Any, column: str, make: Callable[[int], np.ndarray]) -> Row:
    def arguments(case: Case) -> list[Any]:
        locations = _chunk_locations(case)
        return [*locations, make(int(locations[2][-1]))]

    def expected(case: Case) -> tuple[None, list[Any]]:
        blocks, wanted = _blocks(case)[0], _sound_rows(case, False)
        return None, [
            [getattr(blocks[number], column)[chunk] for number, row in wanted for chunk in blocks[number].chunks(row)]
        ]

    return Row(kernel=kernel, arguments=arguments, oracle=expected, from_case=True)


@lru_cache(maxsize=1)
def _tables() -> tuple[list[np.ndarray], np.ndarray]:
    """Tables of some shards, in which every third block is absent, and their addresses."""
    tables = []
    for count in _COUNTS:
        table = np.zeros((-(-count // _ROWS_PER_BLOCK) + 1, kernels.BLOCK_WIDTH), np.int64)
        table[0, 0] = _ROWS_PER_BLOCK
        table[1:, kernels.TOKENS] = np.arange(1, len(table)) % 3
        tables.append(table)
    return tables, np.array([table.ctypes.data * (shard % 2 == 0) for shard, table in enumerate(tables)], np.int64)


def _find_arguments(case: Case) -> list[Any]:
    size = len(case.texts)
    return [
        case.generator.integers(0, sum(_COUNTS), size),
        np.cumsum([0, *_COUNTS]).astype(np.int64),
        _tables()[1],
        case.seed,
        np.full(len(_COUNTS), -1, np.int64),
        *(np.empty(size, np.int64) for _ in range(3)),
    ]


def _find_expected(addresses: np.ndarray, starts: np.ndarray, tables: np.ndarray, now: int) -> tuple[int, list[list[int]]]:
    used, shards, rows, blocks = [-1] * len(_COUNTS), [], [], []
    for address in addresses.tolist():
        shard, row = oracle.find(address, _COUNTS)
        used[shard] = now
        number, within = divmod(row, _ROWS_PER_BLOCK)
        is_there = shard % 2 == 0 and (number + 1) % 3 != 0
        shards.append(shard)
        rows.append(within if is_there else row)
        blocks.append(int(tables[shard]) + (number + 1) * kernels.BLOCK_BYTES if is_there else 0)
    return blocks.count(0), [used, shards, rows, blocks]


ROWS = [
    Row(kernel=kernels.find_rows, arguments=_find_arguments, oracle=_find_expected, num_outputs=4),
    _copy_row(kernels.copy_16, False, np.uint16),
    _copy_row(kernels.copy_16_to_int32, False, np.int32),
    _copy_row(kernels.copy_16_to_int64, False, np.int64),
    _copy_row(kernels.copy_32, True, np.uint32),
    _copy_row(kernels.copy_32_to_int32, True, np.int32),
    _copy_row(kernels.copy_32_to_int64, True, np.int64),
    *(
        Row(
            kernel=kernels.count_chunks,
            arguments=_count_arguments(damaged),
            oracle=_count_expected(damaged),
            num_outputs=2,
            from_case=True,
            variant="damaged" if damaged else "",
        )
        for damaged in (False, True)
    ),
    *(
        Row(
            kernel=kernels.gather_lengths,
            arguments=_length_arguments(damaged),
            oracle=_length_expected(damaged),
            from_case=True,
            variant="damaged" if damaged else "",
        )
        for damaged in (False, True)
    ),
    Row(
        kernel=kernels.find_cut,
        arguments=lambda case: [_locations(case)[0]],
        oracle=_cut_expected,
        num_outputs=0,
        from_case=True,
    ),
    _chunk_row(kernels.gather_starts, "starts", lambda size: np.empty(size, np.int64)),
    _chunk_row(kernels.gather_keys, "keys", lambda size: np.empty((size, 2), np.uint64)),
]
