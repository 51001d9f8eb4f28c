"""Rows of `datapipe/kernels/filters/url.py`: the texts with parts of URLs between and around them."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import numpy as np

from datapipe.kernels.filters import url as kernels
from tests.oracles import url as oracle
from tests.support.kernel_table import Case, Row

_PARTS = (b"http://", b"HTTPS://", b"https", b"://", b"www.", b"WWW.", b"/", b"?", b"#", b"@", b":", b"[", b"]", b"::1", b".")
_PARTS += (b"Example.COM", b"utm_", b"ref", b"feed", b"?utm_x=1", b"//", b"ftp:", b"a", b"Z", b"\xc3\xa9", b"\n", b"80")


def urls(case: Case) -> list[bytes]:
    """Each text, cut short, inside a URL or a fragment of one."""
    rng = random.Random(case.seed)
    made: list[bytes] = []
    for text in case.texts:
        parts = rng.choices(_PARTS, k=rng.randint(0, 8))
        made.append(b"".join([*parts[:4], rng.choice([b"", text[:300]]), *parts[4:]]))
    return made


def column(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and bytes of the texts, between bytes that belong to no text."""
    return np.cumsum([2, *map(len, texts)], dtype=np.int64), np.frombuffer(b"w." + b"".join(texts) + b"//?ref", np.uint8)


def _normalize_arguments(case: Case) -> list[Any]:
    offsets, data = column(urls(case))
    return [offsets[:-1], offsets[1:], data, np.empty(len(offsets), np.int64), np.empty(len(data), np.uint8)]


def _normalize_expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    urls_expected = [oracle.normalized(data[start:stop].tobytes()) for start, stop in zip(starts, stops)]
    return None, [list(accumulate(map(len, urls_expected), initial=0)), list(b"".join(urls_expected))]


def _hosts_arguments(case: Case) -> list[Any]:
    offsets, data = column([oracle.normalized(url) for url in urls(case)])
    return [offsets, data, np.empty(len(offsets) - 1, np.int64), np.empty(len(offsets) - 1, np.int64)]


def _hosts_expected(offsets: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    ranges = [oracle.host_range_without_www(data[start:stop].tobytes()) for start, stop in zip(offsets[:-1], offsets[1:])]
    begins = offsets[:-1].tolist()
    return None, [[begin + host_range[part] for begin, host_range in zip(begins, ranges)] for part in range(2)]


ROWS = [
    Row(kernel=kernels.normalize, arguments=_normalize_arguments, oracle=_normalize_expected, num_outputs=2),
    Row(kernel=kernels.find_hosts, arguments=_hosts_arguments, oracle=_hosts_expected, num_outputs=2),
]
