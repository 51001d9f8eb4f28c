"""Rows of the kernels of `datapipe/kernels/tokens` that find rows of shards and copy them.

The memory of shards and windows is kept for as long as the tests run, since kernels know it by its address alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from datapipe.kernels.tokens import gather
from tests.oracles.batch import shifted_labels
from tests.support.kernel_table import Case, Steps, offsets_of, room, row

_ROW_LENGTH, _ROWS_PER_BLOCK, _NUM_BLOCKS = 19, 5, 4
_COUNTS = (7, 0, 20, 1, 0, 11)
"""Rows of some shards; those of even number have a table."""

_DAMAGED_LENGTHS, _DAMAGED_OFFSETS = [0, -1, _ROW_LENGTH + 1, 2**31 - 1, -(2**31)], [-1, 2**31 - 1, 5]


@dataclass(frozen=True)
class _Block:
    """A record batch: ids of each row, the first chunk of each row, and lengths, keys and starts of all chunks.

    `entries` are its addresses, of narrow and of wide ids.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray
    starts: np.ndarray
    run_offsets: np.ndarray
    runs: np.ndarray
    kept: list[np.ndarray]
    entries: np.ndarray

    def chunks(self, number: int) -> slice:
        return slice(self.offsets[number], self.offsets[number + 1])

    def borders(self, number: int) -> list[int]:
        """Of the runs of a row; none of block 0, which has no such column."""
        return self.runs[self.run_offsets[number] : self.run_offsets[number + 1]].tolist()

    def has_sound_runs(self, number: int) -> bool:
        return 0 <= self.run_offsets[number] <= self.run_offsets[number + 1] <= len(self.runs)

    def has_fitting_runs(self, number: int) -> bool:
        borders = self.borders(number)
        return len(borders) % 2 == 0 and borders == sorted(borders) and all(0 <= each <= _ROW_LENGTH for each in borders)

    def is_sound(self, number: int) -> bool:
        return 0 <= self.offsets[number] <= self.offsets[number + 1] <= len(self.lengths)

    def fits(self, number: int) -> bool:
        lengths = self.lengths[self.chunks(number)].tolist()
        return min(lengths, default=1) >= 1 and sum(lengths) <= _ROW_LENGTH


