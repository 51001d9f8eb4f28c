"""How segmentations follow documents through stages that drop some of them, or edit some of their lines.

find(documents)  ─ some are dropped ─▶  copied for the others
                 ─ texts change     ─▶  copied for the lines that are the same, and computed for the other lines
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.kernels.text.line_spans import copied, spans_of_documents, spans_of_lines, with_new_words
from datapipe.kernels.text.replace import copy_spans
from datapipe.kernels.text.words import Spans, Words
from datapipe.stage.documents import DocumentBatch, Following, Origin


def _by_document(find: Callable[[DocumentBatch], Spans], earlier: Spans, origin: Origin, batch: DocumentBatch) -> Spans:
    return copied(earlier, earlier, spans_of_documents(earlier, origin.offsets, origin.rows, batch.buffers[0]))  # none is new


def _by_line(find: Callable[[DocumentBatch], Words], earlier: Words, origin: Origin, batch: DocumentBatch) -> Words:
    if not origin.is_edited:
        return _by_document(find, earlier, origin, batch)
    spans = spans_of_lines(earlier, (origin.offsets, origin.data), origin.rows, batch.buffers)
    starts, stops = spans.firsts[spans.is_new], spans.stops[spans.is_new]
    offsets = np.concatenate([[0], np.cumsum(stops - starts)])
    data = np.empty(offsets[-1], np.uint8)
    copy_spans(starts, stops, batch.buffers[1], data)
    new_words = find(DocumentBatch(pa.record_batch({"text": columns.texts_from(offsets, data)})))
    return copied(earlier, new_words, with_new_words(spans, new_words, offsets))


BY_DOCUMENT = Following(follow=_by_document, by_line=False)
"""For what depends on the lines around it: computed again once a text has changed."""

BY_LINE = Following(follow=_by_line, by_line=True)
"""For what does not depend on other lines."""
