"""Finds secrets by rules: one scan for the keywords of all tables, and patterns at the hits alone.

    texts ─▶ keywords.py ─▶ hits ─┬▶ tokens.py        tokens of known issuers ─┐
                                  ├▶ assignments.py   values behind names ─────┼▶ spans ─▶ copies.py ─▶ spans
                                  └▶ the user's patterns, on texts with hits ──┘

The rules are data: another issuer compiles nothing. Where spans overlap, tokens precede values;
those of patterns and what overlaps them are one. No cut is inside a character: the built-in rules
match ASCII, or a PEM block between dashes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from datapipe.dataclass import dataclass
from datapipe.kernels.redact.assignments import Names, match_names
from datapipe.kernels.redact.copies import with_copies
from datapipe.kernels.redact.keywords import Hits, Keywords, find_hits
from datapipe.kernels.redact.spans import FoundSpans, joined, scanned
from datapipe.kernels.redact.tokens import Forms, match_forms


class FindsPatterns(Protocol):
    """What Python reads; its spans may overlap."""

    def places(self, offsets: np.ndarray, hits: Hits) -> np.ndarray: ...

    def find(self, offsets: np.ndarray, data: np.ndarray, places: Sequence[np.ndarray]) -> FoundSpans: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What is searched: keywords of all tables, the tables that kernels read, and the user's patterns; None without any."""

    keywords: Keywords
    forms: Forms
    names: Names
    patterns: FindsPatterns | None


def find(offsets: np.ndarray, data: np.ndarray, rules: Rules, wanted: int, min_entropy: float) -> FoundSpans:
    """The secrets in documents, with their copies. `wanted`: the kinds to find, a bit each. `min_entropy`: of
    values behind names, in bits a character, for values of 32 different characters."""
    tokens, values, places = list[FoundSpans](), list[FoundSpans](), list[np.ndarray]()
    counts, millibits = np.zeros(256, np.int64), round(1000 * min_entropy)
    for hits in find_hits(offsets, data, rules.keywords):
        most = len(hits.positions)
        tokens.append(scanned(most, partial(match_forms, offsets, data, hits, rules.forms, wanted, counts)))
        values.append(scanned(most, partial(match_names, offsets, data, hits, rules.names, wanted, millibits, counts)))
        if rules.patterns is not None:
            places.append(rules.patterns.places(offsets, hits))
    spans = _firsts(joined(tokens))
    others = _firsts(joined(values)).outside(spans)
    if rules.patterns is None:
        return with_copies(offsets, data, spans.merged(others))
    return with_copies(offsets, data, _united([spans, rules.patterns.find(offsets, data, places), others]))


def _firsts(spans: FoundSpans) -> FoundSpans:
    """The spans of several scans in text order; of those that overlap, the first and longest."""
    ordered = spans.taken(np.lexsort((-spans.stops, spans.starts)))
    return ordered.taken(ordered.starts >= np.maximum.accumulate(np.append(0, ordered.stops))[:-1])


def _united(parts: list[FoundSpans]) -> FoundSpans:
    """The spans in text order, those that overlap as one, of the kind of the first part among them."""
    spans, ranks = joined(parts), np.repeat(np.arange(len(parts)), [len(part.starts) for part in parts])
    order = np.argsort(spans.starts, kind="stable")
    (starts, stops, kinds), ranks = spans.taken(order), ranks[order]
    is_first = starts >= np.append(0, np.maximum.accumulate(stops))[:-1]
    firsts, runs = np.flatnonzero(is_first), np.cumsum(is_first)
    if len(firsts) == 0:
        return parts[0]
    best = np.lexsort((ranks, runs))[firsts]
    return FoundSpans(starts[firsts], np.maximum.reduceat(stops, firsts), kinds[best])
