"""Which candidates are phone numbers, by the library `phonenumbers` (Google's libphonenumber): length, area and range.

The one part of `redact.pii` that runs in Python: some 40 µs for each reading of a candidate, and each has at most four, of
which every configured region tries each. A candidate is 7 bytes of text or more and at most about 70, so the cost is linear in
the text: 0.2 MB/s where all of it is different numbers. The answers are remembered, since pages repeat their numbers.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import phonenumbers

from datapipe.kernels.redact.phones import AMERICAN_SHAPES, NATIONAL, TRUNK_SHAPES
from datapipe.kernels.redact.pii import PHONE, FoundSpans

phonenumbers.enable_pattern_cache()  # else numbers of many countries cost 740 µs each: their patterns push out each other
_MAX_READINGS = 4
_MIN_DIGITS = 7
_LAST_GROUP = re.compile(r"[^0-9+(]+\(?[0-9]+\Z")


def shapes_of(regions: tuple[str, ...]) -> int:
    """The shapes that the scan looks for without a telling word: America's and those of a trunk prefix, as far as in use."""
    codes = {phonenumbers.country_code_for_region(region) for region in regions}
    return (AMERICAN_SHAPES if 1 in codes else 0) | (TRUNK_SHAPES if codes - {1} else 0)


def judged(data: np.ndarray, found: FoundSpans, regions: tuple[str, ...]) -> FoundSpans:
    """`found` with the candidates that are phone numbers cut to what is the number, and without those that are none."""
    stops, kinds, keep = found.stops.copy(), found.kinds.copy(), np.ones(len(found.kinds), np.bool_)
    for row in np.flatnonzero((kinds == PHONE) | (kinds == NATIONAL)).tolist():
        written = data[found.starts[row] : stops[row]].tobytes().decode("ascii")
        length = _valid_length(written, () if kinds[row] == PHONE else regions)
        stops[row], kinds[row], keep[row] = found.starts[row] + length, PHONE, length > 0
    return FoundSpans(starts=found.starts[keep], stops=stops[keep], kinds=kinds[keep])


@lru_cache(maxsize=1 << 14)
def _valid_length(written: str, regions: tuple[str, ...]) -> int:
    """How much of a candidate is a valid number: all, or without up to three of the last groups; 0: nothing.

    Args:
        written: the candidate.
        regions: where a national number may be valid, in their order; none: it is international.
    """
    text = written
    for _ in range(_MAX_READINGS):
        if sum(map(str.isdigit, text)) < _MIN_DIGITS:
            break
        if any(_is_valid(text, region) for region in regions or (None,)):
            return len(text)
        if regions and text.startswith("00") and _is_valid("+" + text[2:].lstrip("-. "), None):
            return len(text)
        shorter = _LAST_GROUP.sub("", text)
        if shorter == text:
            break
        text = shorter
    return 0


def _is_valid(text: str, region: str | None) -> bool:
    if region is not None and sum(map(str.isdigit, text)) < _fewest_digits(region):
        return False
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(text, region))
    except phonenumbers.NumberParseException:
        return False


@lru_cache
def _fewest_digits(region: str) -> int:
    """The digits of a region's shortest numbers: what has fewer needs no reading."""
    metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
    assert metadata is not None
    assert metadata.general_desc is not None
    return min(metadata.general_desc.possible_length)
