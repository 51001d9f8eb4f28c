"""Finds payment cards, IBANs, US social security numbers and candidates for phone numbers in one pass over the bytes.

    bytes  ->  each group of digits  ->  IBAN (by the two letters before it), card, SSN, phone  ->  spans
               (32 other bytes cost one comparison)

The cost is linear: a group of digits is read once and skipped, and from its start at most 70 bytes are read ahead and 40
back, of typeset numbers (`folding.py`) thrice as many. Any bytes are safe. Spans hold whole characters.

A number is free-standing, or follows a span that is replaced: no letter, digit or `_-/$%+&@` before
it, no decimal part of another number, and none of `_@%`, a letter, `.5` or `-5` after it.

Card    12 to 19 digits in one group, or 4-4-4-4 (and 1 to 3 more), 4-6-5, 4-6-4 or 4-5-6 with one kind of space or dash, of
        an issuer's prefix and length (`issuers.py`), with a valid Luhn check digit. Rare forms, and those that other
        numbers have too, count only after a word such as card. Four groups in a row of numbers are a table.
IBAN    of its country's length (SWIFT registry), remainder 1 by 97 (ISO 7064), unbroken or in groups of four.
SSN     123-45-6789; with spaces or bare only after a word such as SSN. Area not 000 or 666, group not 00, serial not 0000.
        An area from 900 only after such a word or before ITIN, and with a group of taxpayer numbers (ITIN and ATIN: 50 to 65,
        70 to 88, 90 to 99); 987-65-4320 to 4329 are for advertising.
Phone   candidates only: see `phones.py`.
"""

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import starts_with
from datapipe.kernels.redact.ascii import (
    DIGIT,
    FENCE,
    FILLERS,
    LETTER,
    NUMERAL,
    SEPARATOR,
    follows_word,
    group_stop,
    is_among,
    is_clear_after,
    is_clear_before,
    is_in,
    next_group_stop,
    next_numeral,
    packed,
)
from datapipe.kernels.redact.folding import AFTER_BYTES, BEFORE_BYTES, fold, is_typeset, is_wide_digit
from datapipe.kernels.redact.issuers import ON_WORD, PREFIX_DIGITS, SURE, certainty_of
from datapipe.kernels.redact.phones import find_phone
from datapipe.kernels.redact.pii import CARD, IBAN, PHONE, SSN
from datapipe.kernels.redact.spans import FoundSpans, SpansOut, scanned
from datapipe.kernels.types import Int64s, UInt8s

WANTS_CARD, WANTS_IBAN, WANTS_SSN, WANTS_PHONE = 1, 2, 4, 8
"""Bits of `wanted` in `find_identifiers`; `kernels/redact/phones.py` has two more."""
_MIN_SPAN_BYTES = 7
_LEAST_DIGITS = 7  # of a phone number; cards, IBANs and social security numbers have more
_LEAST_DIGITS_REACH = 19  # their bytes, with at most two separators between two of them

_SPACE, _DASH, _ZERO, _ONE, _SIX, _NINE, _OPEN, _COMMA = (ord(sign) for sign in " -0169(,")
_CARD_WORDS = packed(
    "card cards visa mastercard maestro amex dankort uatp credit debit cc karte karten kreditkarte carte tarjeta carta cartao "
    "kort kreditkort kaart creditcard karta karty kartu kartica"
)
_SSN_WORDS = packed("ssn ssns security itin itins atin tin tax taxpayer")
_WORDS_BEHIND = packed("ssn itin atin tin")
_SSN_FILLERS = np.append(FILLERS, packed("identification identifier id ids"))
_RESERVED = np.frombuffer(b"987-65-432", np.uint8)
_COUNTRY_LENGTHS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 ES24 FI18 "
    "FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 "
    "LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
    "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)


