"""From matches in a batch to what is found of which item in which document.

matches of n-grams   ─▶  those of items that have an own match in the document ─┐
matches of questions ─▶  with their answers behind them ────────────────────────┴▶ hits  ─▶  findings
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datapipe.kernels.decontaminate import coverage, search
from datapipe.kernels.decontaminate.folded_words import WHOLE, words_table
from datapipe.kernels.decontaminate.word_runs import GramTable
from datapipe.kernels.types import input_record
from stages.decontaminate._index import Index


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Runs of words that count, by document and start, and the items that have them.

    Attributes:
        documents, starts, stops: (num_hits,) int64, bytes in the data.
        item_documents, items: (num_findings,) int64, by document and item, each pair once.
        item_starts, item_stops: (num_findings,) int64, from the first to the last hit of the item in the document.
        values: (num_findings,) float64, hits of the item; of `coverage` its share.
    """

    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    item_documents: np.ndarray
    items: np.ndarray
    item_starts: np.ndarray
    item_stops: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Items in documents: (num_rows,) int64 each. `hits` is the number of matches behind a row."""

    documents: np.ndarray
    items: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    hits: np.ndarray


_Runs = tuple[np.ndarray, ...]
"""Documents, starts and stops of matches that count, (num_hits,) int64 each."""


def find(offsets: np.ndarray, data: np.ndarray, index: Index, n: int, covers: bool) -> Found:
    """What is found in documents.

    Args:
        offsets: (num_docs + 1,) int64.
        data: (num_bytes,) uint8.
        n: words of an n-gram.
        covers: whether items are found by the share of their n-grams.
    """
    words = words_table()
    table, anchors = input_record(GramTable, index.table), input_record(search.Anchors, index.wholes.anchors)
    matches = search.matches_of(offsets, data, words, table, anchors, WHOLE * n)
    is_gram = matches.entries < index.num_grams
    runs, wholes = _whole_items(_rows(matches, ~is_gram), offsets, data, index)
    if covers:
        return _covered(_rows(matches, is_gram), wholes, index)
    gram_runs, grams = _gram_items(_rows(matches, is_gram), wholes, index)
    return _found(tuple(map(np.concatenate, zip(gram_runs, runs))), (grams, wholes))


def _rows(matches: search.Matches, chosen: np.ndarray) -> search.Matches:
    return search.Matches(*(column[chosen] for column in matches))


def _expanded(offsets: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The members of lists: for each the row of `numbers` that names its list, and its place in the members."""
    counts = offsets[numbers + 1] - offsets[numbers]
    rows = np.repeat(np.arange(len(numbers)), counts)
    return rows, np.arange(len(rows)) + np.repeat(offsets[numbers] - np.cumsum(counts) + counts, counts)


# ------------------------------------------------------------------------------------------------ whole items


def _whole_items(matches: search.Matches, offsets: np.ndarray, data: np.ndarray, index: Index) -> tuple[_Runs, _Rows]:
    """The short items that are found as a whole, and where. A question that several of its answers follow is one match, to the
    end of the last."""
    wholes = index.wholes
    questions = matches.entries - wholes.first
    rows, members = _expanded(wholes.alone_offsets, questions)
    answers = input_record(search.Answers, wholes.answers)
    pairs = search.pairs_of(matches, questions, offsets, data, words_table(), answers)
    pair_rows, pair_members = _expanded(wholes.pair_offsets, pairs.pairs)
    match = np.concatenate([rows, pairs.matches[pair_rows]])
    stops = np.concatenate([matches.stops[rows], pairs.stops[pair_rows]])
    items = np.concatenate([wholes.alone_items[members], wholes.pair_items[pair_members]])
    farthest = matches.stops.copy()
    np.maximum.at(farthest, match, stops)
    hits = np.unique(match)
    found = _Rows(
        documents=matches.documents[match], items=items, starts=matches.starts[match], stops=stops, hits=np.ones_like(match)
    )
    return (matches.documents[hits], matches.starts[hits], farthest[hits]), found


