"""Rows of `datapipe/kernels/filters/url.py`: the texts with what URLs are made of between and around them."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.filters import url as kernels
from tests.oracles import url as oracle
from tests.support.kernel_table import Case, Row

_PIECES = (b"http://", b"HTTPS://", b"https", b"://", b"www.", b"WWW.", b"/", b"?", b"#", b"@", b":", b"[", b"]", b"::1", b".")
_PIECES += (b"Example.COM", b"utm_", b"ref", b"feed", b"?utm_x=1", b"//", b"ftp:", b"a", b"Z", b"\xc3\xa9", b"\n", b"80")


def urls(case: Case) -> list[bytes]:
    """Each text, cut short, somewhere in a URL that may be none."""
    rng = random.Random(case.seed)
    made: list[bytes] = []
    for text in case.texts:
        pieces = rng.choices(_PIECES, k=rng.randint(0, 8))
        made.append(b"".join([*pieces[:4], rng.choice([b"", text[:300]]), *pieces[4:]]))
    return made


def column(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and bytes of the texts, between bytes of none."""
    return np.cumsum([2, *map(len, texts)], dtype=np.int64), np.frombuffer(b"w." + b"".join(texts) + b"//?ref", np.uint8)


def _normalize_arguments(case: Case) -> list[Any]:
    offsets, data = column(urls(case))
    return [offsets[:-1], offsets[1:], data, np.empty(len(offsets), np.int64), np.empty(len(data), np.uint8)]


def _normalize_expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    found = [oracle.normalized(data[start:stop].tobytes()) for start, stop in zip(starts, stops)]
    return None, [list(accumulate(map(len, found), initial=0)), list(b"".join(found))]


def _hosts_arguments(case: Case) -> list[Any]:
    offsets, data = column([oracle.normalized(url) for url in urls(case)])
    return [offsets, data, np.empty(len(offsets) - 1, np.int64), np.empty(len(offsets) - 1, np.int64)]


def _hosts_expected(offsets: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    found = [oracle.host_range_without_www(data[start:stop].tobytes()) for start, stop in zip(offsets[:-1], offsets[1:])]
    begins = offsets[:-1].tolist()
    return None, [[at + one[part] for at, one in zip(begins, found)] for part in range(2)]


ROWS = [
    Row(kernel=kernels.normalize, arguments=_normalize_arguments, oracle=_normalize_expected, num_outputs=2),
    Row(kernel=kernels.find_hosts, arguments=_hosts_arguments, oracle=_hosts_expected, num_outputs=2),
]
