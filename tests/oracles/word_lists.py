"""Words of lists in texts, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping

from tests.oracles.case_folding import words

Entry = tuple[bytes, ...]


def count(text: bytes, entries: Mapping[Entry, int], mask: int) -> tuple[int, int, int]:
    """Hits, words in them, and all words: at each word the longest entry of a list in `mask`, then on behind it."""
    found = words(text)
    hits = listed = place = 0
    while place < len(found):
        lengths = [
            len(entry) for entry, bits in entries.items() if bits & mask and tuple(found[place : place + len(entry)]) == entry
        ]
        hits += bool(lengths)
        listed += max(lengths, default=0)
        place += max(lengths, default=1)
    return hits, listed, len(found)
