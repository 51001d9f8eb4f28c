"""Conversations of more tokens than a limit are cut behind a whole answer, or left out.

    <|im_start|> user … <|im_end|> <|im_start|> assistant An answer. <|im_end|> <|im_start|> user … <|im_end|> …
                                                          └────── learned ───┘
                                                                             ▲ a cut

A loss counts what an assistant writes, so a cut stands where that ends: behind the last answer that fits. A control token
behind an answer that a loss does not count belongs to its turn. A conversation none of whose answers fits is left out.

A message may have several parts that a loss counts, such as calls of tools. No cut stands between two of them if what is
between them also stands right before the first answer: it is the header of an answer alone.
"""

from typing import NamedTuple

import numpy as np

from datapipe.tokens.segments import Encoded


class Shortened(NamedTuple):
    """Documents of at most so many tokens."""

    encoded: Encoded
    keep: np.ndarray  # (num_docs,) bool: of the documents before
    num_cut: int


def shortened(encoded: Encoded, most: np.ndarray, control_ids: np.ndarray, *, cuts: bool) -> Shortened:
    """The documents of at most `most` tokens, (num_docs,) int64; others are cut, or left out. `control_ids`: (num_ids,)."""
    lengths = np.diff(encoded.offsets)
    stops = np.minimum(lengths, most)
    for number in np.flatnonzero(lengths > most).tolist():
        stops[number] = _last_answer(encoded, number, int(most[number]), control_ids) if cuts else 0
    keep = (lengths <= most) | (stops > 0)
    ends = np.repeat(encoded.offsets[:-1] + stops, lengths)
    is_left = np.arange(len(encoded.ids)) < ends
    learned = None if encoded.learned is None else encoded.learned[is_left]
    left = Encoded(encoded.ids[is_left], np.concatenate([[0], np.cumsum(stops[keep])]), learned)
    return Shortened(left, keep, int((keep & (stops < lengths)).sum()))


def _last_answer(encoded: Encoded, number: int, most: int, control_ids: np.ndarray) -> int:
    """How many tokens of a document go to the end of the last answer within `most` tokens; 0 for none."""
    own = slice(encoded.offsets[number], encoded.offsets[number + 1])
    if encoded.learned is None:
        return 0
    ids, learned = encoded.ids[own], encoded.learned[own]
    is_control = np.isin(ids, control_ids)
    ends = np.flatnonzero(learned[:-1] & ~learned[1:]) + 1  # of the answers that others follow
    starts = np.flatnonzero(~learned[:-1] & learned[1:]) + 1
    first = ids[: int(learned.argmax())]  # what is before the first answer
    for end in ends[ends <= most][::-1].tolist():
        stop = end + int(not is_control[end - 1] and is_control[end])
        following = starts[np.searchsorted(starts, end) :][:1].tolist()
        if stop <= most and not (following and _ends_with(first, ids[end : following[0]])):
            return stop
    return 0


def _ends_with(ids: np.ndarray, last: np.ndarray) -> bool:
    return len(last) <= len(ids) and np.array_equal(ids[len(ids) - len(last) :], last)
