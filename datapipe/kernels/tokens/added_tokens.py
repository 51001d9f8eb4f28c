"""Texts cut at the tokens that were added to a vocabulary: wherever one is spelled out, it is that token whatever is around it.

    text ── the leftmost, of those the longest ──▶ text, token, text …

As `tokenizers` finds them (`added_vocabulary.rs`, Aho-Corasick, leftmost-longest): a special token that is to be read as text
is found and passed over, so that no other token is found inside it.

The tokens stand in a trie of their bytes. From a byte that begins one the trie is followed, so the cost is at most the text
times the length of the longest token. One core of a 2-core AMD EPYC: over 500 MB/s where few tokens occur.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Int32Matrix, Int32s, Int32sOut, Int64s, Int64sOut, UInt8s

TEXT = -1
PASSED_OVER = -2
"""In the trie: what is no token's end; a token that is read as text."""


def token_trie(tokens: Mapping[bytes, int]) -> tuple[np.ndarray, np.ndarray]:
    """A trie of tokens: children (num_nodes, 256) int32, 0 for none, and ids (num_nodes,) int32 of the tokens that end there.

    Args:
        tokens: bytes -> id, or PASSED_OVER.
    """
    children, ids = [np.zeros(256, np.int32)], [TEXT]
    for token, number in tokens.items():
        node = 0
        for byte in token:
            if children[node][byte] == 0:
                children[node][byte] = len(children)
                children.append(np.zeros(256, np.int32))
                ids.append(TEXT)
            node = int(children[node][byte])
        ids[node] = number
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
        fixed: (num_texts,) int32: the id that a text is already, and is not cut, or TEXT.
        children, ids: `token_trie`.
        text_offsets: (num_texts + 1,) int64 into the parts.
        ends: where each part ends in `data`, int64; num_texts + num_bytes at least. A text that is empty has no part.
        out_fixed: int32, as `ends`: the id that each part is, or TEXT.
    """
    part = np.int64(0)
    text_offsets[0] = 0
    for text in range(len(offsets) - 1):
        at, stop = offsets[text], offsets[text + 1]
        begin = at
        if fixed[text] != TEXT:
            at = begin = stop
            ends[part], out_fixed[part] = stop, fixed[text]
            part += 1
        while at < stop:
            node, place, found, found_end = np.int64(children[0, data[at]]), at + 1, np.int64(TEXT), at + 1
            while node != 0:
                if ids[node] != TEXT:
                    found, found_end = np.int64(ids[node]), place
                node = np.int64(children[node, data[place]]) if place < stop else np.int64(0)
                place += 1
            if found >= 0:
                if at > begin:
                    ends[part], out_fixed[part] = at, TEXT
                    part += 1
                ends[part], out_fixed[part] = found_end, found
                part += 1
                begin = found_end
            at = found_end
        if begin < stop:
            ends[part], out_fixed[part] = stop, TEXT
            part += 1
        text_offsets[text + 1] = part
    return int(part)