def _iban_lengths() -> np.ndarray:
    """The length of an IBAN by its country's letters, 26 * first + second; 0 for no country: (676,) uint8."""
    table = np.zeros(676, np.uint8)
    for entry in _COUNTRY_LENGTHS.split():
        table[26 * (ord(entry[0]) - 65) + ord(entry[1]) - 65] = int(entry[2:])
    return table


_IBAN_LENGTHS = _iban_lengths()


def find(offsets: np.ndarray, data: np.ndarray, wanted: int) -> FoundSpans:
    """The wanted numbers in documents from `columns.text_buffers`; spans are byte ranges of `data`."""
    limit = int(offsets[-1] - offsets[0]) // _MIN_SPAN_BYTES + 1
    return scanned(limit, lambda out: find_identifiers(offsets, data, wanted, out))


@inline
def _is_card(data, begin, start, stop, is_named):
    """Whether the digits of a span have Luhn's check digit and an issuer. `is_named`: a word before them names a card."""
    prefix, total, length, num_first = np.int64(0), 0, 0, 0
    for j in range(stop - 1, start - 1, -1):
        if is_in(data[j], DIGIT):
            digit = np.int64(data[j]) - 0x30
            if length % 2 == 1:
                digit = digit * 2 - (9 if digit > 4 else 0)
            total += digit
            length += 1
    if total % 10:
        return False
    for j in range(start, stop):
        if is_in(data[j], DIGIT) and num_first < PREFIX_DIGITS:
            prefix = prefix * 10 + np.int64(data[j]) - 0x30
            num_first += 1
    certainty = certainty_of(prefix, length)
    is_named |= certainty == ON_WORD and follows_word(data, begin, start, _CARD_WORDS, FILLERS, FENCE, 3)
    return certainty == SURE or (certainty == ON_WORD and is_named)


@inline
def _long_card_stop(data, begin, third, end, sign, start):
    """The stop of a card of 4-4-4 and more digits, whose third group stops at `third`; `start` where it is not a card."""
    fourth = next_group_stop(data, third, end, sign, 4)
    length = fourth - third - 1
    if length < 1 or length > 4:
        return start
    if length == 4:
        fifth = next_group_stop(data, fourth, end, sign, 3)
        if fifth - fourth > 4:
            return start
        if fifth > fourth and is_clear_after(data, fifth, end) and _is_card(data, begin, start, fifth, False):
            return fifth
    return fourth if is_clear_after(data, fourth, end) and _is_card(data, begin, start, fourth, False) else start


@inline
def _card_stop(data, begin, floor, start, end):
    """The stop of the card number that starts at `start`; `start` where there is none."""
    first = group_stop(data, start, end, 19)
    length = first - start
    if 12 <= length <= 19:
        return first if is_clear_after(data, first, end) and _is_card(data, begin, start, first, False) else start
    if length != 4 or first == end or (data[first] != _SPACE and data[first] != _DASH):
        return start
    sign = data[first]
    if sign == _SPACE and start - 1 > floor and data[start - 1] == _SPACE and is_in(data[start - 2], DIGIT):
        return start
    second = next_group_stop(data, first, end, sign, 6)
    third = next_group_stop(data, second, end, sign, 6)
    lengths = (second - first - 1) * 10 + third - second - 1
    if lengths in (64, 65) or (lengths == 56 and data[start] == _ONE):
        return third if is_clear_after(data, third, end) and _is_card(data, begin, start, third, lengths == 56) else start
    return _long_card_stop(data, begin, third, end, sign, start) if lengths == 44 else start


@inline
def _remainder(rest, byte):
    """The remainder by 97 after one more digit or letter (A is 10); -1 for another byte."""
    if is_in(byte, DIGIT):
        return (rest * 10 + np.int64(byte) - 0x30) % 97
    return (rest * 100 + np.int64(byte | 0x20) - 0x57) % 97 if is_in(byte, LETTER) else np.int64(-1)


