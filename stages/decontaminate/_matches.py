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
class _Hits:
    """Hits with one of their items each: (num_rows,) int64, `hits` is the number of the hit."""

    hits: np.ndarray
    documents: np.ndarray
    items: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


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
    wholes = _whole_hits(_rows(matches, ~is_gram), offsets, data, index)
    if covers:
        return _covered(_rows(matches, is_gram), wholes, index)
    return _found(_joined(_gram_hits(_rows(matches, is_gram), wholes, index), wholes))


def _rows(matches: search.Matches, chosen: np.ndarray) -> search.Matches:
    return search.Matches(*(column[chosen] for column in matches))


def _expanded(offsets: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The members of lists: for each the row of `numbers` that names its list, and its place in the members."""
    counts = offsets[numbers + 1] - offsets[numbers]
    rows = np.repeat(np.arange(len(numbers)), counts)
    return rows, np.arange(len(rows)) + np.repeat(offsets[numbers] - np.cumsum(counts) + counts, counts)


# ------------------------------------------------------------------------------------------------ whole items


def _whole_hits(matches: search.Matches, offsets: np.ndarray, data: np.ndarray, index: Index) -> _Hits:
    """The short items that are found as a whole. A question may be met with several answers: each is a hit."""
    wholes = index.wholes
    questions = matches.entries - wholes.first
    rows, members = _expanded(wholes.alone_offsets, questions)
    answers = input_record(search.Answers, wholes.answers)
    pairs = search.pairs_of(matches, questions, offsets, data, words_table(), answers)
    pair_rows, pair_members = _expanded(wholes.pair_offsets, pairs.pairs)
    match = np.concatenate([rows, pairs.matches[pair_rows]])
    stops = np.concatenate([matches.stops[rows], pairs.stops[pair_rows]])
    return _Hits(
        hits=match,
        documents=matches.documents[match],
        items=np.concatenate([wholes.alone_items[members], wholes.pair_items[pair_members]]),
        starts=matches.starts[match],
        stops=stops,
    )


# ------------------------------------------------------------------------------------------------ n-grams


def _gram_hits(matches: search.Matches, wholes: _Hits, index: Index) -> _Hits:
    """The n-grams that count, one row for each of their items that has an own n-gram or is found whole in the document."""
    offsets, members, own = index.postings.offsets, index.postings.items, index.postings.owned
    in_question = _with_own(matches, index, wholes)
    matches = _rows(matches, in_question)
    rows, places = _expanded(offsets, matches.entries)
    items, documents = index.item_of[members[places]], matches.documents[rows]
    num_items = len(index.set_of)
    pairs = documents * num_items + items
    certain = np.unique(np.concatenate([pairs[own[places]], wholes.documents * num_items + wholes.items]))
    counts = np.isin(pairs, certain)
    rows, items = rows[counts], items[counts]
    return _Hits(
        hits=rows,
        documents=matches.documents[rows],
        items=items,
        starts=matches.starts[rows],
        stops=matches.stops[rows],
    )


def _with_own(matches: search.Matches, index: Index, wholes: _Hits) -> np.ndarray:
    """Which matches are in documents that have an own n-gram of some item, or a whole item: (num_matches,) bool."""
    offsets, own = index.postings.offsets, index.postings.owned
    before = np.concatenate([[0], np.cumsum(own)])
    has_own = before[offsets[matches.entries + 1]] > before[offsets[matches.entries]]
    documents = np.union1d(matches.documents[has_own], wholes.documents)
    return np.isin(matches.documents, documents)


def _joined(grams: _Hits, wholes: _Hits) -> _Hits:
    """Both kinds of hits; a whole item that overlaps n-grams of its own is one hit more."""
    after = int(grams.hits.max(initial=-1)) + 1
    parts = zip(
        (grams.hits, grams.documents, grams.items, grams.starts, grams.stops),
        (wholes.hits + after, wholes.documents, wholes.items, wholes.starts, wholes.stops),
    )
    hits, documents, items, starts, stops = (np.concatenate(pair) for pair in parts)
    return _Hits(hits=hits, documents=documents, items=items, starts=starts, stops=stops)


# ------------------------------------------------------------------------------------------------ findings


def _found(rows: _Hits) -> Found:
    """Hits, each once, and findings by document and item."""
    order = np.lexsort((-rows.stops, rows.hits))
    first = np.unique(rows.hits[order], return_index=True)[1]  # of several answers the longest
    hits = order[first]
    hits = hits[np.lexsort((rows.stops[hits], rows.starts[hits], rows.documents[hits]))]
    by_item = np.lexsort((rows.starts, rows.items, rows.documents))
    documents, items = rows.documents[by_item], rows.items[by_item]
    starts_new = np.ones(len(documents), np.bool_)
    starts_new[1:] = (documents[1:] != documents[:-1]) | (items[1:] != items[:-1])
    firsts = np.flatnonzero(starts_new)
    nothing = np.zeros(0, np.int64)
    return Found(
        documents=rows.documents[hits],
        starts=rows.starts[hits],
        stops=rows.stops[hits],
        item_documents=documents[firsts],
        items=items[firsts],
        item_starts=rows.starts[by_item][firsts],
        item_stops=np.maximum.reduceat(rows.stops[by_item], firsts) if len(firsts) else nothing,
        values=np.diff(np.append(firsts, len(documents))).astype(np.float64),
    )


def _covered(matches: search.Matches, wholes: _Hits, index: Index) -> Found:
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
