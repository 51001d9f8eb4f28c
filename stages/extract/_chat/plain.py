"""The plain conversations of a batch: messages, calls and tools of the form of OpenAI, in an order that is right.

    JSON of fields ─▶ `datapipe/kernels/read/conversations.py` ─▶ texts and objects ─▶ conversations by the key of their form

All others are read one by one (`messages.py`, `order.py`), with the same result for plain ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from datapipe.columns import text_buffers
from datapipe.kernels.read import conversations as kernels
from datapipe.kernels.read.conversations import Leaves, Names, Scratch, find_leaves, write_leaves
from datapipe.kernels.text.strip import strip_spans
from datapipe.kernels.types import first_rows, input_record, room_for
from stages.extract._chat.forms import EMPTY, MOST_CHARS, MOST_MESSAGES, OTHER, WHITE, FormKey, key_of
from stages.extract._chat.messages import CALLS, CONTENTS, OWN_TEXTS, REASONING, ROLE_NAMES, ROLE_OF

_ROLES = {getattr(kernels, name.upper()): name for name in ("system", "developer", "user", "assistant", "tool")}
_OWN_TEXTS = dict(zip((kernels.RESULT_OF, kernels.OWN_NAME), OWN_TEXTS))
_ROOM_SHARE = 4  # of the bytes of a batch, for the other texts of `Filling`
_EXAMPLES = {EMPTY: "", WHITE: " ", OTHER: "a"}  # of the classes of texts


@lru_cache(maxsize=8)
def _names(tools: str) -> Names:
    """`tools`: the field with the tools."""
    of_calls = {"id": kernels.ID, "function": kernels.FUNCTION, "name": kernels.NAME, "arguments": kernels.ARGUMENTS}
    of_messages = dict.fromkeys(ROLE_NAMES, kernels.ROLE) | dict.fromkeys(CONTENTS, kernels.CONTENT)
    of_messages |= {name: kind for kind, name in _OWN_TEXTS.items()}
    of_messages |= dict(zip(CALLS, (kernels.CALLS, kernels.NULL))) | dict.fromkeys(REASONING, kernels.NULL)
    of_roles = {name: kind for kind, role in _ROLES.items() for name, other in ROLE_OF.items() if other == role}
    owners: dict[int, Mapping[str, int]] = {
        kernels.OF_MESSAGE: of_messages,
        kernels.OF_CALL: of_calls | {"parameters": kernels.NULL},
        kernels.OF_ROLES: of_roles,
        kernels.OF_CONVERSATION: {json.dumps(tools, ensure_ascii=False)[1:-1]: kernels.TOOLS},
    }
    rows = [(name.encode(), kind, owner) for owner, kinds in owners.items() for name, kind in kinds.items()]
    texts, *numbers = zip(*rows)
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    values = (offsets, np.frombuffer(b"".join(texts), np.uint8), *(np.array(each, np.uint8) for each in numbers))
    return input_record(Names, values)


class PlainConversations(NamedTuple):
    """The leaves of conversations, (num_leaves + 1,) int64 and bytes, with room behind them; the code of each, by kind and
    class; the leaves of each document, from the first one on: (num_docs,) int64, none where it is not plain."""

    offsets: np.ndarray
    data: np.ndarray
    codes: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, texts: pa.Array, fields: Sequence[str], tools: str) -> Self:
        """`texts`: objects with the fields, as JSON."""
        doc_offsets, data = text_buffers(texts)
        own = data[doc_offsets[0] : doc_offsets[-1]]
        head = np.frombuffer(f"{{{json.dumps(fields[0], ensure_ascii=False)}:".encode(), np.uint8)
        room = int(np.count_nonzero((own == ord(":")) | (own == ord("\\")))) if len(fields) == 1 else 0
        counts, leaves = np.zeros(len(texts), np.int64), room_for(Leaves, room)
        scratch = Scratch.of(len(own), int(np.diff(doc_offsets).max(initial=0)))
        num = find_leaves(doc_offsets, data, head, _names(tools), counts, leaves, scratch) if room else 0
        kinds, starts, stops = first_rows(leaves, num)
        num_bytes = int((stops - starts).sum())
        offsets, written = np.empty(num + 1, np.int64), np.empty(num_bytes + len(own) // _ROOM_SHARE, np.uint8)
        write_leaves(data, scratch.objects, kinds, starts, stops, offsets, written)
        strip_spans(offsets, written, starts, stops)
        is_white, sizes = starts == stops, np.diff(offsets)
        is_empty = sizes <= np.where(kinds == kernels.ARGUMENTS, len("{}"), 0)
        classes = np.where(is_empty, EMPTY, np.where(is_white, WHITE, OTHER)).astype(np.uint8)

        # ends: (num_docs + 1,), the leaves of each document
        ends = np.append(0, np.cumsum(counts))
        documents, is_answer = np.repeat(np.arange(len(counts)), counts), kinds == kernels.ASSISTANT
        is_called = np.isin(np.append(kinds[1:], 0), (kernels.ID, kernels.NAME))[:num]
        lacks_answer = np.bincount(documents[is_answer], minlength=len(counts)) == 0
        is_large = (counts > MOST_MESSAGES) | (np.diff(offsets[ends]) > MOST_CHARS)
        counts[lacks_answer | is_large] = 0
        counts[documents[is_answer & is_white & ~is_called]] = 0
        return cls(offsets, written, kinds * np.uint8(len(_EXAMPLES)) + classes, ends[:-1], counts)

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
            if (key := _key_of(codes)) is not None:
                yield key, group


@lru_cache(maxsize=4096)
def _key_of(codes: bytes) -> FormKey | None:
    """The key of the conversations whose leaves have these codes."""
    messages, tools = list[dict[str, Any]](), list[Any]()
    for code in codes:
        kind, example = code // len(_EXAMPLES), _EXAMPLES[code % len(_EXAMPLES)]
        if kind in _ROLES:
            messages.append({"role": _ROLES[kind], "content": example})
        elif kind == kernels.TOOLS:
            tools.append({example: 0})
        elif kind in _OWN_TEXTS:
            messages[-1][_OWN_TEXTS[kind]] = example
        else:
            calls = messages[-1].setdefault("tool_calls", [])
            if kind == kernels.ARGUMENTS:
                calls[-1]["function"]["arguments"] = {example: 0} if example else {}
            elif kind == kernels.ID:
                calls.append({"id": example})
            else:
                if not calls or "function" in calls[-1]:
                    calls.append({})
                calls[-1] |= {"type": "function", "function": {"name": example}}
    return key_of(messages, tools, [])