@inline
def _iban_stop(data, floor, start, end):
    """The stop of the IBAN that starts with these two letters; `start` where there is none."""
    case = data[start] & 0x20
    if data[start + 1] & 0x20 != case or not is_clear_before(data, floor, start):
        return start
    country = 26 * (np.int64(data[start] | 0x20) - 0x61) + np.int64(data[start + 1] | 0x20) - 0x61
    length = np.int64(_IBAN_LENGTHS[country])
    if length == 0 or start + length > end or not is_in(data[start + 3], DIGIT):
        return start
    sign = data[start + 4] if data[start + 4] == _SPACE or data[start + 4] == _DASH else np.uint8(0)
    j, rest = start + 4, np.int64(0)
    for index in range(4, length):
        if index % 4 == 0 and sign != 0:
            if j >= end or data[j] != sign:
                return start
            j += 1
        if j >= end or (is_in(data[j], LETTER) and data[j] & 0x20 != case):
            return start
        rest = _remainder(rest, data[j])
        if rest < 0:
            return start
        j += 1
    for k in range(4):
        rest = _remainder(rest, data[start + k])
    return j if rest == 1 and is_clear_after(data, j, end) else start


@inline
def _is_named(data, begin, start, stop, end):
    """Whether a word such as SSN stands before a number, or behind it and one or two of ` ,(`."""
    if follows_word(data, begin, start, _SSN_WORDS, _SSN_FILLERS, FENCE, 4):
        return True
    first = stop
    while first < end and first - stop < 2 and (data[first] == _SPACE or data[first] == _COMMA or data[first] == _OPEN):
        first += 1
    last = first
    while last < end and last - first < 8 and is_in(data[last], LETTER):
        last += 1
    return stop < first < last and is_among(data, first, last, _WORDS_BEHIND)


@inline
def _ssn_stop(data, begin, start, end):
    """The stop of digits written like an SSN; `start` where they are not."""
    first = group_stop(data, start, end, 9)
    length = first - start
    if length == 9:
        stop = first
    elif length == 3 and first < end and (data[first] == _DASH or data[first] == _SPACE):
        second = next_group_stop(data, first, end, data[first], 2)
        stop = next_group_stop(data, second, end, data[first], 4)
        if second - first != 3 or stop - second != 5:
            return start
    else:
        return start
    if not is_clear_after(data, stop, end):
        return start
    if length == 9 or data[first] == _SPACE:
        return stop if _is_named(data, begin, start, stop, end) else start
    return stop


@inline
def _is_taxpayer(data, begin, start, stop, end):
    """Whether an area from 900 is that of a taxpayer number: beside a keyword, in the groups of these numbers."""
    first = stop - 6 if stop - start == 9 else stop - 7
    group = (np.int64(data[first]) - 0x30) * 10 + np.int64(data[first + 1]) - 0x30
    if group < 50 or 66 <= group <= 69 or group == 89:
        return False
    is_reserved = stop - start == len(_RESERVED) + 1 and starts_with(data, start, stop, _RESERVED, 0)
    return not is_reserved and _is_named(data, begin, start, stop, end)


@inline
def _is_ssn(data, begin, start, stop, end):
    if data[start] == _NINE and not _is_taxpayer(data, begin, start, stop, end):
        return False
    if data[start] == _SIX and data[start + 1] == _SIX and data[start + 2] == _SIX:
        return False
    group = stop - 6 if stop - start == 9 else stop - 7
    area_sum, serial_sum = 0, 0
    for j in range(3):
        area_sum += np.int64(data[start + j]) - 0x30
    for j in range(4):
        serial_sum += np.int64(data[stop - 1 - j]) - 0x30
    return area_sum > 0 and serial_sum > 0 and not (data[group] == _ZERO and data[group + 1] == _ZERO)


