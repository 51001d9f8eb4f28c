"""Stand-ins are of their kind, belong to nobody, and are not found again. The kernel table compares them with their oracle."""

from __future__ import annotations

import ipaddress
import re

import numpy as np
import phonenumbers
import pytest

from datapipe.kernels.redact import identifiers, pii, stand_ins


def _of_kind(kind: int) -> list[str]:
    """The stand-ins of 300 spans of a kind."""
    spans = [b"%d" % number for number in range(300)]
    stops = np.cumsum([len(span) for span in spans])
    starts = stops - np.array([len(span) for span in spans])
    rows, lengths = np.zeros((300, stand_ins.REPLACEMENT_BYTES), np.uint8), np.zeros(300, np.int64)
    data, kinds = np.frombuffer(b"".join(spans), np.uint8), np.full(300, kind, np.uint8)
    with np.errstate(over="ignore"):
        stand_ins.write_stand_ins(data, starts, stops, kinds, np.uint64(5), rows, lengths)
    return [row[:length].tobytes().decode() for row, length in zip(rows, lengths, strict=True)]


@pytest.mark.parametrize(
    ("kind", "shape", "least"),
    [
        (pii.EMAIL, r"user-[0-9a-f]{8}@example\.com", 300),
        (pii.IPV4, r"192\.0\.2\.[0-9]{1,3}", 100),
        (pii.IPV6, r"2001:db8::[0-9a-f]{4}:[0-9a-f]{4}", 300),
        (pii.CREDENTIALS, r"user-[0-9a-f]{8}:password@", 300),
        (pii.CARD, r"9999[0-9]{12}", 300),
        (pii.IBAN, r"ZZ[0-9]{20}", 300),
        (pii.SSN, r"987-65-432[0-9]", 10),
        (pii.PHONE, r"\+1-555-555-01[0-9]{2}", 90),
        (pii.SECRET, r"EXAMPLE-[0-9a-f]{16}", 300),
    ],
)
def test_write_stand_ins_have_their_shape_and_differ(kind: int, shape: str, least: int) -> None:
    stand_ins = _of_kind(kind)
    assert all(re.fullmatch(shape, stand_in) for stand_in in stand_ins)
    assert len(set(stand_ins)) >= least


def test_write_stand_ins_are_valid_and_reserved() -> None:
    assert all(ipaddress.ip_address(stand_in) in ipaddress.ip_network("192.0.2.0/24") for stand_in in _of_kind(pii.IPV4))
    assert all(ipaddress.ip_address(stand_in) in ipaddress.ip_network("2001:db8::/32") for stand_in in _of_kind(pii.IPV6))
    for digits in _of_kind(pii.CARD):
        doubled = [int(digit) * (1 + index % 2) for index, digit in enumerate(reversed(digits))]
        assert sum(number // 10 + number % 10 for number in doubled) % 10 == 0
    for written in _of_kind(pii.IBAN):
        assert int("".join(str(int(stand_in, 36)) for stand_in in written[4:] + written[:4])) % 97 == 1
    assert not any(phonenumbers.is_valid_number(phonenumbers.parse(stand_in)) for stand_in in _of_kind(pii.PHONE))


def test_write_stand_ins_are_not_found_again() -> None:
    kinds = [pii.EMAIL, pii.IPV4, pii.IPV6, pii.CARD, pii.IBAN, pii.SSN]
    text = " ".join(stand_in for kind in kinds for stand_in in _of_kind(kind)) + "".join(
        f" https://{x}h.com" for x in _of_kind(pii.CREDENTIALS)
    )
    data = np.frombuffer(text.encode(), np.uint8)
    offsets = np.array([0, len(data)], np.int64)
    assert len(pii.find(offsets, data, True, True, True).starts) == 0
    assert len(identifiers.find(offsets, data, 63 ^ identifiers.WANTS_PHONE).starts) == 0
