"""Blocks in memory: the addresses of the columns of a record batch, and a gather of rows from any number of blocks.

    record batch, or copied rows  ──▶  Block: five addresses, the number of pieces  ──▶  gather(blocks, rows)  ──▶  SequenceRows

An address is taken only of memory that is large enough for its column, so kernels need not check it. The values in that memory
may change under a kernel (a mapped file), so kernels check every value that they use: see `kernels/tokens/gather.py`.
"""

from collections.abc import Callable, Set
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.columns import KEY_BYTES
from datapipe.dataclass import dataclass
from datapipe.errors import CorruptionError, CutShortError
from datapipe.kernels.tokens import gather as kernels
from datapipe.shards.schemas import UNLEARNED

LENGTHS, KEYS, STARTS = "lengths", "keys", "starts"
TOKENS, OFFSETS = "tokens", "offsets"
EVERY_COLUMN = frozenset({TOKENS, OFFSETS, LENGTHS, KEYS, STARTS, UNLEARNED})
NEXT_TOKENS = "next_tokens"  # made from tokens, which must be wanted too, and from offsets and lengths

CUT = "the file was cut short while it was open. Delete the file and run the mixture again to restore it"

_ALIGNMENT = 8  # Arrow aligns every buffer to 8 bytes, and compiled loops rely on it


@dataclass(slots=True, kw_only=True)
class SequenceRows:
    """Rows in the order of the request; a column that was not requested is empty."""

    tokens: np.ndarray  # (n, S) uint16 or uint32, or the requested type; padded with the end-of-text id
    # (num_pieces,) int32, tokens of each piece: the part of one document that lies in one row
    piece_lengths: np.ndarray
    # (n + 1,) int64; row i holds the pieces `piece_offsets[i]` to `piece_offsets[i + 1]`
    piece_offsets: np.ndarray
    keys: np.ndarray  # (num_pieces, 16) uint8, the document of each piece
    starts: np.ndarray  # (num_pieces,) int64, the token of its document at which each piece starts
    next_tokens: np.ndarray  # (n, S), of the type of `tokens`: the next token of the same piece, else -100
    # row i has the borders `run_offsets[i]` to `run_offsets[i + 1]` of `runs` (num_borders,) int32: start and stop of each run
    # of tokens that no loss counts; (n + 1,) int64, or empty
    run_offsets: np.ndarray
    runs: np.ndarray


@dataclass(frozen=True, slots=True)
class Block:
    # (BLOCK_WIDTH,) int64, for kernels: the addresses of the columns, the number of pieces, and the address
    # of the last byte of the mapped file, or 0 for other memory
    entry: np.ndarray
    kept: Any  # the owner of the memory
    num_bytes: int  # of its columns


def block_of_batch(batch: pa.RecordBatch, within: pa.Buffer | None) -> Block | None:
    """The block of a record batch of `schemas.sequences`; None if a column is misaligned, too short or outside the file.
    `batch`: a whole batch of `shard_file.Shard`, whose lists have the same number of pieces. `within`: the mapped file that
    must contain all columns and owns their memory. None: the batch owns it."""
    tokens, lengths, keys, starts, *runs = batch.columns
    num_pieces, offset_bytes = len(lengths.values), 4 * (batch.num_rows + 1) if batch.num_rows else 0
    id_bytes = tokens.type.value_type.bit_width // 8
    wanted = [
        (tokens.values, 1, batch.num_rows * tokens.type.list_size * id_bytes),
        (lengths, 1, offset_bytes),
        (lengths.values, 1, 4 * num_pieces),
        (keys.values, 1, KEY_BYTES * num_pieces),
        (starts.values, 1, 8 * num_pieces),
    ]
    num_borders = len(runs[0].values) if runs else 0
    if num_borders:
        wanted += [(runs[0], 1, offset_bytes), (runs[0].values, 1, 4 * num_borders)]
    addresses = [_address(array.buffers()[number], num_bytes, within, array.offset) for array, number, num_bytes in wanted]
    if None in addresses:
        return None
    end = 0 if within is None else within.address + within.size - 1
    entry = [*addresses[:5], num_pieces, end, *(addresses[5:] or (0, 0)), num_borders]
    return Block(
        np.array(entry, np.int64),
        kept=batch if within is None else within,
        num_bytes=sum(num_bytes for _, _, num_bytes in wanted),
    )


def _address(buffer: pa.Buffer | None, num_bytes: int, within: pa.Buffer | None, offset: int) -> int | None:
    """The address of a buffer of at least `num_bytes`; None where it is misaligned, too short or outside the file."""
    address, size = (0, 0) if buffer is None else (buffer.address, buffer.size)
    is_sound = offset == 0 and address % _ALIGNMENT == 0 and size >= num_bytes and (address != 0 or not num_bytes)
    if num_bytes and within is not None:
        is_sound = is_sound and within.address <= address and address + num_bytes <= within.address + within.size
    return address if is_sound else None


def block_of_rows(rows: SequenceRows) -> Block:
    """Copied rows as a separate block, with the columns that they have."""
    offsets = rows.piece_offsets.astype(np.int32)
    columns = [rows.tokens, offsets, rows.piece_lengths, rows.keys, rows.starts]
    entry = np.zeros(kernels.BLOCK_WIDTH, np.int64)
    entry[:5] = [column.ctypes.data for column in columns]
    entry[kernels.NUM_CHUNKS] = rows.piece_offsets[-1] if len(rows.piece_offsets) else 0
    if len(rows.runs):
        columns += [rows.run_offsets.astype(np.int32), rows.runs]
        entry[kernels.RUN_OFFSETS :] = [*(column.ctypes.data for column in columns[5:]), len(rows.runs)]
    return Block(entry, kept=(rows, columns), num_bytes=sum(column.nbytes for column in columns))


