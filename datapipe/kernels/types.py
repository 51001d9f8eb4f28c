r"""Types that kernels are annotated with: numba compiles for them, and pyright checks calls with them.

    @kernel
    def count(offsets: Int64s, data: UInt8s, limit: int, out: Int64sOut) -> int:

| annotation | argument |
|---|---|
| `Int64s`, `UInt8s`, … | an input: a contiguous array of one axis that the kernel does not write; `Matrix`: of two axes |
| `Int64sOut`, `UInt8MatrixOut`, … | an output or scratch: the same, writable |
| `int`, `bool`, `float`, `np.uint64` | a number: int64, boolean, float64, uint64 |
| a NamedTuple of these | arguments that belong together |
| `Int32sOut \| Int64sOut`, also of the last parameter | a kernel for each: `copy_int32` and `copy_int64` of `copy` |

Numba converts nothing inside a tuple, so the arrays of an input NamedTuple are read-only views (`input_record`; pickling
makes arrays writable), and those of an output are writable. A tuple of six arrays costs 2.4 µs more per call.

A kernel unpacks its records once, before its loops: each read of a field counts a reference. Cutting English words took
11.6 ms instead of 6.5 ms with a record that was passed on for every word.
"""

import typing
from collections.abc import Callable, Iterable
from functools import cache
from types import FunctionType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from datapipe.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """What numba must know of an array, the second argument of `Annotated`."""

    item: type[np.generic]
    num_axes: int = 1  # of a C-contiguous array
    writable: bool = False  # whether the kernel writes to it
    aligned: bool = True  # whether items lie at multiples of their size; False accepts both


Bools: TypeAlias = Annotated[NDArray[np.bool_], ArrayForm(np.bool_)]
UInt8s: TypeAlias = Annotated[NDArray[np.uint8], ArrayForm(np.uint8)]
UInt16s: TypeAlias = Annotated[NDArray[np.uint16], ArrayForm(np.uint16)]
UInt32s: TypeAlias = Annotated[NDArray[np.uint32], ArrayForm(np.uint32)]
UInt64s: TypeAlias = Annotated[NDArray[np.uint64], ArrayForm(np.uint64)]
Int32s: TypeAlias = Annotated[NDArray[np.int32], ArrayForm(np.int32)]
Int64s: TypeAlias = Annotated[NDArray[np.int64], ArrayForm(np.int64)]
Float32s: TypeAlias = Annotated[NDArray[np.float32], ArrayForm(np.float32)]
Float64s: TypeAlias = Annotated[NDArray[np.float64], ArrayForm(np.float64)]

UInt8Matrix: TypeAlias = Annotated[NDArray[np.uint8], ArrayForm(np.uint8, num_axes=2)]
UInt32Matrix: TypeAlias = Annotated[NDArray[np.uint32], ArrayForm(np.uint32, num_axes=2)]
Int32Matrix: TypeAlias = Annotated[NDArray[np.int32], ArrayForm(np.int32, num_axes=2)]
Int64Matrix: TypeAlias = Annotated[NDArray[np.int64], ArrayForm(np.int64, num_axes=2)]
Float32Matrix: TypeAlias = Annotated[NDArray[np.float32], ArrayForm(np.float32, num_axes=2)]
Float64Matrix: TypeAlias = Annotated[NDArray[np.float64], ArrayForm(np.float64, num_axes=2)]
Float32MatrixUnaligned: TypeAlias = Annotated[NDArray[np.float32], ArrayForm(np.float32, num_axes=2, aligned=False)]
Float32Cube: TypeAlias = Annotated[NDArray[np.float32], ArrayForm(np.float32, num_axes=3)]

BoolsOut: TypeAlias = Annotated[NDArray[np.bool_], ArrayForm(np.bool_, writable=True)]
UInt8sOut: TypeAlias = Annotated[NDArray[np.uint8], ArrayForm(np.uint8, writable=True)]
UInt16sOut: TypeAlias = Annotated[NDArray[np.uint16], ArrayForm(np.uint16, writable=True)]
UInt32sOut: TypeAlias = Annotated[NDArray[np.uint32], ArrayForm(np.uint32, writable=True)]
UInt64sOut: TypeAlias = Annotated[NDArray[np.uint64], ArrayForm(np.uint64, writable=True)]
Int32sOut: TypeAlias = Annotated[NDArray[np.int32], ArrayForm(np.int32, writable=True)]
Int64sOut: TypeAlias = Annotated[NDArray[np.int64], ArrayForm(np.int64, writable=True)]
Float32sOut: TypeAlias = Annotated[NDArray[np.float32], ArrayForm(np.float32, writable=True)]
Float64sOut: TypeAlias = Annotated[NDArray[np.float64], ArrayForm(np.float64, writable=True)]

