"""Text hashes, squeezed white space and stars against their oracles."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.kernels.dedup import text_hashes as buckets
from tests.oracles import buckets as oracle


def _hash(texts: list[str]) -> list[tuple[int, int]]:
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    hashes, digests = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint64)
    with np.errstate(over="ignore"):
        buckets.hash_texts(offsets, data, hashes, digests)
    return list(zip(hashes.tolist(), digests.tolist(), strict=True))


def _squeeze(texts: list[str]) -> list[str]:
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    out_offsets, out = np.empty(len(texts) + 1, np.int64), np.empty(len(data), np.uint8)
    buckets.squeeze_space(offsets, data, out_offsets, out)
    return columns.texts_from(out_offsets, out[: out_offsets[-1]]).to_pylist()


def test_hash_texts_near_equal_texts_differ_in_both_halves() -> None:
    texts = ["\0" * length for length in range(200)] + ["a" * place + "b" + "a" * (99 - place) for place in range(100)]
    found = _hash(texts)
    assert len({hashed for hashed, _ in found}) == len(texts)
    assert len({digest for _, digest in found}) == len(texts)


def test_squeeze_space_every_character_is_space_as_in_python() -> None:
    texts = [f"a{chr(code)}b" for code in range(0x3100) if not 0xD800 <= code < 0xE000]
    texts += ["", " ", "\u3000\u2003", " a\t\n b ", "é\u00a0", "\u00a0é", "x\u1680", "末\u3000尾", chr(sys.maxunicode)]
    assert _squeeze(texts) == [oracle.squeeze_space(text) for text in texts]
