"""Annotations become the types that numba compiles for, and a kernel takes what they promise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, NamedTuple, get_origin

import numpy as np
import pytest
from numba import types

from datapipe.kernels import Kernel
from datapipe.kernels import types as annotations
from datapipe.kernels.signatures import numba_type, signature_of
from datapipe.kernels.types import (
    Float32MatrixUnaligned,
    Int32sOut,
    Int64s,
    Int64sOut,
    UInt8Matrix,
    UInt8s,
    form_of,
    input_record,
    read_only,
    signature_text,
)

ARRAYS = {name: value for name, value in vars(annotations).items() if get_origin(value) is Annotated}


class _Spans(NamedTuple):
    starts: Int64s
    kinds: UInt8s
    limit: int


class _SpansOut(NamedTuple):
    starts: Int64sOut
    numbers: Int32sOut


def _shift(spans: _Spans, by: int, out: _SpansOut) -> int:
    for span in range(len(spans.starts)):
        out.starts[span] = min(spans.starts[span] + by, spans.limit)
        out.numbers[span] = spans.kinds[span]
    return len(spans.starts)


def _copy(rows: Float32MatrixUnaligned, seed: np.uint64) -> None: ...


def _no_types(offsets, count: int): ...


def _text(offsets: Int64s, name: str) -> None: ...


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Int64s, types.Array(types.int64, 1, "C", readonly=True)),
        (Int64sOut, types.Array(types.int64, 1, "C")),
        (UInt8Matrix, types.Array(types.uint8, 2, "C", readonly=True)),
        (Float32MatrixUnaligned, types.Array(types.float32, 2, "C", readonly=True, aligned=False)),
        (int, types.int64),
        (bool, types.boolean),
        (float, types.float64),
        (np.uint64, types.uint64),
    ],
)
def test_numba_type_of_an_annotation_is_its_array_or_number(annotation: object, expected: types.Type) -> None:
    assert numba_type(annotation) == expected


def test_signature_of_a_function_with_records_has_their_fields() -> None:
    signature = signature_of(_shift)
    assert signature.return_type == types.int64
    assert signature.args[0] == types.NamedTuple([numba_type(Int64s), numba_type(UInt8s), types.int64], _Spans)
    assert signature.args[2] == types.NamedTuple([numba_type(Int64sOut), numba_type(Int32sOut)], _SpansOut)


def test_signature_text_of_a_function_tells_items_axes_and_fields() -> None:
    spans, out = f"{__name__}._Spans(int64[1], uint8[1], int)", f"{__name__}._SpansOut(int64[1] out, int32[1] out)"
    assert signature_text(_shift) == f"({spans}, int, {out}) -> int"
    assert signature_text(_copy) == "(unaligned float32[2], uint64) -> NoneType"


@pytest.mark.parametrize(("function", "named"), [(_no_types, "offsets, return"), (_text, "str")])
def test_signature_of_what_no_kernel_takes_names_it(function: Callable[..., None], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        signature_of(function)


def test_kernel_called_with_records_reads_one_and_fills_the_other() -> None:
    spans = input_record(_Spans, (np.array([1, 5, 9]), np.array([7, 8, 9], np.uint8), 10))
    out = _SpansOut(starts=np.empty(3, np.int64), numbers=np.empty(3, np.int32))
    assert Kernel(_shift)(spans, 3, out) == 3
    assert out.starts.tolist() == [4, 8, 10]
    assert out.numbers.tolist() == [7, 8, 9]


def test_input_record_leaves_the_array_writable_and_its_view_not() -> None:
    starts = np.array([1, 5])
    spans = input_record(_Spans, (starts, np.zeros(2, np.uint8), 10))
    starts[0] = 3
    assert spans.starts.tolist() == [3, 5]
    for view in (spans.starts, read_only(starts)):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_array_annotation_has_the_item_type_of_its_name_on_any_numpy():
    assert len(ARRAYS) > 30
    for name, annotation in ARRAYS.items():
        item = np.dtype(form_of(annotation).item).name
        assert re.fullmatch(rf"{item}(s|Matrix|Cube)(Out|Unaligned)?", name, re.IGNORECASE), name
        assert form_of(annotation).num_axes == 1 + ("Matrix" in name) + 2 * ("Cube" in name)
        assert form_of(annotation).writable == name.endswith("Out")
