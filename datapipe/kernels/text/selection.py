"""Words or lines of the kept documents, copied from those of all documents: one run of memory per document."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.arrays import copy_into
from datapipe.kernels.text.words import Spans, SpansOut, first_spans, room_for_spans
from datapipe.kernels.types import Bools, Int32s, Int64s, UInt8s, UInt64s


class AnySpans(NamedTuple):
    """The arrays of `Words` or of `Lines`, an input of kernels that treat both alike."""

    doc_offsets: Int64s
    starts: Int64s
    lengths: Int32s
    hashes: UInt64s
    chars: Int32s
    flags: UInt8s


def selected(spans: Spans, keep: np.ndarray, offsets: np.ndarray, kept_offsets: np.ndarray) -> Spans:
    """The words or lines of the kept documents, equal to those found in the kept texts alone.

    Args:
        spans: of all documents.
        keep: (num_docs,) bool.
        offsets: (num_docs + 1,) int64, of all texts.
        kept_offsets: (num_kept + 1,) int64, of the kept texts in their own buffer.
    """
    num_spans = int(np.diff(spans.doc_offsets)[keep].sum())
    out = room_for_spans(len(kept_offsets), num_spans)
    select_spans(AnySpans(*spans), keep, offsets, kept_offsets, out)
    return first_spans(type(spans), num_spans, out)


@kernel
def select_spans(spans: AnySpans, keep: Bools, offsets: Int64s, kept_offsets: Int64s, out: SpansOut) -> None:
    """Fills `out`, which has exactly the room, with the words or lines of the documents where `keep` is true.

    Args:
        spans: of all documents.
        keep: (num_docs,) bool.
        offsets: (num_docs + 1,) of all texts.
        kept_offsets: (num_kept + 1,) of the kept texts.
    """
    doc_offsets, starts, lengths, hashes, chars, flags = spans
    out_doc_offsets, out_starts, out_lengths, out_hashes, out_chars, out_flags = out
    num_copied, kept = np.int64(0), np.int64(0)
    out_doc_offsets[0] = 0
    for doc in range(len(keep)):
        if not keep[doc]:
            continue
        start, stop = doc_offsets[doc], doc_offsets[doc + 1]
        end, moved = num_copied + stop - start, kept_offsets[kept] - offsets[doc]
        for span in range(start, stop):
            out_starts[num_copied + span - start] = starts[span] + moved
        copy_into(out_lengths[num_copied:end], lengths[start:stop])
        copy_into(out_hashes[num_copied:end], hashes[start:stop])
        copy_into(out_chars[num_copied:end], chars[start:stop])
        copy_into(out_flags[num_copied:end], flags[start:stop])
        num_copied, kept = end, kept + 1
        out_doc_offsets[kept] = num_copied
