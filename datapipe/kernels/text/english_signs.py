"""Signs and units that spaCy's English tokenizer separates from words, at the front, at the end and inside of a chunk.

    chunk  --prefix_bytes-->  signs at the front      --suffix_bytes-->  signs, 's and units at the end
           --infix_bytes--->  signs inside ("re-use"), unless the chunk is a web or e-mail address (`is_address`)

The rules and sets of characters are those of spaCy 3.8 (`lang/en`, `lang/punctuation.py`, `lang/char_classes.py`): letters
are those of Latin, Greek and Cyrillic as spaCy lists them, and every character in blocks of scripts without case. Letters
of other scripts (Georgian, Armenian, Thai) are none.
"""

import sys
import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.hashing import hash_bytes, hash_of
from datapipe.kernels.tables import stored_table
from datapipe.kernels.text.unicode_classes import (
    OTHER,
    PUNCTUATION,
    SPACE,
    SYMBOL,
    class_table,
    codes_of,
    decode,
    decode_before,
)
from datapipe.kernels.types import read_only

EDGE, BEFORE, LOWER, UPPER, ALPHA, DIGIT, QUOTE, STOPS, ICON, CURRENCY = (1 << bit for bit in range(10))
"""Roles of a character. EDGE: comes off either end. BEFORE: comes off the front. STOPS: a full stop after it comes off."""

_UNCASED = (
    "591-5F4 620-64A 66E-6D5 6E5-6FF 750-77F 8A0-8BD 900-9FF B80-CFF D80-DFF 1100-137F 2E80-2FDF 2FF0-30FF 31C0-31EF 3200-4DBF "
    "4E00-9FFF AC00-D7AF F900-FAFF FB1D-FBB1 FBD3-FD3D FD50-FDC7 FDF0-FDFB FE30-FE4F FE70-FEFC 1EE00-1EEBB 1F200-1F2FF "
    "20000-2A6DF 2A700-2EBEF 2F800-2FA1F"
)
_CASED = (
    "41-5A 61-7A C0-2AF 1D00-1D25 1D6B-1D77 1D79-1D9A 1E00-1EFF 2C60-2C7B 2C7E-2C7F A722-A76F A771-A787 A78B-A78E A790-A7B9 "
    "A7FA AB30-AB5A AB60-AB64 FF21-FF3A FF41-FF5A "  # Latin
    "386 388-38A 38C 38E-38F 391-3A9 3AC-3AF 3B1-3C9 3CC-3CE "  # Greek
    "400-401 403-40A 40C-40D 410-451 453-45A 45C-45D 490-491 496-497 4A2-4A3 4AE-4AF 4BA-4BB 4D8-4D9 4E8-4E9"  # Cyrillic
)
"""Letters where the database knows their case."""

_LETTERS_ALONE = "1BB 1C5 1C8 1CB 1F2"  # Letters that are neither small nor capitals
_NO_ICONS = (
    "166D 2B97 2BC9 2BFF 2E50-2E51 32FF FD40-FD4F FDCF FDFE-FDFF 1019C 11FD5-11FDC 11FE1-11FF1 1CF50-1CFC3 1D1E9-1D1EA 1E14F "
    "1ED2E 1F10D-1F10F 1F16C-1F16F 1F1AD 1F6D5-1F6DF 1F6FA-1F6FF 1F7D9-1F7FF 1F8B0-1F8FF 1F90C-1F90F 1F93F 1F971-1F972 "
    "1F977-1F979 1F97B 1F9A3-1F9AF 1F9BA-1F9BF 1F9C3-1F9CF 1FA00-1FA5F 1FA6E-1FBFF"
)
"""Symbols that spaCy does not list, most of them newer than its list."""

_PUNCTUATION = "…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪"
_QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_LISTED = "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
"""The punctuation set of datatrove. A word of other signs (a bullet, a euro sign) is a word to its filters."""

