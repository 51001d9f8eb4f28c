"""Segments of documents whose text changes.

    cuts of a global stage  ─▶ after_cuts: the spans that were removed are known
    a stage's other text    ─▶ after_edit: the stage is asked again for the text of each segment alone
                                 ├─▶ together they are the text of the document: its borders are theirs
                                 └─▶ else an edit reaches over a border: each text is searched for in that of the document. A
                                     border stands before the text behind it. Where there is more than one place for it, the
                                     document fails: what a loss counts is never guessed

What happens to a document depends on no other. Time and memory grow with its text.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from datapipe.columns import compute, numbers, text_buffers, texts_from
from datapipe.kernels.text.replace import copy_spans
from datapipe.stage.cut_points import offsets_after
from datapipe.stage.segments import Segments

_WHITE = b" \t\n\r\x0b\x0c"
_NO_SURE_PLACE = (
    "The stage edits this document as a whole in another way than each of its segments alone, and its segments have more than "
    "one place in the new text, or none. So it is not known which text a loss counts. Leave the stage out where documents have "
    "segments, or use one that edits each place by itself, such as normalize.unicode"
)

Edit = Callable[[pa.Array, np.ndarray], pa.Array]
"""Texts of segments, and the document of each, (num_texts,) ─▶ what a stage makes of these texts; null where it fails."""


def after_cuts(
    segments: Segments, offsets: np.ndarray, starts: np.ndarray, stops: np.ndarray, out_offsets: np.ndarray
) -> pa.Array:
    """The column of segments once the bytes from `starts` to `stops`, (num_cuts,) int64, ascending, are removed from the texts.
    `offsets`, `out_offsets`: (num_docs + 1,) int64, of the texts before and after the cuts."""
    moved = offsets_after(segments.starts, starts, stops) + (out_offsets[0] - offsets[0])
    return segments._replace(starts=moved).column(out_offsets)


UNPLACED = "the edit reaches over a border between segments"
"""The reason by which documents are counted whose segments cannot be found in their new text."""


def after_edit(segments: Segments, before: pa.Array, after: pa.Array, edit: Edit) -> tuple[pa.Array, dict[int, str]]:
    """The column of segments for the texts `after`, which a stage made of the texts `before`: (num_docs,) large_string; and by
    row the documents whose segments have no sure place there, with the error."""
    failed = dict[int, str]()
    (offsets, data), (new_offsets, new_data) = text_buffers(before), text_buffers(after)
    starts = segments.starts - offsets[segments.documents]  # in the text of their document
    firsts = np.searchsorted(segments.documents, np.arange(len(before) + 1))
    changed = np.flatnonzero(numbers(compute.not_equal(before, after)) & (np.diff(firsts) > 0))
    borders = [
        offsets[number] + np.unique([0, offsets[number + 1] - offsets[number], *starts[firsts[number] : firsts[number + 1]]])
        for number in changed.tolist()
    ]
    edited = _edited(borders, changed, data, edit)
    for number, of_document, texts in zip(changed.tolist(), borders, edited):
        own = slice(firsts[number], firsts[number + 1])
        new = new_data[new_offsets[number] : new_offsets[number + 1]].tobytes()
        known = [b"" if text is None else text for text in texts]
        is_whole = None not in texts and b"".join(known) == new
        new_borders = np.cumsum([0, *map(len, known)]) if is_whole else searched(new, texts)
        if new_borders is None:
            failed[number] = f"{_NO_SURE_PLACE}\n{UNPLACED}"
            new_borders = np.zeros(len(of_document), np.int64)
        starts[own] = new_borders[np.searchsorted(of_document - of_document[0], starts[own])]
    return segments._replace(starts=starts + new_offsets[segments.documents]).column(new_offsets), failed


def _edited(borders: Sequence[np.ndarray], documents: np.ndarray, data: np.ndarray, edit: Edit) -> list[list[bytes | None]]:
    """What a stage makes of the texts between the `borders` of each document; those of white space stay as they are."""
    counts = [len(of_document) - 1 for of_document in borders]
    if not sum(counts):
        return [[] for _ in counts]
    starts, stops = (np.concatenate([of_document[cut] for of_document in borders]) for cut in (slice(0, -1), slice(1, None)))
    copied = np.empty(int((stops - starts).sum()), np.uint8)
    copy_spans(starts, stops, data, copied)
    texts = texts_from(np.concatenate([[0], np.cumsum(stops - starts)]), copied)
    asked = compute.invert(compute.or_(compute.utf8_is_space(texts), compute.equal(texts, "")))
    of_texts = np.repeat(documents, counts)
    if asked.true_count:
        texts = compute.replace_with_mask(texts, asked, edit(texts.filter(asked), of_texts[numbers(asked)]))
    listed = iter(texts.cast(pa.large_binary()).to_pylist())
    return [list(islice(listed, count)) for count in counts]


def searched(new: bytes, texts: Sequence[bytes | None]) -> np.ndarray | None:
    """The borders of texts, (num_texts + 1,) int64, in a text that holds them one after another, with white space between them;
    None where there is a doubt. One text at a place may be another than it is alone, or not known: None."""
    starts, stop, pending = list[int](), 0, list[bool]()  # pending: the texts behind `stop`, whether they may have text
    for text in texts:
        stripped = b"" if text is None else text.strip()
        found = _found(new, stripped, stop, has_other=any(pending)) if stripped else -1
        if found is None:
            return None
        if found < 0:
            pending.append(text is None or bool(stripped))
            continue
        between = _pending_starts(new, stop, found, pending)
        if between is None:
            return None
        starts += [*between, found if starts or between else 0]  # the first one begins the text
        stop, pending = found + len(stripped), []
    between = _pending_starts(new, stop, len(new), pending)
    return None if between is None else np.array([*starts, *between, len(new)], np.int64)


def _found(new: bytes, text: bytes, stop: int, *, has_other: bool) -> int | None:
    """Where a text begins behind `stop`; -1 if it is lost, None for more than one place. `has_other`: other text may be
    before it."""
    first = stop
    while not has_other and first < len(new) and new[first] in _WHITE:
        first += 1
    if not has_other and new.startswith(text, first):
        return first
    found = new.find(text, stop)
    if found < 0:
        return None if text in new else -1  # the same text, which has its place, may be this one
    return found if new.find(text, found + 1) < 0 else None


def _pending_starts(new: bytes, start: int, stop: int, pending: Sequence[bool]) -> list[int] | None:
    """Where texts begin that lie from `start` to `stop`, where one of them has all text; None if none or several may
    have it."""
    held = new[start:stop].rstrip()
    if not held:
        return [start] * len(pending)
    if sum(pending) != 1:
        return None
    holder = pending.index(True)
    return [start if place <= holder else start + len(held) for place in range(len(pending))]
