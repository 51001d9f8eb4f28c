"""Cuts texts at the tokens that were added to a vocabulary: where the text spells such a token, it is that token in any
context.

    text ── the leftmost match, the longest of several ──▶ text, token, text …

The rules are those of `tokenizers` (`added_vocabulary.rs`, Aho-Corasick, leftmost-longest). A special token that is read as
text is matched and passed over, so no other token matches inside it.

The tokens stand in a trie of their bytes, which is followed from each byte that begins a token. The cost is at most the bytes
of the text times the length of the longest token.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Int32Matrix, Int32s, Int32sOut, Int64s, Int64sOut, UInt8s

TEXT = -1
PASSED_OVER = -2
"""Ids in the trie. TEXT: no token ends at this node. PASSED_OVER: a token that is read as text."""


def token_trie(tokens: Mapping[bytes, int]) -> tuple[np.ndarray, np.ndarray]:
    """A trie of tokens: children (num_nodes, 256) int32, 0 for none, and ids (num_nodes,) int32 of the tokens that end at a
    node.

    Args:
        tokens: bytes -> id, or PASSED_OVER.
    """
    children, ids = [np.zeros(256, np.int32)], [TEXT]
    for token, token_id in tokens.items():
        node = 0
        for byte in token:
            if children[node][byte] == 0:
                children[node][byte] = len(children)
                children.append(np.zeros(256, np.int32))
                ids.append(TEXT)
            node = int(children[node][byte])
        ids[node] = token_id
    return np.stack(children), np.array(ids, np.int32)


@kernel
def cut_at_tokens(
    offsets: Int64s,
    data: UInt8s,
    fixed: Int32s,
    children: Int32Matrix,
    ids: Int32s,
    text_offsets: Int64sOut,
    ends: Int64sOut,
    out_fixed: Int32sOut,
) -> int:
    """Cuts every text at the tokens of the trie; returns the number of parts.

    Args:
        offsets: (num_texts + 1,) int64.
        data: (num_bytes,) uint8.
        fixed: (num_texts,) int32: the id of a text that is one token already and is not cut, or TEXT.
        children, ids: of `token_trie`.
        text_offsets: (num_texts + 1,) int64 into the parts.
        ends: int64, the end of each part in `data`; room for num_texts + num_bytes. An empty text has no part.
        out_fixed: int32, as long as `ends`: the id of each part, or TEXT.
    """
    part = np.int64(0)
    text_offsets[0] = 0
    for text in range(len(offsets) - 1):
        offset, stop = offsets[text], offsets[text + 1]
        begin = offset
        if fixed[text] != TEXT:
            offset = begin = stop
            ends[part], out_fixed[part] = stop, fixed[text]
            part += 1
        while offset < stop:
            node, next_offset, token, token_end = np.int64(children[0, data[offset]]), offset + 1, np.int64(TEXT), offset + 1
            while node != 0:
                if ids[node] != TEXT:
                    token, token_end = np.int64(ids[node]), next_offset
                node = np.int64(children[node, data[next_offset]]) if next_offset < stop else np.int64(0)
                next_offset += 1
            if token >= 0:
                if offset > begin:
                    ends[part], out_fixed[part] = offset, TEXT
                    part += 1
                ends[part], out_fixed[part] = token_end, token
                part += 1
                begin = token_end
            offset = token_end
        if begin < stop:
            ends[part], out_fixed[part] = stop, TEXT
            part += 1
        text_offsets[text + 1] = part
    return int(part)