_CURRENCY = "$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿"
_UNITS = (
    "km km² km³ m m² m³ dm cm cm² cm³ mm mm² ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa mbar mb MB kb "
    "KB gb GB tb TB T G M K % dm² dm³ км км² км³ м м² м³ дм дм² дм³ см см² см³ мм мм² мм³ нм кг г мг м/с км/ч кПа Па мбар Кб "
    "КБ кб Мб МБ мб Гб ГБ гб Тб ТБ тбكم كم² كم³ م م² م³ سم سم² سم³ مم مم² مم³ كم غرام جرام جم كغ ملغ كوب اكواب"
)

_DOT, _COMMA, _PLUS, _DASH, _COLON, _SLASH, _AT, _S = (ord(sign) for sign in ".,+-:/@s")
_DOLLAR, _STRAIGHT, _UNDERSCORE, _TILDE, _CARET, _STAR = (ord(sign) for sign in "$'_~^*")
_PATH_SIGNS = tuple(ord(sign) for sign in "/?#")
_SCHEME_SIGNS = (_UNDERSCORE, _PLUS, _DASH, _DOT)
_CURLY, _EN, _EM, _ELLIPSIS = (ord(sign) for sign in "’–—…")
_DEGREE, _GLOTTAL_STOP, _CAPITAL_S = 0xB0, 0x294, ord("S")
_LONGEST_LABEL, _LONGEST_TOP = 64, 63
_LONGEST_UNIT = max(len(unit.encode()) for unit in _UNITS.split())


@stored_table
def sign_table() -> np.ndarray:
    """The roles of every code point: (0x110000,) uint16."""
    table = np.zeros(sys.maxunicode + 1, np.uint16)
    icons = [code for code in np.flatnonzero(class_table() == SYMBOL).tolist() if unicodedata.category(chr(code)) == "So"]
    table[icons] = EDGE | ICON
    table[codes_of(_NO_ICONS)] = 0
    table[codes_of(_UNCASED)] |= ALPHA | UPPER | LOWER | STOPS
    for code in codes_of(_CASED).tolist():
        upper, lower = chr(code).isupper(), chr(code).islower() or code == _GLOTTAL_STOP
        table[code] |= ALPHA | UPPER if upper else ALPHA | LOWER | STOPS if lower else 0
    table[codes_of(_LETTERS_ALONE)] = ALPHA
    for members, bits in (
        (_PUNCTUATION, EDGE | STOPS),
        (_QUOTES, EDGE | QUOTE | STOPS),
        (_CURRENCY, BEFORE | CURRENCY),
        ("0123456789", DIGIT | STOPS),
        ("—–", EDGE),
        ("…", EDGE | ICON),
        ("§%=", BEFORE),
        ("%²-+|", STOPS),
    ):
        for member in members:
            table[ord(member)] |= bits
    return read_only(table)


@lru_cache(maxsize=1)
def content_table() -> np.ndarray:
    """`class_table` with datatrove's punctuation: signs that it does not list are OTHER. (0x110000,) uint8."""
    table = class_table().copy()
    table[(table & (PUNCTUATION | SYMBOL | OTHER)) != 0] = OTHER
    listed = [ord(sign) for sign in _LISTED]
    listed += [*range(9), 0x0B, 0x0C, *range(0x0D, 0x20), *range(0x7F, 0xA0)]
    listed = [code for code in listed if table[code] != SPACE]
    table[listed] = PUNCTUATION
    return read_only(table)


@lru_cache(maxsize=1)
def unit_hashes() -> np.ndarray:
    """Hashes of the units of measure, sorted: (num_units,) uint64."""
    return np.sort(np.array([hash_of(unit.encode()) for unit in _UNITS.split()], np.uint64))


@inline
def prefix_bytes(data, start, stop, signs) -> Any:
    """Bytes of the sign to cut off the front; 0 for none."""
    code, size = decode(data, start, stop)
    if signs[code] & (EDGE | BEFORE):
        return size
    if code == _PLUS:
        return size if start + 1 == stop or not signs[data[start + 1]] & DIGIT else 0
    run = start
    while run < stop and data[run] == _DOT:
        run += 1
    if run - start >= 2:
        return run - start
    is_dollars = stop - start >= 2 and data[start + 1] == _DOLLAR and (code == 0x41 or code == 0x43)
    if is_dollars:
        return 2
    return 3 if stop - start >= 3 and code == 0x55 and data[start + 1] == 0x53 and data[start + 2] == _DOLLAR else 0


