"""Finds secrets by rules: one scan for the keywords of all tables, and patterns near the hits alone.

    texts ─▶ keywords.py ─▶ hits ─┬▶ tokens.py        tokens of known issuers ─┐
                                  ├▶ assignments.py   values behind names ─────┼▶ spans ─▶ copies.py ─▶ spans
                                  └▶ patterns of the user ─────────────────────┘

The rules are data (`Rules`), so an issuer more compiles nothing. Where spans overlap, tokens come first, then patterns, then
values. The cost is linear for any input, and any bytes are safe. Spans of the built-in rules are ASCII, except inside a PEM
block, which begins and ends with dashes, so a cut never falls inside a character.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from datapipe.kernels.redact.assignments import Names, match_names
from datapipe.kernels.redact.copies import with_copies
from datapipe.kernels.redact.keywords import Hits, Keywords, SpansOut, find_hits
from datapipe.kernels.redact.pii import FoundSpans
from datapipe.kernels.redact.tokens import Forms, match_forms


class FindsPatterns(Protocol):
    """What Python reads; its spans may overlap."""

    def near_hits(self, offsets: np.ndarray, data: np.ndarray, hits: Hits) -> FoundSpans: ...

    def anywhere(self, offsets: np.ndarray, data: np.ndarray) -> FoundSpans: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What is looked for.

    Attributes:
        keywords: of all tables.
        forms, names: the tables that kernels read.
        patterns: the user's; None without any.
    """

    keywords: Keywords
    forms: Forms
    names: Names
    patterns: FindsPatterns | None


def find(offsets: np.ndarray, data: np.ndarray, rules: Rules, wanted: int, min_entropy: float) -> FoundSpans:
    """The secrets in documents from `columns.text_buffers`, with their copies.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        rules: what is looked for.
        wanted: the kinds to find, a bit each.
        min_entropy: of values behind names, in bits a character, for values of 32 different characters.
    """
    tokens, patterns, values = list[FoundSpans](), list[FoundSpans](), list[FoundSpans]()
    counts, millibits = np.zeros(256, np.int64), round(1000 * min_entropy)
    for hits in find_hits(offsets, data, rules.keywords):
        outputs = [_spans_out(len(hits.positions)) for _ in range(2)]
        tokens.append(_found(match_forms(offsets, data, hits, rules.forms, wanted, counts, outputs[0]), outputs[0]))
        number = match_names(offsets, data, hits, rules.names, wanted, millibits, counts, outputs[1])
        values.append(_found(number, outputs[1]))
        if rules.patterns is not None:
            patterns.append(rules.patterns.near_hits(offsets, data, hits))
    if rules.patterns is not None:
        patterns.append(rules.patterns.anywhere(offsets, data))
    found = _joined(tokens)
    for others in (patterns, values):
        found = found.merged(_joined(others).outside(found))
    return with_copies(offsets, data, found)


def _spans_out(capacity: int) -> SpansOut:
    return SpansOut(np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.uint8))


def _found(num_spans: int, out: SpansOut) -> FoundSpans:
    starts, stops, kinds = (array[:num_spans] for array in out)
    return FoundSpans(starts=starts, stops=stops, kinds=kinds)


def _joined(parts: list[FoundSpans]) -> FoundSpans:
    """The spans of several scans in text order; of those that overlap, the first and longest."""
    if not parts:
        return FoundSpans(starts=np.empty(0, np.int64), stops=np.empty(0, np.int64), kinds=np.empty(0, np.uint8))
    starts, stops = (np.concatenate(arrays) for arrays in ([part.starts for part in parts], [part.stops for part in parts]))
    kinds = np.concatenate([part.kinds for part in parts])
    order = np.lexsort((-stops, starts))
    order = order[starts[order] >= np.maximum.accumulate(np.append(0, stops[order]))[:-1]]
    return FoundSpans(starts=starts[order], stops=stops[order], kinds=kinds[order])
