"""Stand-ins and replacement in plain Python."""

from __future__ import annotations

from tests.oracles.minhash import mix


def stand_in(span: bytes, kind: int, seed: int) -> bytes:
    hashed = mix(seed)
    for byte in span:
        hashed = mix(hashed ^ byte)
    if kind == 0:
        return b"user-" + f"{hashed & 0xFFFFFFFF:08x}"[::-1].encode() + b"@example.com"
    if kind == 1:
        return b"192.0.2.%d" % (hashed % 254 + 1)
    low, high = f"{hashed & 0xFFFF:04x}"[::-1], f"{hashed >> 31 & 0xFFFF:04x}"[::-1]
    return f"2001:db8::{low}:{high}".encode()


def replaced(text: bytes, spans: list[tuple[int, int, bytes]]) -> bytes:
    for start, stop, by in sorted(spans, reverse=True):
        text = text[:start] + by + text[stop:]
    return text