@inline
def suffix_bytes(data, start, stop, signs, units) -> Any:
    """Bytes of the longest suffix to cut off the end; 0 for none."""
    if start >= stop:
        return 0
    code, size = decode_before(data, stop, start)
    if code | 0x20 == _S and stop - size > start:
        before, more = decode_before(data, stop - size, start)
        if before == _STRAIGHT or before == _CURLY:
            return size + more
    if code == _DOT:
        return _stop_bytes(data, start, stop, signs)
    unit = _unit_bytes(data, start, stop, signs, units)
    if unit > 0:
        return unit
    if signs[code] & EDGE:
        return size
    if code == _PLUS or signs[code] & CURRENCY:
        return _after_digit(data, start, stop - size, signs, size, code == _DOLLAR)
    return 0


@inline
def _after_digit(data, start, offset, signs, size, is_dollar) -> Any:
    """`size`, the bytes of a sign at `offset`, with the letters of `US$`, `C$` or `A$`, where a digit is before it; else 0."""
    if offset > start and data[offset - 1] < 0x80 and signs[data[offset - 1]] & DIGIT:
        return size
    letters = 0
    if is_dollar and offset > start and (data[offset - 1] == 0x41 or data[offset - 1] == 0x43):
        letters = 1
    elif is_dollar and offset - start >= 2 and data[offset - 1] == _CAPITAL_S and data[offset - 2] == 0x55:
        letters = 2
    before = offset - letters - 1
    return size + letters if letters and before >= start and data[before] < 0x80 and signs[data[before]] & DIGIT else 0


@inline
def _stop_bytes(data, start, stop, signs) -> Any:
    """Bytes to cut off an end that is a full stop: a run of dots, or one dot after a character that may end a sentence."""
    run = stop
    while run > start and data[run - 1] == _DOT:
        run -= 1
    if stop - run >= 2:
        return stop - run
    if run == start:
        return 0
    code, size = decode_before(data, run, start)
    if signs[code] & STOPS:
        return 1
    if run - size == start:
        return 0
    before = decode_before(data, run - size, start)[0]
    if signs[code] & signs[before] & UPPER:
        return 1
    return 1 if before == _DEGREE and (code | 0x20 == 0x63 or code | 0x20 == 0x66 or code | 0x20 == 0x6B) else 0


@inline
def _unit_bytes(data, start, stop, signs, units) -> Any:
    """Bytes of a unit of measure that directly follows a digit; 0 for none."""
    unit_start = stop
    while (
        unit_start > start
        and stop - unit_start <= _LONGEST_UNIT
        and not (data[unit_start - 1] < 0x80 and signs[data[unit_start - 1]] & DIGIT)
    ):
        unit_start -= 1
    if unit_start == start or unit_start == stop or stop - unit_start > _LONGEST_UNIT:
        return 0
    key = hash_bytes(data, unit_start, stop)
    slot = np.searchsorted(units, key)
    return stop - unit_start if slot < len(units) and units[slot] == key else 0


