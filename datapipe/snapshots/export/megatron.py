"""Megatron's indexed datasets: PREFIX.bin, all token ids end to end, and PREFIX.idx, the offset of each sequence.

    append(tokens, lengths) ─▶ PREFIX.bin      ids, little-endian, nothing between them
                            └▶ lengths ─▶ PREFIX.idx, when the pair is closed: header, lengths, byte offsets, documents

The index, all little-endian: "MMIDIDX\\0\\0", uint64 version 1, uint8 type, uint64 number of sequences n, uint64 n + 1, int32
lengths (n), int64 byte offsets (n), int64 document borders (n + 1). Each sequence is a separate document, since Megatron's
GPT data set reads one document per sequence. Ids are uint16 for a vocabulary below 65,500 (`schemas.token_type`), else int32:
the format has no uint32. Where a loss leaves out any token of a split, PREFIX-loss-mask is a pair of the same sequences of
uint8: 1 for each token that a loss counts, 0 for each other. A pair without its .idx is unfinished and cannot be opened.
Memory is bounded by one call of `append`: lengths wait in a temporary file, four bytes a sequence.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from datapipe.errors import DatapipeError
from datapipe.storage.root import Root

MAGIC = b"MMIDIDX\0\0"
_CODES = {1: 1, 2: 8, 4: 4}  # bytes of an id -> uint16, int32; of a mask uint8
_CHUNK_SEQUENCES = 1 << 20
_SPOOL_BYTES = 16 << 20


class MegatronWriter:
    """Writes sequences to one pair, or to numbered pairs of a size. After an error, or instead of `finish`, call `abort`.

    Args: prefix: path without an ending; with `target_bytes`, `-00000` and so on is added. id_type:
        uint16 or uint32. target_bytes: a pair is closed before a sequence that would make its .bin
        larger; None: one pair.
    """

    def __init__(self, root: Root, prefix: str, id_type: pa.DataType, target_bytes: int | None = None) -> None:
        self._root, self._prefix, self._target_bytes = root, prefix, target_bytes
        self._itemsize = id_type.bit_width // 8
        self._pair: Pair | None = None
        self._written: list[Pair] = []

    def append(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Adds sequences of `lengths` (n,), which lie end to end in `tokens` (num_tokens,)."""
        if len(lengths) and int(lengths.max()) >= 1 << 31:
            raise DatapipeError(
                f"a document of {int(lengths.max())} tokens; a Megatron sequence holds at most 2147483647. Export with --rows"
            )
        stops = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # (n + 1,)
        first = 0
        while first < len(lengths):
            if self._pair is None:
                number = "" if self._target_bytes is None else f"-{len(self._written):05d}"
                self._pair = Pair(self._root, self._prefix + number, self._itemsize)
            stop = self._stop(stops, first)
            self._pair.write(tokens[stops[first] : stops[stop]], lengths[first:stop])
            first = stop
            if first < len(lengths):
                self._close()

    def finish(self) -> tuple[Pair, ...]:
        """Closes the last pair. Returns all pairs in order; none without a sequence."""
        if self._pair is not None:
            self._close()
        return tuple(self._written)

    def abort(self) -> None:
        """Closes the open pair, if there is one, and leaves its .bin without an .idx."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.abort()

    def _stop(self, stops: np.ndarray, first: int) -> int:
        """The first sequence from `first` on that goes to the next pair. An empty pair takes at least one."""
        if self._target_bytes is None:
            return len(stops) - 1
        assert self._pair is not None
        room = self._target_bytes // self._itemsize - self._pair.tokens
        stop = int(np.searchsorted(stops, stops[first] + room, "right")) - 1
        return max(stop, first if self._pair.sequences else first + 1)

    def _close(self) -> None:
        pair, self._pair = self._pair, None
        assert pair is not None
        pair.finish()
        self._written.append(pair)


class Pair:
    """`prefix`.bin, and once it is finished `prefix`.idx.

    Attributes:
        sequences, tokens: that were written.
    """

    def __init__(self, root: Root, prefix: str, itemsize: int) -> None:
        self.prefix, self._root, self._itemsize = prefix, root, itemsize
        self.sequences = self.tokens = 0
        with ExitStack() as handles:
            self._lengths = handles.enter_context(tempfile.SpooledTemporaryFile(_SPOOL_BYTES))
            self._bin = handles.enter_context(root.open_output(f"{prefix}.bin"))
            self._handles = handles.pop_all()

    def write(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        # uint32 ids have the bytes of int32: none reaches 2^31
        self._bin.write(np.ascontiguousarray(tokens, f"<u{self._itemsize}").data)
        self._lengths.write(np.ascontiguousarray(lengths, "<i4").tobytes())
        self.sequences += len(lengths)
        self.tokens += len(tokens)

    def finish(self) -> None:
        with self._handles:
            self._bin.close()
            with self._root.open_output(f"{self.prefix}.idx") as index:
                for part in self._index():
                    index.write(part)

    def abort(self) -> None:
        self._handles.close()

    def _index(self) -> Iterator[bytes]:
        counts = np.array([self.sequences, self.sequences + 1], "<u8")
        yield MAGIC + np.uint64(1).astype("<u8").tobytes() + bytes([_CODES[self._itemsize]]) + counts.tobytes()
        yield from (lengths.tobytes() for lengths in self._read_lengths())
        byte_offset = 0
        for lengths in self._read_lengths():
            sizes = lengths.astype(np.int64) * self._itemsize
            yield (byte_offset + np.cumsum(sizes) - sizes).astype("<i8").tobytes()
            byte_offset += int(sizes.sum())
        for start in range(0, self.sequences + 1, _CHUNK_SEQUENCES):
            yield np.arange(start, min(start + _CHUNK_SEQUENCES, self.sequences + 1)).astype("<i8").tobytes()

    def _read_lengths(self) -> Iterator[np.ndarray]:
        self._lengths.seek(0)
        while chunk := self._lengths.read(4 * _CHUNK_SEQUENCES):
            yield np.frombuffer(chunk, "<i4")
