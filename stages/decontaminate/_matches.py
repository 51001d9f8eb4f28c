"""From matches in a batch to what is found of which item in which document.

matches of n-grams   ─▶  those of items that have an own match in the document ─┐
matches of questions ─▶  with their answers behind them ────────────────────────┴▶ hits  ─▶  findings
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.columns import is_first
from datapipe.kernels.decontaminate import coverage, search
from datapipe.kernels.decontaminate.folded_words import WHOLE
from stages.decontaminate._index import Index


class Hits(NamedTuple):
    """Word runs that count, by document and start: (num_hits,) int64 each, bytes in the data."""

    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


class Findings(NamedTuple):
    """Items in documents, by document and item, each pair once: (num_findings,) each. Spans reach from the first to the last
    hit of the item in the document. Values are hits of the item, of `coverage` its share."""

    documents: np.ndarray
    items: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray


def find(offsets: np.ndarray, data: np.ndarray, index: Index, n: int, covers: bool) -> tuple[Hits, Findings]:
    """What is found in documents, by n-grams of `n` words; `covers`: whether items are found by the share of their n-grams."""
    matches = search.matches_of(offsets, data, index.words, index.table, index.wholes.tails, WHOLE * n)
    is_gram = matches.entries < index.num_grams
    hits, wholes = _whole_items(_taken(matches, ~is_gram), offsets, data, index)
    if covers:
        return _covered(_taken(matches, is_gram), wholes, index)
    gram_hits, grams = _gram_items(_taken(matches, is_gram), wholes, index)
    hits = Hits(*map(np.concatenate, zip(gram_hits, hits)))
    return _taken(hits, np.lexsort(hits[::-1])), _joined(Findings(*map(np.concatenate, zip(grams, wholes))))


def _taken(columns: Any, rows: np.ndarray) -> Any:
    return type(columns)(*(column[rows] for column in columns))


def _expanded(offsets: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The members of lists: for each the row of `numbers` that names its list, and its place in the members."""
    counts = offsets[numbers + 1] - offsets[numbers]
    rows = np.repeat(np.arange(len(numbers)), counts)
    return rows, np.arange(len(rows)) + np.repeat(offsets[numbers] - np.cumsum(counts) + counts, counts)


def _whole_items(matches: search.Matches, offsets: np.ndarray, data: np.ndarray, index: Index) -> tuple[Hits, Findings]:
    """The short items that are found as a whole, and where. A question that several of its answers
    follow is one match, to the end of the last."""
    wholes = index.wholes
    questions = matches.entries - wholes.first
    rows, members = _expanded(wholes.alone_offsets, questions)
    pairs = search.pairs_of(matches, questions, offsets, data, index.words, wholes.answers)
    pair_rows, pair_members = _expanded(wholes.pair_offsets, pairs.pairs)
    match = np.concatenate([rows, pairs.matches[pair_rows]])
    stops = np.concatenate([matches.stops[rows], pairs.stops[pair_rows]])
    items = np.concatenate([wholes.alone_items[members], wholes.pair_items[pair_members]])
    farthest = matches.stops.copy()
    np.maximum.at(farthest, match, stops)
    hits = np.unique(match)
    findings = Findings(matches.documents[match], items, matches.starts[match], stops, np.ones_like(match))
    return Hits(matches.documents[hits], matches.starts[hits], farthest[hits]), findings


def _gram_items(matches: search.Matches, wholes: Findings, index: Index) -> tuple[Hits, Findings]:
    """The matches of n-grams that count: those of an item that has an own n-gram, or is found whole, in the document. An n-gram
    is read once for each document that has it, so the rows are bounded by the index."""
    offsets, members, own = index.postings.offsets, index.postings.items, index.postings.owned
    name = matches.documents * max(index.num_grams, 1) + matches.entries
    distinct, first, which, hits = np.unique(name, return_index=True, return_inverse=True, return_counts=True)
    last = np.zeros(len(distinct), np.int64)
    last[which] = matches.stops  # matches are in order, and the last assignment to a place stays
    rows, places = _expanded(offsets, matches.entries[first])
    items, documents = index.item_of[members[places]], matches.documents[first][rows]
    pairs = documents * len(index.set_of) + items
    certain = np.concatenate([pairs[own[places]], wholes.documents * len(index.set_of) + wholes.items])
    counts = np.isin(pairs, certain)
    rows = rows[counts]
    findings = Findings(documents[counts], items[counts], matches.starts[first][rows], last[rows], hits[rows])
    is_hit = np.zeros(len(distinct), np.bool_)
    is_hit[rows] = True
    hit = is_hit[which]
    return Hits(matches.documents[hit], matches.starts[hit], matches.stops[hit]), findings


def _joined(findings: Findings) -> Findings:
    findings = _taken(findings, np.lexsort((findings.starts, findings.items, findings.documents)))
    firsts = np.flatnonzero(is_first(findings.documents, findings.items))
    if not len(firsts):
        return findings
    stops, hits = np.maximum.reduceat(findings.stops, firsts), np.add.reduceat(findings.values, firsts)
    return _taken(findings, firsts)._replace(stops=stops, values=hits)


def _covered(matches: search.Matches, wholes: Findings, index: Index) -> tuple[Hits, Findings]:
    """Items of which a passage has enough, and whole items, by the greatest share in a document."""
    passages = coverage.covered_of(
        matches.documents, matches.entries, matches.words, matches.starts, matches.stops, index.postings
    )
    shares = passages.sums / np.maximum(index.totals[passages.items], 1)
    covered = Findings(passages.documents, index.item_of[passages.items], passages.starts, passages.stops, np.round(shares, 6))
    findings = Findings(*map(np.concatenate, zip(covered, wholes)))
    findings = _taken(
        findings, np.lexsort((findings.stops, findings.starts, -findings.values, findings.items, findings.documents))
    )
    best = _taken(findings, is_first(findings.documents, findings.items))
    return Hits(best.documents, best.starts, best.stops), best
