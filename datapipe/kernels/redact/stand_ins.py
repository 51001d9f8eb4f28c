"""Writes stand-ins for spans: a keyed hash of the span's bytes, in the form of an address or number that is not in use.

    span, kind, seed  ->  a row of at most 32 bytes

An address has the same stand-in in every document and on every worker. The scan that finds a span does not find its stand-in:

    e-mail        user-12ab34cd@example.com     RFC 2606            known by its form
    IPv4, IPv6    192.0.2.17, 2001:db8::1a:2b   RFC 5737, 3849      not public
    phone         +1-555-555-0142               numbers for fiction, in an area that does not exist
    card          9999 and 12 digits            valid by Luhn, of no issuer: 9 is for countries (ISO/IEC 7812), 999 is none
    IBAN          ZZ and 20 digits              valid by 97, of no country: ISO 3166 reserves ZZ for users
    SSN           987-65-4320 to 4329           reserved for advertising
    URL           user-12ab34cd:password@       known by its form
    secret        EXAMPLE-0123456789abcdef      a placeholder by its first word
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.hashing import mix64
from datapipe.kernels.redact.pii import CARD, CREDENTIALS, EMAIL, IBAN, IPV4, IPV6, PHONE, SSN
from datapipe.kernels.types import Int64s, Int64sOut, UInt8MatrixOut, UInt8s

REPLACEMENT_BYTES = 32


def _bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


_USER, _HOST, _PASSWORD = _bytes(b"user-"), _bytes(b"@example.com"), _bytes(b":password@")
_IPV4, _IPV6, _COLON = _bytes(b"192.0.2."), _bytes(b"2001:db8::"), _bytes(b":")
_PHONE, _CARD, _IBAN, _SSN, _SECRET = (_bytes(text) for text in (b"+1-555-555-01", b"9999", b"ZZ", b"987-65-432", b"EXAMPLE-"))
_HEX = _bytes(b"0123456789abcdef")
_ZERO = np.uint8(ord("0"))
_ZZ00 = 353500
_4, _10, _15, _31, _254 = (np.uint64(number) for number in (4, 10, 15, 31, 254))


@inline
def _put(row, start, text):
    for j in range(len(text)):
        row[start + j] = text[j]
    return start + len(text)


@inline
def _put_hex(row, start, number, num_digits):
    """Writes the lowest hexadecimal digits of a number, the lowest first, and returns their stop."""
    for j in range(num_digits):
        row[start + j] = _HEX[np.int64(number & _15)]
        number >>= _4
    return start + num_digits


@inline
def _put_digits(row, start, number, num_digits):
    """Writes the lowest decimal digits of a number, the lowest first, and returns their stop."""
    for j in range(num_digits):
        row[start + j] = _ZERO + np.uint8(number % _10)
        number //= _10
    return start + num_digits


@inline
def _put_ipv4(row, hashed):
    stop, number = _put(row, 0, _IPV4), np.int64(hashed % _254) + 1
    divisor = 100 if number > 99 else (10 if number > 9 else 1)
    while divisor > 0:
        row[stop] = _ZERO + np.uint8(number // divisor % 10)
        stop, divisor = stop + 1, divisor // 10
    return stop


@inline
def _put_card(row, hashed):
    """Writes sixteen digits, the last of them Luhn's check digit."""
    stop, total = _put_digits(row, _put(row, 0, _CARD), hashed, 11), 0
    for j in range(15):
        digit = np.int64(row[j] - _ZERO)
        total += digit if j % 2 == 1 else digit * 2 - (9 if digit > 4 else 0)
    row[stop] = _ZERO + np.uint8((10 - total % 10) % 10)
    return stop + 1


@inline
def _put_iban(row, hashed):
    """Writes ZZ, two check digits and eighteen digits."""
    stop, rest = _put_digits(row, 4, hashed, 18), np.int64(0)
    for j in range(4, 22):
        rest = (rest * 10 + np.int64(row[j] - _ZERO)) % 97
    check = 98 - (rest * 1_000_000 + _ZZ00) % 97
    row[_put(row, 0, _IBAN)] = _ZERO + np.uint8(check // 10)
    row[3] = _ZERO + np.uint8(check % 10)
    return stop


@inline
def _put_stand_in(row, kind, hashed):
    if kind == EMAIL:
        return _put(row, _put_hex(row, _put(row, 0, _USER), hashed, 8), _HOST)
    if kind == IPV4:
        return _put_ipv4(row, hashed)
    if kind == IPV6:
        stop = _put(row, _put_hex(row, _put(row, 0, _IPV6), hashed, 4), _COLON)
        return _put_hex(row, stop, hashed >> _31, 4)
    if kind == CREDENTIALS:
        return _put(row, _put_hex(row, _put(row, 0, _USER), hashed, 8), _PASSWORD)
    if kind == CARD:
        return _put_card(row, hashed)
    if kind == IBAN:
        return _put_iban(row, hashed)
    if kind == SSN:
        return _put_digits(row, _put(row, 0, _SSN), hashed, 1)
    if kind == PHONE:
        return _put_digits(row, _put(row, 0, _PHONE), hashed, 2)
    return _put_hex(row, _put(row, 0, _SECRET), hashed, 16)


@kernel
def write_stand_ins(
    data: UInt8s, starts: Int64s, stops: Int64s, kinds: UInt8s, seed: np.uint64, rows: UInt8MatrixOut, lengths: Int64sOut
) -> None:
    """Writes the stand-in of each span of a kind of `pii.py`: `rows` (num_spans, 32) uint8, and their bytes."""
    for span in range(len(starts)):
        hashed = mix64(seed)
        for j in range(starts[span], stops[span]):
            hashed = mix64(hashed ^ np.uint64(data[j]))
        lengths[span] = _put_stand_in(rows[span], kinds[span], hashed)