@inline
def infix_bytes(data, offset, size, code, before, stop, signs) -> Any:
    """Bytes of the sign at `offset` that splits a chunk; 0 for none. `before` holds the roles of the character before it."""
    if code < 0x80 and signs[code] & (ALPHA | DIGIT):
        return 0
    if signs[code] & ICON:
        return size
    if code >= 0x80 and code != _EN and code != _EM:
        return 0
    ahead = offset + size
    if code == _DOT:
        run = ahead
        while run < stop and data[run] == _DOT:
            run += 1
        if run - offset >= 2:
            return run - offset
    if ahead >= stop:
        return 0
    following = signs[decode(data, ahead, stop)[0]]
    if code == _DOT:
        return 1 if before & (LOWER | QUOTE) and following & (UPPER | QUOTE) else 0
    is_sum = code == _PLUS or code == _DASH or code == _STAR or code == _CARET
    if is_sum and before & DIGIT and (following & DIGIT or data[ahead] == _DASH):
        return 1
    if code == _COMMA:
        return 1 if before & ALPHA and following & ALPHA else 0
    if not before & (ALPHA | DIGIT):
        return 0
    if code == _DASH or code == _EN or code == _EM or code == _TILDE:
        same = ahead
        while (
            code != _TILDE and code != _EN and same < stop and same - offset < 3 * size and decode(data, same, stop)[0] == code
        ):
            same += size
        longest = 2 if code == _EM else 3
        is_joined = same < stop and same - offset <= longest * size and signs[decode(data, same, stop)[0]] & ALPHA
        return same - offset if is_joined else 0
    is_sign = code == _COLON or code == _SLASH or (code >= 0x3C and code <= 0x3E)
    return 1 if is_sign and following & ALPHA else 0


@inline
def is_address(data, start, stop, signs) -> Any:
    """Whether the chunk is a web or e-mail address: a host at its front, after `scheme://`, or after an `@`."""
    if _is_host(data, start, stop, signs):
        return True
    scheme_stop = start
    while scheme_stop < stop and (
        data[scheme_stop] >= 0x80 or signs[data[scheme_stop]] & (ALPHA | DIGIT) or data[scheme_stop] in _SCHEME_SIGNS
    ):
        scheme_stop += 1
    has_scheme = scheme_stop - start >= 2 and scheme_stop + 3 < stop and data[scheme_stop] == _COLON
    if (
        has_scheme
        and data[scheme_stop + 1] == _SLASH
        and data[scheme_stop + 2] == _SLASH
        and _is_host(data, scheme_stop + 3, stop, signs)
    ):
        return True
    for offset in range(start + 1, stop):
        if data[offset] == _AT and _is_host(data, offset + 1, stop, signs):
            return True
    return False


@inline
def _is_host(data, host, stop, signs) -> Any:
    """Whether a host starts at `host`, with an optional port and path: labels separated by dots, the last of small letters."""
    label, offset, num_labels, num_chars, is_small = host, host, 0, 0, True
    while offset < stop:
        code, size = decode(data, offset, stop)
        if code == _DOT:
            if num_chars == 0 or num_chars > _LONGEST_LABEL or _is_inner(data[offset - 1]) or _is_inner(data[label]):
                return False
            label, num_labels, num_chars, is_small = offset + 1, num_labels + 1, 0, True
        elif signs[code] & (ALPHA | DIGIT) or 0xA1 <= code <= 0xFFFF or _is_inner(code):
            num_chars += 1
            is_small = is_small and signs[code] & LOWER != 0
        else:
            break
        offset += size
    if num_labels == 0 or num_chars < 2 or num_chars > _LONGEST_TOP or not is_small:
        return False
    if offset < stop and data[offset] == _COLON:
        offset += 1
        port = offset
        while offset < stop and data[offset] < 0x80 and signs[data[offset]] & DIGIT:
            offset += 1
        if offset - port < 2 or offset - port > 5:
            return False
    return offset == stop or data[offset] in _PATH_SIGNS


@inline
def _is_inner(code) -> Any:
    """Whether a sign may stand inside of a label, but neither begin nor end it."""
    return code == _DASH or code == _UNDERSCORE


@inline
def is_word_and_sign(data, start, stop, signs) -> Any:
    """Whether the chunk is ASCII letters and one sign to cut off. Most chunks that are not all letters are."""
    last = stop - 1
    if last == start or data[last] >= 0x80:
        return False
    for offset in range(start, last):
        if data[offset] >= 0x80 or not signs[data[offset]] & ALPHA:
            return False
    if data[last] == _DOT:
        return bool(signs[data[last - 1]] & LOWER)
    return bool(signs[data[last]] & EDGE)
