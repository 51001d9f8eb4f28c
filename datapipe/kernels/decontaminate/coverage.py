"""The weighted share of an item's n-grams that a passage of a document has; at least one is the item's own.

    matches, in the order of the text  ->  per item: a passage, as long as at most `gap` words lie between two of its matches
                                       ->  the weights of its distinct n-grams, summed  ->  items that reach what they need

Sums are integers, so the order of n-grams does not matter. The cost is linear in the postings of the matches.
"""

from typing import NamedTuple

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Bools, Int32s, Int64s, Int64sOut, filled, input_record


class Postings(NamedTuple):
    """The items of every n-gram: an input of kernels."""

    offsets: Int64s  # (num_grams + 1,)
    items: Int32s  # (num_postings,), each item of an n-gram once
    owned: Bools  # (num_postings,), whether no other item of its benchmark has the n-gram
    weights: Int64s  # (num_grams,)
    needs: Int64s  # (num_items,), the sum of weights that an item needs, above 0
    gap: int  # the most words between two matches of one passage, below `word_runs.RING`


class Passages(NamedTuple):
    """The newest passage of each item: scratch of `find_covered`, all 0 before the first call."""

    # begins, lasts: (num_items,), one more than the numbers of its first and last word
    begins: Int64sOut
    lasts: Int64sOut
    # starts, sums: (num_items,), its first byte; the weights of its distinct n-grams
    starts: Int64sOut
    sums: Int64sOut
    owns: Int64sOut  # (num_items,), how many of these are owned
    rows: Int64sOut  # (num_items,), its row of the output, or -1
    counted: Int64sOut  # (num_postings,), the begin of the passage in which the posting was counted last


class Covered(NamedTuple):
    """Passages that reach what an item needs, (num_passages,) int64 each. `starts` and `stops`: of
    the first and the last n-gram; `sums`: the weights of the distinct n-grams."""

    documents: Int64sOut
    items: Int64sOut
    starts: Int64sOut
    stops: Int64sOut
    sums: Int64sOut


def covered_of(
    documents: np.ndarray, entries: np.ndarray, words: np.ndarray, starts: np.ndarray, stops: np.ndarray, postings: Postings
) -> Covered:
    """The passages of documents. Pages of the scratch that no match needs cost nothing."""
    num_items, postings = len(postings.needs), input_record(Postings, postings)

    def find(out: Covered) -> int:
        passages = Passages._make(np.zeros(size, np.int64) for size in (*[num_items] * 6, len(postings.items)))
        return find_covered(documents, entries, words, starts, stops, postings, passages, out)

    return filled(Covered, max(64, len(documents)), find)


@kernel
def find_covered(
    documents: Int64s,
    entries: Int64s,
    words: Int64s,
    starts: Int64s,
    stops: Int64s,
    postings: Postings,
    passages: Passages,
    out: Covered,
) -> int:
    """Writes the passages as far as there is room; returns their number. Matches: of n-grams."""
    (offsets, items, owned, weights, needs, gap), (begins, lasts, firsts, sums, owns, rows, counted) = postings, passages
    out_documents, out_items, out_starts, out_stops, out_sums = out
    count = np.int64(0)
    for match in range(len(documents)):
        entry, word = entries[match], words[match] + 1
        for posting in range(offsets[entry], offsets[entry + 1]):
            item = items[posting]
            if begins[item] == 0 or word - lasts[item] > gap:
                begins[item], firsts[item], sums[item], owns[item], rows[item] = word, starts[match], 0, 0, -1
            lasts[item] = word
            if counted[posting] != begins[item]:
                counted[posting] = begins[item]
                sums[item] += weights[entry]
                owns[item] += np.int64(owned[posting])
            if rows[item] < 0 and owns[item] and sums[item] >= needs[item]:
                rows[item] = count
                count += 1
            row = rows[item]
            if 0 <= row < len(out_documents):
                out_documents[row], out_items[row], out_starts[row] = documents[match], item, firsts[item]
                out_stops[row], out_sums[row] = stops[match], sums[item]
    return int(count)