def gather(
    # (n,) int64, address of the entry of each row's block; the caller keeps the blocks alive
    blocks: np.ndarray,
    rows: np.ndarray,  # (n,) int64, the row in each block
    *,
    sequence_length: int,
    stored: np.dtype,  # type of the ids in the blocks
    wanted: Set[str] = EVERY_COLUMN,  # the columns to read; no others are touched
    # dtype, allocate: type of `tokens` (`stored`, int32 or int64), and the function that creates the array
    dtype: np.dtype | None = None,
    allocate: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty,
    name: Callable[[int], str],  # index into `rows` -> path of its shard, for the message
) -> SequenceRows:
    """Copies rows out of blocks. Raises CutShortError for a mapped file that was cut short,
    CorruptionError for a row that points outside its block."""
    offsets, lengths, keys, starts = _pieces(blocks, rows, sequence_length, wanted, name)
    run_offsets, runs = _runs(blocks, rows, sequence_length, name) if UNLEARNED in wanted else (_NO_NUMBERS, _NO_LENGTHS)
    tokens = allocate((len(rows) if TOKENS in wanted else 0, sequence_length), dtype or stored)
    next_tokens = _NO_TOKENS
    if NEXT_TOKENS in wanted:
        next_tokens = allocate(tokens.shape, tokens.dtype)
        bad_row = kernels.copy_with_next(blocks, rows, stored.itemsize, tokens, next_tokens)
    elif len(tokens):
        bad_row = kernels.copy_rows(blocks, rows, stored.itemsize, tokens)
    else:
        bad_row = kernels.find_cut(blocks)
    _check(bad_row, blocks, name)  # after rows were copied: a file may be cut short at any time
    return SequenceRows(
        tokens=tokens,
        piece_offsets=offsets,
        piece_lengths=lengths,
        keys=keys,
        starts=starts,
        next_tokens=next_tokens,
        run_offsets=run_offsets,
        runs=runs,
    )


def stored_columns(wanted: Set[str]) -> Set[str]:
    """The columns of a shard from which `gather` makes the wanted ones."""
    return wanted & EVERY_COLUMN | ({OFFSETS, LENGTHS} if NEXT_TOKENS in wanted else set())


def _pieces(
    blocks: np.ndarray, rows: np.ndarray, sequence_length: int, wanted: Set[str], name: Callable[[int], str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Offsets, lengths, keys and starts of the pieces of some rows; those that are not wanted are empty."""
    lengths, keys, starts, offsets = _NO_LENGTHS, _NO_KEYS, _NO_NUMBERS, _NO_NUMBERS
    if wanted.isdisjoint(_PER_PIECE):
        return offsets, lengths, keys, starts
    firsts, offsets = np.empty(len(rows), np.int64), np.empty(len(rows) + 1, np.int64)
    _check(kernels.count_chunks(blocks, rows, firsts, offsets), blocks, name)
    num_pieces = int(offsets[-1])
    if LENGTHS in wanted:
        lengths = np.empty(num_pieces, np.int32)
        _check(kernels.gather_lengths(blocks, firsts, offsets, sequence_length, lengths), blocks, name)
    if KEYS in wanted:
        halves = np.empty((num_pieces, 2), np.uint64)
        kernels.gather_keys(blocks, firsts, offsets, halves)
        keys = halves.view(np.uint8)
    if STARTS in wanted:
        starts = np.empty(num_pieces, np.int64)
        kernels.gather_starts(blocks, firsts, offsets, starts)
    return offsets, lengths, keys, starts


def _runs(
    blocks: np.ndarray, rows: np.ndarray, sequence_length: int, name: Callable[[int], str]
) -> tuple[np.ndarray, np.ndarray]:
    """`SequenceRows.run_offsets` and `runs`."""
    firsts, offsets = np.empty(len(rows), np.int64), np.empty(len(rows) + 1, np.int64)
    _check(kernels.count_borders(blocks, rows, firsts, offsets), blocks, name)
    runs = np.empty(int(offsets[-1]), np.int32)
    if len(runs):
        _check(kernels.gather_runs(blocks, firsts, offsets, sequence_length, runs), blocks, name)
    return offsets, runs


_PER_PIECE = EVERY_COLUMN - {TOKENS, UNLEARNED}
_NO_LENGTHS, _NO_NUMBERS, _NO_KEYS = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros((0, KEY_BYTES), np.uint8)
_NO_TOKENS = np.zeros((0, 0), np.int64)
"""Columns that were not requested."""


def _check(bad_row: int, blocks: np.ndarray, name: Callable[[int], str]) -> None:
    if bad_row < 0:
        return
    cut_row = kernels.find_cut(blocks)
    if cut_row >= 0:
        raise CutShortError(f"{name(cut_row)}: {CUT}")
    raise CorruptionError(
        f"{name(bad_row)}: a row points outside its record batch. Delete the file and run the mixture again to restore it; "
        f"`datapipe verify` checks all shards"
    )
