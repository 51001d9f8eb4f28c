"""Spans of text replaced by other bytes: stand-ins made from what they replace, then one copy of the text around them.

    spans  ->  replacements: rows (num_spans, 32) uint8 and their lengths  ->  new offsets and bytes

A stand-in is a keyed hash of the span's bytes written as an address that nobody has, so one address has one stand-in in every
document, whatever worker meets it. One core of a 2-core AMD EPYC copies 1.5 GB/s.
"""

from __future__ import annotations

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.mixing import mix64
from datapipe.kernels.pii import EMAIL, IPV4

REPLACEMENT_BYTES = 32
_EMAIL_BEFORE = np.frombuffer(b"user-", np.uint8)
_EMAIL_AFTER = np.frombuffer(b"@example.com", np.uint8)
_IPV4_BEFORE = np.frombuffer(b"192.0.2.", np.uint8)
_IPV6_BEFORE = np.frombuffer(b"2001:db8::", np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_COLON, _ZERO = np.uint8(ord(":")), np.uint8(ord("0"))
_4, _15, _31, _254 = (np.uint64(number) for number in (4, 15, 31, 254))


@inline
def _put(row, at, some):
    """Writes `some` bytes at `at`, and says where they stop."""
    for j in range(len(some)):
        row[at + j] = some[j]
    return at + len(some)


@inline
def _put_hex(row, at, number, num_digits):
    """Writes the lowest digits of a number, the lowest first, and says where they stop."""
    for j in range(num_digits):
        row[at + j] = _HEX[np.int64(number & _15)]
        number >>= _4
    return at + num_digits


@kernel("void(Array(uint8, 1, 'C', True), int64[::1], int64[::1], uint8[::1], uint64, uint8[:, ::1], int64[::1])")
def write_stand_ins(data, starts, stops, kinds, seed, rows, lengths) -> None:
    """The address that stands for each span: user-12ab34cd@example.com, 192.0.2.17 or 2001:db8::12ab:34cd, all reserved
    for documentation (RFC 2606, 5737, 3849).

    Args:
        data: (num_bytes,) uint8.
        starts: (num_spans,) int64, in `data`.
        stops: (num_spans,) int64.
        kinds: (num_spans,) uint8, of `kernels/pii.py`.
        seed: uint64.
        rows: (num_spans, 32) uint8.
        lengths: (num_spans,) int64.
    """
    for span in range(len(starts)):
        hashed = mix64(seed)
        for j in range(starts[span], stops[span]):
            hashed = mix64(hashed ^ np.uint64(data[j]))
        row = rows[span]
        if kinds[span] == EMAIL:
            at = _put_hex(row, _put(row, 0, _EMAIL_BEFORE), hashed, 8)
            lengths[span] = _put(row, at, _EMAIL_AFTER)
        elif kinds[span] == IPV4:
            at, number = _put(row, 0, _IPV4_BEFORE), np.int64(hashed % _254) + 1
            divisor = 100 if number > 99 else (10 if number > 9 else 1)
            while divisor > 0:
                row[at] = _ZERO + np.uint8(number // divisor % 10)
                at, divisor = at + 1, divisor // 10
            lengths[span] = at
        else:
            at = _put_hex(row, _put(row, 0, _IPV6_BEFORE), hashed, 4)
            row[at] = _COLON
            lengths[span] = _put_hex(row, at + 1, hashed >> _31, 4)


@kernel(
    "void(Array(int64, 1, 'C', True), Array(uint8, 1, 'C', True), int64[::1], int64[::1], uint8[:, ::1], int64[::1],"
    " int64[::1], uint8[::1])"
)
def replace_spans(offsets, data, starts, stops, rows, lengths, out_offsets, out) -> None:
    """Texts with every span replaced.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        starts: (num_spans,) int64, ascending, in `data`; no span crosses a document.
        stops: (num_spans,) int64.
        rows: (num_spans, 32) uint8, what stands for each span.
        lengths: (num_spans,) int64, how much of each row counts.
        out_offsets: (num_docs + 1,) int64, from 0.
        out: uint8, as long as the texts without the spans and with the replacements.
    """
    at, span = 0, 0
    out_offsets[0] = 0
    for document in range(len(offsets) - 1):
        j, end = offsets[document], offsets[document + 1]
        while j < end:
            stop = starts[span] if span < len(starts) and starts[span] < end else end
            out[at : at + stop - j] = data[j:stop]
            at += stop - j
            j = stop
            if stop < end:
                for k in range(lengths[span]):
                    out[at + k] = rows[span, k]
                at += lengths[span]
                j = stops[span]
                span += 1
        out_offsets[document + 1] = at