@inline
def _find_number(data, begin, floor, first, end, wanted):
    """Start, stop and kind of the number with the group of digits at `first`; start equals stop where there is none."""
    if wanted & WANTS_IBAN and first - 2 >= floor and is_in(data[first - 1], LETTER) and is_in(data[first - 2], LETTER):
        stop = _iban_stop(data, floor, first - 2, end)
        if stop > first:
            return first - 2, stop, IBAN
    if is_clear_before(data, floor, first):
        if wanted & WANTS_CARD:
            stop = _card_stop(data, begin, floor, first, end)
            if stop > first:
                return first, stop, CARD
        stop = _ssn_stop(data, begin, first, end)
        if stop > first and _is_ssn(data, begin, first, stop, end):
            return (first, stop, SSN) if wanted & WANTS_SSN else (stop, stop, SSN)
        if stop > first and data[first + 3] == _DASH:  # written like an SSN, but invalid: no other kind of number either
            return stop, stop, SSN
    if wanted & WANTS_PHONE:
        return find_phone(data, begin, floor, first, end, wanted)
    return first, first, PHONE


@inline
def _find_typeset(data, begin, floor, first, end, wanted, folded, places):
    """Like `_find_number`, of a number with dashes, spaces or digits beyond ASCII; the last two are scratch."""
    length, place, edge = fold(data, begin, floor, first, end, folded, places)
    start, stop, kind = _find_number(folded, 0, edge, place, length, wanted)
    return places[start], places[stop], kind


@inline
def _is_short(data, floor, first, end):
    """Whether a group of digits, and what a number goes on with, are fewer digits than any number has: nearly all are."""
    if first > floor and (data[first - 1] >= 0x80 or is_in(data[first - 1], LETTER)):
        return False
    num_digits, limit = 0, min(end, first + _LEAST_DIGITS_REACH)
    for j in range(first, limit):
        if not is_in(data[j], DIGIT | SEPARATOR):
            return data[j] < 0x80
        num_digits += is_in(data[j], DIGIT)
        if num_digits == _LEAST_DIGITS:
            return False
    return True


@inline
def _digits_stop(data, j, end):
    while j < end and is_in(data[j], NUMERAL):
        if is_in(data[j], DIGIT):
            j += 1
        elif is_wide_digit(data, j, end):
            j += 3
        else:
            break
    return j


@kernel
def find_identifiers(offsets: Int64s, data: UInt8s, wanted: int, out: SpansOut) -> int:
    """Finds every number that identifies a person, in text order; spans do not overlap. Returns their number.
    `wanted`: kinds and shapes of phone numbers to find, bits WANTS_CARD and others. `out`: room for
    num_bytes // 7 + 1 spans: CARD, IBAN, SSN, or a candidate: PHONE, NATIONAL, ANNOUNCED."""
    starts, stops, kinds = out
    num_spans = 0
    folded, places = np.empty(BEFORE_BYTES + AFTER_BYTES, np.uint8), np.empty(BEFORE_BYTES + AFTER_BYTES + 1, np.int64)
    for document in range(len(offsets) - 1):
        begin, end = offsets[document], offsets[document + 1]
        j, floor = begin, begin  # no span starts before the floor
        while j < end:
            j = next_numeral(data, j, end)
            if j == end:
                break
            start, stop, kind = j, j, PHONE
            if data[j] < 0x80 and _is_short(data, floor, j, end):
                j = _digits_stop(data, j, end)
                continue
            if data[j] < 0x80:
                start, stop, kind = _find_number(data, begin, floor, j, end, wanted)
            elif not is_wide_digit(data, j, end):
                j += 1
                continue
            if stop == j and is_typeset(data, floor, j, end):
                start, stop, kind = _find_typeset(data, begin, floor, j, end, wanted, folded, places)
            if start < stop:
                starts[num_spans], stops[num_spans], kinds[num_spans] = start, stop, kind
                num_spans += 1
            if stop > j:
                j = floor = stop
            j = _digits_stop(data, j, end)
    return int(num_spans)
