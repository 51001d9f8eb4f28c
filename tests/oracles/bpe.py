"""Byte-pair encoding as the algorithm is told: merge the pair of lowest rank, the leftmost of equals, until none is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def merged(piece: bytes, byte_ids: Sequence[int], merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """The ids of a piece; `merges`: pair -> (rank, result)."""
    ids = [byte_ids[byte] for byte in piece]
    while True:
        ranked = [(merges[pair][0], at) for at, pair in enumerate(zip(ids, ids[1:])) if pair in merges]
        if not ranked:
            return ids
        _, at = min(ranked)
        ids[at : at + 2] = [merges[ids[at], ids[at + 1]][1]]


def cut_at_tokens(text: bytes, tokens: Mapping[bytes, int]) -> list[tuple[bytes, int]]:
    """Parts with the id that each is, or -1; the leftmost token counts, of those the longest; one of id -2 is passed over."""
    parts, begin, at = [], 0, 0
    while at < len(text):
        fitting = [token for token in tokens if text.startswith(token, at)]
        longest = max(fitting, key=len, default=text[at : at + 1])
        if fitting and tokens[longest] >= 0:
            parts += [(text[begin:at], -1)] * (at > begin) + [(longest, tokens[longest])]
            begin = at + len(longest)
        at += len(longest)
    return parts + [(text[begin:], -1)] * (begin < len(text))
