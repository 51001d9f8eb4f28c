"""Text hashes and white space in plain Python."""

from __future__ import annotations

from tests.oracles.hashing import MASK, mix

_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


def text_hash(text: bytes) -> tuple[int, int]:
    """Both halves; the last piece is the one shorter than eight bytes, and may be empty."""
    first, second, third, fourth = _PRIMES
    hashed, digest = len(text) * third & MASK, len(text) * first & MASK
    for start in range(0, len(text) // 8 * 8 + 1, 8):
        piece = int.from_bytes(text[start : start + 8], "little")
        hashed = (hashed ^ (piece * second & MASK)) * first & MASK
        digest = (digest + piece * fourth) * third & MASK
        hashed, digest = hashed ^ (hashed >> 29), digest ^ (digest >> 32)
    return mix(hashed), mix(digest)


def squeeze_space(text: str) -> str:
    return " ".join(text.split())
