"""Stand-ins in plain Python."""

from __future__ import annotations

from tests.oracles.hashing import mix


def _card(digits: str) -> str:
    doubled = [int(digit) * (2 - index % 2) for index, digit in enumerate(reversed(digits))]
    return digits + str(-sum(number // 10 + number % 10 for number in doubled) % 10)


def _iban(digits: str) -> str:
    return f"ZZ{98 - int(digits + '353500') % 97:02}{digits}"


def stand_in(span: bytes, kind: int, seed: int) -> bytes:
    hashed = mix(seed)
    for byte in span:
        hashed = mix(hashed ^ byte)
    hexadecimal, decimal = f"{hashed:016x}"[::-1], f"{hashed:020}"[::-1]
    high = f"{hashed >> 31:016x}"[::-1]
    return [
        f"user-{hexadecimal[:8]}@example.com",
        f"192.0.2.{hashed % 254 + 1}",
        f"2001:db8::{hexadecimal[:4]}:{high[:4]}",
        f"user-{hexadecimal[:8]}:password@",
        _card("9999" + decimal[:11]),
        _iban(decimal[:18]),
        f"987-65-432{decimal[0]}",
        f"+1-555-555-01{decimal[:2]}",
        f"EXAMPLE-{hexadecimal}",
    ][kind].encode()
