"""The plain conversations of a batch: messages of a role and a content alone, in an order that is right.

    JSON of a field ─▶ `datapipe/kernels/read/conversations.py` ─▶ roles, contents ─▶ conversations by the key of their form

All others are read one by one (`messages.py`, `order.py`), with the same result for plain ones.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from datapipe.columns import text_buffers
from datapipe.kernels.read.conversations import (
    CONTENT,
    FIRST_CODE,
    NULL,
    ROLE,
    Names,
    find_messages,
    strip_spans,
    write_contents,
)
from datapipe.kernels.types import input_record
from stages.extract._chat.forms import EMPTY, MOST_CHARS, MOST_MESSAGES, OTHER, WHITE, FormKey
from stages.extract._chat.messages import CALLS, CONTENTS, OWN_TEXTS, REASONING, ROLE_NAMES, ROLE_OF

_ROLES = ("system", "developer", "user", "assistant")
_USER, _ASSISTANT = map(_ROLES.index, ("user", "assistant"))
_CLASSES = 3


def _names() -> Names:
    kinds = dict.fromkeys(ROLE_NAMES, ROLE) | dict.fromkeys(CONTENTS, CONTENT) | dict.fromkeys(OWN_TEXTS, NULL)
    kinds |= dict.fromkeys((*CALLS, *REASONING), NULL)
    kinds |= {name: FIRST_CODE + _ROLES.index(role) for name, role in ROLE_OF.items() if role in _ROLES}
    texts = [name.encode() for name in kinds]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    values = (offsets, np.frombuffer(b"".join(texts), np.uint8), np.array([*kinds.values()], np.uint8))
    return input_record(Names, values)


_NAMES = _names()


class PlainConversations(NamedTuple):
    """The contents of messages, (num_messages + 1,) int64 and bytes; the code of each, by role and class; the messages of each
    document, from the first one on: (num_docs,) int64, none where it is not plain."""

    offsets: np.ndarray
    data: np.ndarray
    codes: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, texts: pa.Array, fields: Sequence[str]) -> Self:
        """`texts`: objects with the fields, as JSON."""
        doc_offsets, data = text_buffers(texts)
        head = np.frombuffer(f"{{{json.dumps(fields[0], ensure_ascii=False)}:".encode(), np.uint8)
        room = int(np.count_nonzero(data[doc_offsets[0] : doc_offsets[-1]] == ord("{"))) if len(fields) == 1 else 0
        counts, codes = np.zeros(len(texts), np.int64), np.empty(room, np.uint8)
        starts, stops = np.empty((2, room), np.int64)
        num = find_messages(doc_offsets, data, head, _NAMES, counts, codes, starts, stops) if room else 0
        starts, stops, codes = starts[:num], stops[:num], codes[:num]
        offsets, contents = np.empty(num + 1, np.int64), np.empty(int((stops - starts).sum()), np.uint8)
        write_contents(data, starts, stops, offsets, contents)
        strip_spans(offsets, contents, starts, stops)
        is_white = starts == stops
        classes = np.where(offsets[1:] == offsets[:-1], EMPTY, np.where(is_white, WHITE, OTHER)).astype(np.uint8)

        # ends: (num_docs + 1,), the messages of each document
        ends = np.append(0, np.cumsum(counts))
        documents = np.repeat(np.arange(len(counts)), counts)
        is_wrong = (codes == _ASSISTANT) & is_white
        is_wrong[1:] |= (codes[1:] == _USER) & (codes[:-1] == _USER) & (documents[1:] == documents[:-1])
        lacks_answer = np.bincount(documents[codes == _ASSISTANT], minlength=len(counts)) == 0
        is_large = (counts > MOST_MESSAGES) | (np.diff(offsets[ends]) > MOST_CHARS)
        counts[lacks_answer | is_large] = 0
        counts[documents[is_wrong]] = 0
        return cls(offsets, contents, codes * np.uint8(_CLASSES) + classes, ends[:-1], counts)

    def by_form(self) -> Iterator[tuple[FormKey, np.ndarray]]:
        """The key of each form, and the documents that have it."""
        lists = pa.Array.from_buffers(
            pa.large_binary(),
            len(self.firsts),
            [None, pa.py_buffer(np.append(self.firsts, len(self.codes))), pa.py_buffer(self.codes)],
        )
        rows = np.flatnonzero(self.counts)
        encoded = lists.take(pa.array(rows)).dictionary_encode()
        numbers = encoded.indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        groups = np.split(rows[order], np.cumsum(np.bincount(numbers, minlength=len(encoded.dictionary)))[:-1])
        for codes, group in zip(encoded.dictionary.to_pylist(), groups):
            shapes = [(("role", "=", _ROLES[code // _CLASSES]), ("content", "text", code % _CLASSES)) for code in codes]
            yield FormKey(tuple(shapes), 0), group