@cache
def _blocks(case: Case, damaged: bool) -> list[_Block]:
    """Blocks of random rows. Block 2 ends with a zero, as a file does that was cut short; block 1 is of no file."""
    generator, blocks = case.generator, list[_Block]()
    for number in range(_NUM_BLOCKS):
        offsets = np.cumsum([0, *generator.integers(0, 4, _ROWS_PER_BLOCK)]).astype(np.int32)
        lengths = generator.integers(1, _ROW_LENGTH // 3, offsets[-1]).astype(np.int32)
        if damaged and generator.integers(2) and len(lengths):
            lengths[generator.integers(len(lengths))] = generator.choice(_DAMAGED_LENGTHS)
        if damaged and generator.integers(2):
            offsets[generator.integers(len(offsets))] = generator.choice(_DAMAGED_OFFSETS)
        run_offsets, runs = _random_runs(case, number, damaged)
        tokens = generator.integers(0, 65_536, (_ROWS_PER_BLOCK, _ROW_LENGTH)).astype(np.uint16)
        keys, starts = (
            generator.integers(0, 1 << 62, (len(lengths), 2)).astype(np.uint64),
            generator.integers(0, 1 << 40, len(lengths)),
        )
        wide, end = tokens.astype(np.uint32), np.frombuffer(b"\0" if number == 2 else b"1", np.uint8)
        columns = [tokens, offsets, lengths, keys, starts, run_offsets, runs]
        addresses = [column.ctypes.data for column in columns]
        of_runs = [*addresses[5:], len(runs)] if number else [0, 0, 0]
        entry = [*addresses[:5], len(lengths), end.ctypes.data * (number != 1), *of_runs]
        entries = np.array([entry, entry], np.int64)
        entries[1, gather.TOKENS] = wide.ctypes.data
        blocks.append(_Block(*columns, [wide, end], entries))
    return blocks


def _random_runs(case: Case, number: int, damaged: bool) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and borders of the runs of a block's rows."""
    generator = case.generator
    counts = generator.integers(0, 3, _ROWS_PER_BLOCK) * (number > 0)
    runs = [np.sort(generator.choice(_ROW_LENGTH + 1, 2 * count, replace=False)) for count in counts]
    offsets, borders = np.cumsum([0, *(2 * counts)]).astype(np.int32), np.concatenate(runs).astype(np.int32)
    if damaged and number and generator.integers(2) and len(borders):
        borders[generator.integers(len(borders))] = generator.choice(_DAMAGED_LENGTHS)
    if damaged and number and generator.integers(2):
        offsets[generator.integers(len(offsets))] = generator.choice([*_DAMAGED_OFFSETS, 1])
    return offsets, borders


def _wanted(case: Case, damaged: bool = False, sound_only: bool = False) -> list[tuple[_Block, int]]:
    """Blocks and rows in them, as many as there are documents. `gather_*` are called with rows of sound offsets alone."""
    blocks, generator = _blocks(case, damaged), case.generator
    numbers = generator.integers(0, _NUM_BLOCKS, len(case.texts)).tolist()
    wanted = [(blocks[number], int(generator.integers(0, _ROWS_PER_BLOCK))) for number in numbers]
    return [(block, number) for block, number in wanted if not sound_only or block.is_sound(number)]


def _addresses(wanted: list[tuple[_Block, int]], is_wide: bool = False) -> np.ndarray:
    return np.array([block.entries[int(is_wide)].ctypes.data for block, _ in wanted], np.int64)


@row(gather.copy_rows, np.uint16, False, variant="2-uint16")
@row(gather.copy_rows, np.int32, False, variant="2-int32")
@row(gather.copy_rows, np.int64, False, variant="2-int64")
@row(gather.copy_rows, np.uint32, True, variant="4-uint32")
@row(gather.copy_rows, np.int32, True, variant="4-int32")
@row(gather.copy_rows, np.int64, True, variant="4-int64")
def copy_rows(case: Case, dtype: type, is_wide: bool) -> Steps:
    wanted = _wanted(case)
    yield (
        [_addresses(wanted, is_wide), np.array([number for _, number in wanted], np.int64), 4 if is_wide else 2],
        room((len(wanted), _ROW_LENGTH), dtype),
    )
    yield _first_cut(case, wanted), [[block.tokens[number] for block, number in wanted]]


@row(gather.copy_with_next, np.int32, False, False, variant="2-int32")
@row(gather.copy_with_next, np.int64, False, False, variant="2-int64")
@row(gather.copy_with_next, np.int32, True, False, variant="4-int32")
@row(gather.copy_with_next, np.int64, True, True, variant="4-int64-damaged")
def copy_with_next(case: Case, dtype: type, is_wide: bool, damaged: bool) -> Steps:
    wanted = _wanted(case, damaged)
    rows = np.array([number for _, number in wanted], np.int64)
    yield [_addresses(wanted, is_wide), rows, 4 if is_wide else 2], room((len(wanted), _ROW_LENGTH), dtype, dtype)
    bad = [i for i, (block, number) in enumerate(wanted) if not block.is_sound(number) or not block.fits(number)]
    copied = wanted[: bad[0]] if bad else wanted
    tokens = [block.tokens[number].tolist() for block, number in copied]
    lengths = [block.lengths[block.chunks(number)].tolist() for block, number in copied]
    bad_row = bad[0] if bad else _first_cut(case, wanted, damaged)
    yield bad_row, [tokens, list(map(shifted_labels, tokens, lengths))]


@row(gather.find_cut)
def find_cut(case: Case) -> Steps:
    wanted = _wanted(case)
    yield [_addresses(wanted)], []
    yield _first_cut(case, wanted), []


def _first_cut(case: Case, wanted: list[tuple[_Block, int]], damaged: bool = False) -> int:
    return next((i for i, (block, _) in enumerate(wanted) if block is _blocks(case, damaged)[2]), -1)


@row(gather.count_chunks, False)
@row(gather.count_chunks, True, variant="damaged")
def count_chunks(case: Case, damaged: bool) -> Steps:
    wanted = _wanted(case, damaged)
    outputs = [*room(len(wanted), np.int64), *room(len(wanted) + 1, np.int64)]
    yield [_addresses(wanted), np.array([number for _, number in wanted], np.int64)], outputs
    unsound = next((i for i, (block, number) in enumerate(wanted) if not block.is_sound(number)), -1)
    sound = wanted if unsound < 0 else wanted[:unsound]
    chunks = [block.lengths[block.chunks(number)] for block, number in sound]
    yield unsound, [[block.offsets[number] for block, number in sound], offsets_of(chunks)]


@row(gather.count_borders, False)
@row(gather.count_borders, True, variant="damaged")
def count_borders(case: Case, damaged: bool) -> Steps:
    wanted = _wanted(case, damaged)
    outputs = [*room(len(wanted), np.int64), *room(len(wanted) + 1, np.int64)]
    yield [_addresses(wanted), np.array([number for _, number in wanted], np.int64)], outputs
    unsound = next((i for i, (block, number) in enumerate(wanted) if not block.has_sound_runs(number)), -1)
    sound = wanted if unsound < 0 else wanted[:unsound]
    firsts = [block.run_offsets[number] for block, number in sound]
    yield unsound, [firsts, offsets_of(block.borders(number) for block, number in sound)]


@row(gather.gather_runs, False)
@row(gather.gather_runs, True, variant="damaged")
def gather_runs(case: Case, damaged: bool) -> Steps:
    wanted = [each for each in _wanted(case, damaged) if each[0].has_sound_runs(each[1])]
    firsts = np.array([block.run_offsets[number] for block, number in wanted], np.int64)
    offsets = offsets_of(block.borders(number) for block, number in wanted)
    yield [_addresses(wanted), firsts, offsets, _ROW_LENGTH], room(offsets[-1], np.int32)
    unfit = next((i for i, (block, number) in enumerate(wanted) if not block.has_fitting_runs(number)), -1)
    fitting = wanted if unfit < 0 else wanted[:unfit]
    yield unfit, [[border for block, number in fitting for border in block.borders(number)]]


def _chunk_inputs(wanted: list[tuple[_Block, int]]) -> list[np.ndarray]:
    firsts = np.array([block.offsets[number] for block, number in wanted], np.int64)
    return [_addresses(wanted), firsts, offsets_of(block.lengths[block.chunks(number)] for block, number in wanted)]


@row(gather.gather_lengths, False)
@row(gather.gather_lengths, True, variant="damaged")
def gather_lengths(case: Case, damaged: bool) -> Steps:
    wanted = _wanted(case, damaged, sound_only=True)
    inputs = _chunk_inputs(wanted)
    yield [*inputs, _ROW_LENGTH], room(inputs[2][-1], np.int32)
    unfit = next((i for i, (block, number) in enumerate(wanted) if not block.fits(number)), -1)
    fitting = wanted if unfit < 0 else wanted[:unfit]
    yield unfit, [[length for block, number in fitting for length in block.lengths[block.chunks(number)].tolist()]]


@row(gather.gather_starts, "starts", (), np.int64)
@row(gather.gather_keys, "keys", (2,), np.uint64)
def gather_columns(case: Case, column: str, shape: tuple[int, ...], dtype: type) -> Steps:
    wanted = _wanted(case, sound_only=True)
    inputs = _chunk_inputs(wanted)
    yield inputs, room((inputs[2][-1], *shape), dtype)
    yield None, [[entry for block, number in wanted for entry in getattr(block, column)[block.chunks(number)]]]


@cache
def _tables() -> list[np.ndarray]:
    """Tables of some shards, in which every third block is absent."""
    tables = []
    for count in _COUNTS:
        table = np.zeros((-(-count // _ROWS_PER_BLOCK) + 1, gather.BLOCK_WIDTH), np.int64)
        table[0, 0] = _ROWS_PER_BLOCK
        table[1:, gather.TOKENS] = np.arange(1, len(table)) % 3
        tables.append(table)
    return tables


@row(gather.find_rows)
def find_rows(case: Case) -> Steps:
    size, starts = len(case.texts), np.cumsum([0, *_COUNTS]).astype(np.int64)
    addresses = case.generator.integers(0, sum(_COUNTS), size)
    tables = np.array([table.ctypes.data * (shard % 2 == 0) for shard, table in enumerate(_tables())], np.int64)
    outputs = [np.full(len(_COUNTS), -1, np.int64), *room(size, np.int64, np.int64, np.int64)]
    yield [addresses, starts, tables, case.seed], outputs
    used, found = [-1] * len(_COUNTS), list[tuple[int, int, int]]()
    for address in addresses.tolist():
        shard = next(shard for shard, count in enumerate(_COUNTS) if starts[shard] <= address < starts[shard] + count)
        used[shard] = case.seed
        number, within = divmod(address - int(starts[shard]), _ROWS_PER_BLOCK)
        is_there = shard % 2 == 0 and (number + 1) % 3 != 0
        block = int(tables[shard]) + (number + 1) * gather.BLOCK_BYTES if is_there else 0
        found.append((shard, within if is_there else address - int(starts[shard]), block))
    columns = [[entry[part] for entry in found] for part in range(3)]
    yield columns[2].count(0), [used, *columns]
