"""Reading Megatron's .bin and .idx as the format is written down, sharing nothing with the writer."""

import struct
from pathlib import Path

import numpy as np


def read_pair(prefix: Path) -> tuple[list[np.ndarray], list[int], str]:
    """The sequences of a pair, its document borders, and the type of its ids."""
    index, content = prefix.with_suffix(".idx").read_bytes(), prefix.with_suffix(".bin").read_bytes()
    magic, version, code, num_sequences, num_borders = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    dtype = np.dtype({1: "u1", 4: "<i4", 8: "<u2"}[code])
    lengths = struct.unpack_from(f"<{num_sequences}i", index, 34)
    offsets = struct.unpack_from(f"<{num_sequences}q", index, 34 + 4 * num_sequences)
    borders = struct.unpack_from(f"<{num_borders}q", index, 34 + 12 * num_sequences)
    assert len(index) == 34 + 12 * num_sequences + 8 * num_borders
    assert len(content) == sum(lengths) * dtype.itemsize
    return [np.frombuffer(content, dtype, *place) for place in zip(lengths, offsets)], list(borders), dtype.name
