"""128-bit hashes of whole texts, and white space squeezed before hashing.

texts  ->  (hash, digest) of 64 bits each: two mixers over the same eight-byte words, neither cryptographic
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import eight_bytes
from datapipe.kernels.hashing import mix64
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, UInt8sOut, UInt64sOut

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0xD6E8FEB86659FD93)
_0, _1, _2, _3, _8, _29, _32 = (np.uint64(number) for number in (0, 1, 2, 3, 8, 29, 32))


def _space_bytes() -> np.ndarray:
    """The class of every byte, (256,) uint8: 1: white space of one byte; 2: may start longer white space; 0: other bytes."""
    table = np.zeros(256, np.uint8)
    table[[0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x1F, 0x20]] = 1
    table[[0xC2, 0xE1, 0xE2, 0xE3]] = 2
    return table


_SPACE_BYTES = _space_bytes()


@inline
def _absorb(hashed, digest, word):
    """Both halves after one more word of eight bytes: each is a bijection of the word, and of the half before it."""
    hashed = (hashed ^ word * _PRIME_2) * _PRIME_1
    digest = (digest + word * _PRIME_4) * _PRIME_3
    return hashed ^ (hashed >> _29), digest ^ (digest >> _32)


@kernel
def hash_texts(offsets: Int64s, data: UInt8s, hashes: UInt64sOut, digests: UInt64sOut) -> None:
    """Writes both halves of a 128-bit hash of every text, (num_docs,) uint64 each."""
    for document in range(len(offsets) - 1):
        j, stop = np.uint64(offsets[document]), np.uint64(offsets[document + 1])
        hashed, digest = (stop - j) * _PRIME_3, (stop - j) * _PRIME_1
        while j + _8 <= stop:
            hashed, digest = _absorb(hashed, digest, eight_bytes(data, j))
            j += _8
        tail, shift = _0, _0
        while j < stop:
            tail |= np.uint64(data[j]) << shift
            shift += _8
            j += _1
        hashed, digest = _absorb(hashed, digest, tail)
        hashes[document], digests[document] = mix64(hashed), mix64(digest)


@inline
def _long_space(data, j, stop):
    """Bytes of the white space (by Python's `str.isspace`) of more than one byte at j; 0 if byte j does not start one."""
    byte, second = data[j], data[j + _1] if j + _1 < stop else np.uint8(0)
    if byte == 0xC2:
        return _2 if second in (0x85, 0xA0) else _0
    third = data[j + _2] if j + _2 < stop else np.uint8(0)
    if byte == 0xE2:
        in_80 = second == 0x80 and (0x80 <= third <= 0x8A or third in (0xA8, 0xA9, 0xAF))
        return _3 if in_80 or (second == 0x81 and third == 0x9F) else _0
    is_single = (byte == 0xE1 and second == 0x9A and third == 0x80) or (byte == 0xE3 and second == 0x80 and third == 0x80)
    return _3 if is_single else _0


@kernel
def squeeze_space(offsets: Int64s, data: UInt8s, out_offsets: Int64sOut, out: UInt8sOut) -> None:
    """Texts with one space for white space, none at the ends. Bytes past `out_offsets[-1]` stay."""
    written = _0
    out_offsets[0] = 0
    for document in range(len(offsets) - 1):
        j, stop, start, pending = np.uint64(offsets[document]), np.uint64(offsets[document + 1]), written, False
        while j < stop:
            kind = _SPACE_BYTES[data[j]]
            length = _0
            if kind == 1:
                length = _1
            elif kind == 2:
                length = _long_space(data, j, stop)
            if length != _0:
                pending = written > start
                j += length
                continue
            if pending:
                out[written] = 0x20
                written += _1
                pending = False
            out[written] = data[j]
            written += _1
            j += _1
        out_offsets[document + 1] = np.int64(written)
