"""Validates candidates for phone numbers with the library `phonenumbers` (Google's libphonenumber).

A number behind a `+`, or behind a word such as tel in one of the main regions, must be possible: its country has numbers of
this length. A number that is known by its shape alone, or of another region, must be valid: its area and range are assigned.
Where a part of a candidate is valid, that part is the number. A reading takes about 40 µs in Python; results are cached.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import phonenumbers

from datapipe.kernels.redact.phones import AMERICAN_SHAPES, ANNOUNCED, NATIONAL, TRUNK_SHAPES
from datapipe.kernels.redact.pii import PHONE
from datapipe.kernels.redact.spans import FoundSpans
from stages.redact._regions import Regions

phonenumbers.enable_pattern_cache()  # without it numbers of many countries take 740 µs each: their patterns evict each other
_MAX_READINGS = 4
_MIN_DIGITS = 7
_WIDE = range(0xFF08, 0xFF1A)
_EQUALS = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in _WIDE} | dict.fromkeys("\xa0\u2007\u2009\u200a\u202f\u3000", " ")
)
_EQUALS |= str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"))
"""The ASCII equals of typeset characters, as `kernels/redact/folding.py` reads them."""
_WITH_TRUNK = re.compile(r"\(?0")
_DATE = re.compile(
    r"(?:(?:19|20)[0-9]{2}[-/.](?:19|20)[0-9]{2}|(?:19|20)[0-9]{2}([-/.])[0-9]{1,2}\1[0-9]{1,2}|"
    r"[0-9]{1,2}([-/.])[0-9]{1,2}\2(?:19|20)[0-9]{2})(?![0-9])"
)
"""A date or two years, which may follow a word such as contact: "Contact 2012-2020"."""
_LAST_GROUP = re.compile(r"[^0-9+(]+\(?[0-9]+\Z")


@lru_cache(maxsize=1 << 12)
def shapes_of(regions: tuple[str, ...]) -> int:
    """The shapes of numbers that the scan accepts without a word such as "tel"."""
    codes = {phonenumbers.country_code_for_region(region) for region in regions}
    return (AMERICAN_SHAPES if 1 in codes else 0) | (TRUNK_SHAPES if codes - {1} else 0)


def is_national(spans: FoundSpans) -> np.ndarray:
    """The candidates that a region decides about, (num_spans,) bool."""
    return np.isin(spans.kinds, (NATIONAL, ANNOUNCED))


def validated(data: np.ndarray, spans: FoundSpans, regions: Sequence[Regions]) -> FoundSpans:
    """The spans, every candidate cut to its phone number or left out. `regions`: those of each span of `is_national`."""
    rows = np.flatnonzero((spans.kinds == PHONE) | is_national(spans))
    stops, kinds, keep = spans.stops.copy(), spans.kinds.copy(), np.ones(len(spans.kinds), np.bool_)
    kinds[rows], rest = PHONE, iter(regions)
    for row, start, stop, kind in zip(*(column.tolist() for column in (rows, *spans.taken(rows)))):
        written = data[start:stop].tobytes().decode()
        own = None if kind == PHONE else next(rest)
        equal = written if written.isascii() else written.translate(_EQUALS)
        num_characters = _number_length(equal, own, kind == NATIONAL)
        stops[row] = start + len(written[:num_characters].encode())
    keep[rows] = stops[rows] > spans.starts[rows]
    return FoundSpans(spans.starts, stops, kinds).taken(keep)


@lru_cache(maxsize=1 << 14)
def _number_length(written: str, regions: Regions | None, must_be_valid: bool) -> int:
    """The length of the valid number in a candidate, or else of a possible one; 0: no number. `regions`: None for an
    international number; `must_be_valid`: whether its shape alone makes it a candidate."""
    if regions is None:
        return _length(written, (), phonenumbers.is_valid_number) or _length(written, (), _is_possible)
    if _DATE.match(written):
        return 0
    tried = regions.main + regions.others
    shape = TRUNK_SHAPES if _WITH_TRUNK.match(written) else AMERICAN_SHAPES
    if not tried or (must_be_valid and not shapes_of(tried) & shape):
        return 0
    length = _length(written, tried, phonenumbers.is_valid_number)
    return length or (_length(written, regions.main, _is_possible) if regions.main and not must_be_valid else 0)


def _length(written: str, regions: tuple[str, ...], is_number: Callable[[phonenumbers.PhoneNumber], bool]) -> int:
    """The length of the number in a candidate: the whole, or without up to three last groups; 0: no number."""
    text = written
    for _ in range(_MAX_READINGS):
        if sum(map(str.isdigit, text)) < _MIN_DIGITS:
            break
        if any(_fits(text, region, is_number) for region in regions or (None,)):
            return len(text)
        if regions and text.startswith("00") and _fits("+" + text[2:].lstrip("-. "), None, is_number):
            return len(text)
        shorter = _LAST_GROUP.sub("", text)
        if shorter == text:
            break
        text = shorter
    return 0


def _is_possible(number: phonenumbers.PhoneNumber) -> bool:
    return phonenumbers.is_possible_number_with_reason(number) == phonenumbers.ValidationResult.IS_POSSIBLE


def _fits(text: str, region: str | None, is_number: Callable[[phonenumbers.PhoneNumber], bool]) -> bool:
    if region is not None and sum(map(str.isdigit, text)) < _fewest_digits(region):
        return False
    try:
        return is_number(phonenumbers.parse(text, region))
    except phonenumbers.NumberParseException:
        return False


@lru_cache
def _fewest_digits(region: str) -> int:
    """The digits of a region's shortest numbers; a text with fewer digits is not parsed."""
    metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
    assert metadata is not None
    assert metadata.general_desc is not None
    return min(metadata.general_desc.possible_length)
