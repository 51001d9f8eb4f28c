"""Byte-pair encoding as published: merge the pair of lowest rank, the leftmost of equals, until no pair merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def merged(pretoken: bytes, byte_ids: Sequence[int], merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """The ids of a pretoken; `merges`: pair -> (rank, result)."""
    ids = [byte_ids[byte] for byte in pretoken]
    while True:
        ranked = [(merges[pair][0], index) for index, pair in enumerate(zip(ids, ids[1:])) if pair in merges]
        if not ranked:
            return ids
        _, index = min(ranked)
        ids[index : index + 2] = [merges[ids[index], ids[index + 1]][1]]


def cut_at_tokens(text: bytes, tokens: Mapping[bytes, int]) -> list[tuple[bytes, int]]:
    """Parts with their ids, or -1; the leftmost token counts, the longest of several; a token of id -2 is passed over."""
    parts, begin, offset = [], 0, 0
    while offset < len(text):
        fitting = [token for token in tokens if text.startswith(token, offset)]
        longest = max(fitting, key=len, default=text[offset : offset + 1])
        if fitting and tokens[longest] >= 0:
            parts += [(text[begin:offset], -1)] * (offset > begin) + [(longest, tokens[longest])]
            begin = offset + len(longest)
        offset += len(longest)
    return parts + [(text[begin:], -1)] * (begin < len(text))
