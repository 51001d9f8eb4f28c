"""The parts of runs, token by token."""

from __future__ import annotations


def split_run(start: int, length: int, padded: int, num_parts: int, parts: list[int]) -> list[tuple[int, int]]:
    """(place, position) of each token of some parts of a run that is padded to `padded` tokens; -1 is the place of padding."""
    places = [start + t if t < length else -1 for t in range(padded)]
    size = padded // num_parts
    return [(places[t], t) for part in parts for t in range(part * size, (part + 1) * size)]