# ------------------------------------------------------------------------------------------------ n-grams


def _gram_items(matches: search.Matches, wholes: _Rows, index: Index) -> tuple[_Runs, _Rows]:
    """The matches of n-grams that count: those of an item that has an own n-gram, or is found whole, in the document.

    An n-gram is looked at once for each document that has it, however often, so the rows are bounded by the index.
    """
    offsets, members, own = index.postings.offsets, index.postings.items, index.postings.owned
    matches = _rows(matches, _in_contaminated(matches, wholes, index))
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
    found = _Rows(
        documents=documents[counts],
        items=items[counts],
        starts=matches.starts[first][rows],
        stops=last[rows],
        hits=hits[rows],
    )
    is_hit = np.zeros(len(distinct), np.bool_)
    is_hit[rows] = True
    hit = is_hit[which]
    return (matches.documents[hit], matches.starts[hit], matches.stops[hit]), found


def _in_contaminated(matches: search.Matches, wholes: _Rows, index: Index) -> np.ndarray:
    """Which matches are in documents that have an own n-gram of some item, or a whole item: (num_matches,) bool."""
    offsets, own = index.postings.offsets, index.postings.owned
    before = np.concatenate([[0], np.cumsum(own)])
    has_own = before[offsets[matches.entries + 1]] > before[offsets[matches.entries]]
    return np.isin(matches.documents, np.concatenate([matches.documents[has_own], wholes.documents]))


# ------------------------------------------------------------------------------------------------ findings


def _found(runs: _Runs, parts: tuple[_Rows, _Rows]) -> Found:
    """The matches in the order of documents and starts, and the rows joined by document and item."""
    order = np.lexsort((runs[2], runs[1], runs[0]))
    documents, items, starts, stops, hits = (
        np.concatenate(columns)
        for columns in zip(*((part.documents, part.items, part.starts, part.stops, part.hits) for part in parts))
    )
    by_item = np.lexsort((starts, items, documents))
    documents, items, stops, hits = documents[by_item], items[by_item], stops[by_item], hits[by_item]
    is_first = np.ones(len(by_item), np.bool_)
    is_first[1:] = (documents[1:] != documents[:-1]) | (items[1:] != items[:-1])
    firsts = np.flatnonzero(is_first)
    return Found(
        documents=runs[0][order],
        starts=runs[1][order],
        stops=runs[2][order],
        item_documents=documents[firsts],
        items=items[firsts],
        item_starts=starts[by_item][firsts],
        item_stops=np.maximum.reduceat(stops, firsts) if len(firsts) else stops,
        values=(np.add.reduceat(hits, firsts) if len(firsts) else hits).astype(np.float64),
    )


def _covered(matches: search.Matches, wholes: _Rows, index: Index) -> Found:
    """Items of which a passage has enough, and whole items: of each the greatest share in a document."""
    passages = coverage.covered_of(
        matches.documents, matches.entries, matches.words, matches.starts, matches.stops, index.postings
    )
    shares = passages.sums / np.maximum(index.totals[passages.items], 1)
    documents = np.concatenate([passages.documents, wholes.documents])
    items = np.concatenate([index.item_of[passages.items], wholes.items])
    starts, stops = np.concatenate([passages.starts, wholes.starts]), np.concatenate([passages.stops, wholes.stops])
    values = np.round(np.concatenate([shares, np.ones(len(wholes.documents))]), 6)
    order = np.lexsort((stops, starts, -values, items, documents))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (documents[order][1:] != documents[order][:-1]) | (items[order][1:] != items[order][:-1])
    best = order[is_first]
    return Found(
        documents=documents[best],
        starts=starts[best],
        stops=stops[best],
        item_documents=documents[best],
        items=items[best],
        item_starts=starts[best],
        item_stops=stops[best],
        values=values[best],
    )