UInt8MatrixOut: TypeAlias = Annotated[NDArray[np.uint8], ArrayForm(np.uint8, num_axes=2, writable=True)]
UInt16MatrixOut: TypeAlias = Annotated[NDArray[np.uint16], ArrayForm(np.uint16, num_axes=2, writable=True)]
UInt32MatrixOut: TypeAlias = Annotated[NDArray[np.uint32], ArrayForm(np.uint32, num_axes=2, writable=True)]
UInt64MatrixOut: TypeAlias = Annotated[NDArray[np.uint64], ArrayForm(np.uint64, num_axes=2, writable=True)]
Int32MatrixOut: TypeAlias = Annotated[NDArray[np.int32], ArrayForm(np.int32, num_axes=2, writable=True)]
Int64MatrixOut: TypeAlias = Annotated[NDArray[np.int64], ArrayForm(np.int64, num_axes=2, writable=True)]
Float32MatrixOut: TypeAlias = Annotated[NDArray[np.float32], ArrayForm(np.float32, num_axes=2, writable=True)]
Float64MatrixOut: TypeAlias = Annotated[NDArray[np.float64], ArrayForm(np.float64, num_axes=2, writable=True)]

NUMBERS = (int, bool, float, np.uint64, type(None))
"""Annotations of numbers, and of an absent result."""

Array = TypeVar("Array", bound=np.ndarray)
Record = TypeVar("Record", bound=tuple[Any, ...])


def read_only(array: Array) -> Array:
    """A read-only view of an array, as the fields of an input NamedTuple must be."""
    view = array.view()
    view.flags.writeable = False
    return view


def input_record(kind: type[Record], fields: Iterable[Any]) -> Record:
    """An input NamedTuple from the values of its fields in order, with a read-only view of every array."""
    return kind(*(read_only(field) if isinstance(field, np.ndarray) else field for field in fields))


def room_for(kind: type[Record], shape: int | tuple[int, ...]) -> Record:
    """An output NamedTuple of arrays of one shape, for kernels to fill. Pages that are never written cost no memory."""
    return kind(*(np.empty(shape, form_of(field).item) for field in fields_of(kind)))


def first_rows(out: Record, count: int) -> Record:
    return type(out)(*(column[:count] for column in out))


def filled(kind: type[Record], room: int, fill: Callable[[Record], int]) -> Record:
    """The rows that `fill` writes, which returns their number; called again if they do not fit."""
    while True:
        out = room_for(kind, room)
        count = fill(out)
        if count <= room:
            return first_rows(out, count)
        room = count


@cache
def annotations_of(function: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """The annotation of every parameter of a kernel by name, and that of its result. Raises TypeError where one is missing."""
    hints = typing.get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    missing = [name for name in (*names, "return") if name not in hints]
    if missing:
        raise TypeError(f"kernel {function.__qualname__}: no annotation for {', '.join(missing)}")
    return {name: hints[name] for name in names}, hints["return"]


def function_by_type(function: Callable[..., Any]) -> dict[Any, Any]:
    """The function for each type of its last parameter where that is one of several, by the dtype;
    else by None. Parameters with as many types change along."""
    parameters, result = annotations_of(function)
    types = {name: typing.get_args(each) for name, each in parameters.items() if typing.get_origin(each) in (Union, UnionType)}
    if not types:
        return {None: function}
    assert isinstance(function, FunctionType)
    made = {}
    for chosen in zip(*types.values(), strict=True):
        item = form_of(chosen[-1]).item
        made[np.dtype(item)] = each = FunctionType(
            function.__code__, function.__globals__, f"{function.__name__}_{item.__name__}", function.__defaults__
        )
        each.__annotations__ = {**parameters, **dict(zip(types, chosen)), "return": result}
        each.__doc__ = function.__doc__
    return made


@cache
def fields_of(record: Any) -> list[Any]:
    hints = typing.get_type_hints(record, include_extras=True)
    return [hints[name] for name in record._fields]


def form_of(annotation: Any) -> ArrayForm:
    _, form = typing.get_args(annotation)
    return form


def is_array(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Annotated


def is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def signature_text(function: Callable[..., Any]) -> str:
    """The types that a kernel is compiled for, as text. Raises TypeError for a missing or unknown annotation."""
    parameters, result = annotations_of(function)
    return f"({', '.join(map(_text_of, parameters.values()))}) -> {_text_of(result)}"


def _text_of(annotation: Any) -> str:
    if annotation in NUMBERS:
        return annotation.__name__
    if is_array(annotation):
        form = form_of(annotation)
        return f"{'' if form.aligned else 'unaligned '}{form.item.__name__}[{form.num_axes}]{' out' if form.writable else ''}"
    if is_record(annotation):
        return f"{annotation.__module__}.{annotation.__qualname__}({', '.join(map(_text_of, fields_of(annotation)))})"
    raise TypeError(f"no kernel takes {annotation!r}; the annotations are listed in datapipe/kernels/types.py")
