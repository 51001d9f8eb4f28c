"""Rows of `datapipe/kernels/html`: the texts as they are, and pages that are made of them."""

from __future__ import annotations

import numpy as np

from datapipe.kernels.html import plain, tags
from tests.oracles import tags as oracle
from tests.oracles.plain import plain as plain_text
from tests.support.kernel_table import Case, Steps, columns, joined, offsets_of, room, row
from tests.support.pages import page_of


def _pages(case: Case) -> Case:
    rng = case.generator
    return case.having((page_of(text, rng) for text in case.texts), b"#", b"")


@row(tags.measure_tags, False)
@row(tags.measure_tags, True, variant="pages")
def measure_tags(case: Case, as_pages: bool) -> Steps:
    case = _pages(case) if as_pages else case
    yield [case.offsets, case.data, np.zeros(40, np.uint64)], room(len(case.texts), *[np.int64] * 3)
    yield None, columns((oracle.measures(page, 40) for page in case.texts), 3)


@row(plain.strip_tags, False)
@row(plain.strip_tags, True, variant="pages")
def strip_tags(case: Case, as_pages: bool) -> Steps:
    case = _pages(case) if as_pages else case
    yield [case.offsets, case.data], [*room(len(case.offsets), np.int64), *room(len(case.data), np.uint8)]
    texts = list(map(plain_text, case.texts))
    yield None, [offsets_of(texts), joined(texts)]
