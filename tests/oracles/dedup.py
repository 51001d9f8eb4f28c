"""What deduplication hashes of texts, and MinHash over sets of word tuples, by whole numbers."""

from tests.oracles.case_folding import words
from tests.oracles.texts import MASK, mix, polynomial

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


def characters(text: bytes) -> list[bytes]:
    """The characters of the words."""
    return [character.encode() for word in words(text) for character in word.decode()]


def shingles(text: bytes, ngram: int) -> set[tuple[bytes, ...]]:
    found = words(text)
    return {tuple(found[i : i + ngram]) for i in range(len(found) - ngram + 1)}


def jaccard(a: bytes, b: bytes, ngram: int) -> float:
    first, second = shingles(a, ngram), shingles(b, ngram)
    return len(first & second) / len(first | second)


def word_hash(word: bytes) -> int:
    """The word hashed eight bytes at a time; the last part is shorter than eight bytes, perhaps empty."""
    hashed = 0xCBF29CE484222325
    for start in range(0, len(word) // 8 * 8, 8):
        hashed = (hashed ^ int.from_bytes(word[start : start + 8], "little")) * 0x9E3779B97F4A7C15 & MASK
        hashed ^= hashed >> 29
    last = int.from_bytes(word[len(word) // 8 * 8 :], "little")
    return mix((hashed ^ last) * 0x9E3779B97F4A7C15 & MASK)


def character_hash(character: bytes) -> int:
    return mix(int.from_bytes(character, "little") ^ 0xA0761D6478BD642F)


def signature(text: bytes, a: list[int], b: list[int], ngram: int, by_character: bool = False) -> tuple[int, int, list[int]]:
    """Number of words, hash of the last `ngram` of them, and the least upper half of a * x + b for each permutation."""
    hashes = [character_hash(one) for one in characters(text)] if by_character else [word_hash(one) for one in words(text)]
    inputs = [mix(polynomial(hashes[i : i + ngram])) >> 32 for i in range(len(hashes) - ngram + 1)]
    least = []
    for multiplier, addend in zip(a, b, strict=True):
        values = [((multiplier * x + addend + 2**63) & MASK) >> 32 for x in inputs]  # the sign bit is turned
        least.append(min(values, default=0xFFFFFFFF))
    return len(hashes), mix(polynomial(hashes[-ngram:]) ^ len(hashes)), least


def band_rows(signatures: list[tuple[int, int, list[int]]], ngram: int, num_bands: int) -> list[tuple[int, int]]:
    """(hash, document) of every row, from the result of `signature` for every document."""
    out = []
    for document, (num_words, hashed_words, signed) in enumerate(signatures):
        rows = len(signed) // num_bands
        if 0 < num_words < ngram:
            out.append((mix(hashed_words ^ mix(1 << 32)), document))
        for index in range(num_bands if num_words >= ngram else 0):
            hashed = mix(index + 1)
            for value in signed[index * rows : (index + 1) * rows]:
                hashed = (hashed ^ value) * 0x9E3779B97F4A7C15 & MASK
                hashed ^= hashed >> 29
            out.append((mix(hashed), document))
    return out
