"""Rows of `datapipe/kernels/dedup/text_units.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datapipe.kernels.dedup import text_units as kernels
from datapipe.kernels.text.marks import mark_table
from tests.oracles import text_units as oracle
from tests.support.kernel_table import Case, Row

_NORMALIZE, _MIN_CHARS = {"line": "ccnet", "paragraph": "none", "three_sentences": "ccnet"}, {"three_sentences": 7}


def _room(case: Case) -> kernels.TextUnits:
    return kernels.room_for_units(kernels.most_units(case.offsets, case.data, True))


def _arguments(unit: str) -> Callable[[Case], list[Any]]:
    def make(case: Case) -> list[Any]:
        form = kernels.normal_form(_NORMALIZE[unit])  # type: ignore[arg-type]
        if unit == "three_sentences":
            return [case.offsets, case.data, form, mark_table(), _MIN_CHARS[unit], _room(case)]
        return [case.offsets, case.data, form, _MIN_CHARS.get(unit, 0), unit == "paragraph", _room(case)]

    return make


def _expected(unit: str) -> Callable[[Case], tuple[int, list[Any]]]:
    def expected(case: Case) -> tuple[int, list[Any]]:
        units = [
            (document, int(case.offsets[document]) + begin, stop - begin, *both)
            for document, text in enumerate(case.texts)
            for begin, stop, both in oracle.units(text.decode(), unit, _NORMALIZE[unit], _MIN_CHARS.get(unit, 0))
        ]
        return len(units), [[row[column] for row in units] for column in range(5)]

    return expected


def _most_expected(case: Case) -> tuple[int, list[Any]]:
    ends = sum(byte in b"\n.!?" or byte >= 0xC0 for text in case.texts for byte in text)
    return len(case.texts) + ends, []


ROWS = [
    Row(
        kernel=kernels.most_units,
        arguments=lambda case: [case.offsets, case.data, True],
        oracle=_most_expected,
        num_outputs=0,
        from_case=True,
    ),
    *(
        Row(
            kernel=kernels.find_three_sentences if unit == "three_sentences" else kernels.find_lines,
            arguments=_arguments(unit),
            oracle=_expected(unit),
            variant=unit,
            valid_only=True,
            from_case=True,
        )
        for unit in ("line", "paragraph", "three_sentences")
    ),
]
