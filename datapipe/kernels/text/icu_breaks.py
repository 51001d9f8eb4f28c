"""Word breaks inside runs of scripts without spaces, by the dictionaries of ICU.

    bytes  ─▶  runs of these letters  ─▶  UTF-16  ─▶  ICU's word breaks  ─▶  bytes where a word begins or a run ends

A run is a maximal row of letters, marks and numbers of these scripts, so the script of a character decides, and not the
language of a document: Latin words, digits and signs between two runs are not ICU's. ICU cuts Chinese and Japanese by the
most probable words of its dictionary, Thai, Lao, Khmer and Burmese by the longest ones, and Tibetan behind every syllable.
Its version alone decides, so it is part of the fingerprint of tasks. `UNSPACED` and `_ALSO` list the scripts.

The kernel calls ICU's functions by their addresses: a call a word, without the interpreter's lock and without the tuple of
Python that the iterator of icu4py makes, which takes a fifth longer. ICU itself is four fifths of the time of all words.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, intrinsic, kernel
from datapipe.kernels.dedup.word_characters import MARK, known_classes
from datapipe.kernels.text.unicode_classes import UNSPACED, codes_of, decode
from datapipe.kernels.types import Int32sOut, Int64s, Int64sOut, UInt8s, UInt16sOut, read_only, room_for

LIBRARY = "icu4py"
"""The distribution whose wheels carry ICU."""

LONGEST_RUN = 1 << 14
"""Units of UTF-16 of a run. A longer one is cut there."""

BLOCK = 1 << 9
"""Units from which the runs so far are given to ICU: each alone takes a quarter longer, more at once no less."""

_ALSO = "30A1-30FA 30FC-30FF 31F0-31FF FF66-FF9F A9E0-A9FF AA60-AA7F 19E0-19FF"
"""Katakana, which Japanese words mix with Hiragana; Myanmar Extended and signs of Khmer."""

RUN, JOINS, ENDS = 1, 2, 3
"""What a character is: part of a run; part of the run before it, if there is one; or behind a run the last one of its word."""

_JOINERS, _ENDERS = "200C-200D 2060", "F0B-F0C 200B"
"""Joiners, beside the marks of other scripts. The tsheg of Tibetan, and the zero-width space, which Khmer has between words."""

_WORD = 1  # UBRK_WORD
_DONE = -1  # UBRK_DONE
_NEWLINE = 0x0A
_LEAD, _LOWEST = 0xE0, 0x800  # the first byte of the lowest character that counts, and this character


class Icu(NamedTuple):
    """A break iterator and the functions of ICU that a kernel calls: addresses."""

    iterator: int
    set_text: int
    next_break: int


class RunsOut(NamedTuple):
    """Some runs with a newline behind each, scratch of kernels: (BLOCK + LONGEST_RUN + 2,) each."""

    units: UInt16sOut  # UTF-16
    offsets: Int64sOut  # the first byte of each unit's character, and the byte behind each run
    status: Int32sOut  # (1,), the error code of ICU


def find_breaks(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The bytes where ICU ends a word and where runs begin and end, ascending, (num_breaks,) int64. Raises RuntimeError."""
    # at most two breaks a character of a run
    limit = 2 * int(np.count_nonzero(data[offsets[0] : offsets[-1]] >= _LEAD))
    out = np.empty(limit, np.int64)
    if not limit:
        return out
    icu = _icu()
    status = np.zeros(1, np.int32)
    iterator = icu.open(_WORD, b"en", None, 0, status.ctypes.data)
    try:
        functions = Icu(iterator, _address(icu.set_text), _address(icu.next_break))
        runs = room_for(RunsOut, BLOCK + LONGEST_RUN + 2)._replace(status=status)
        count = write_breaks(offsets, data, script_table(), functions, runs, out) if status[0] <= 0 else 0
    finally:
        icu.close(iterator)
    if status[0] > 0:
        raise RuntimeError(f"ICU cannot find words: error {status[0]} (UErrorCode). Install icu4py again")
    return out[:count]


def icu_version() -> str:
    """The version of ICU, "78.3", which decides all breaks."""
    import icu4py

    return icu4py.icu_version


class _Library(NamedTuple):
    """Functions of ICU's C interface (ubrk.h)."""

    open: Any
    set_text: Any
    next_break: Any
    close: Any


@lru_cache(maxsize=1)
def _icu() -> _Library:
    """ICU, as icu4py has loaded it: its functions bear the number of the major version."""
    import icu4py
    from icu4py import breakers

    library, suffix = ctypes.CDLL(breakers.__file__), icu4py.icu_version_info[0]
    functions = _Library(*(library[f"ubrk_{name}_{suffix}"] for name in ("open", "setText", "next", "close")))
    pointer = ctypes.c_void_p
    functions.open.restype = pointer
    functions.open.argtypes = (ctypes.c_int, ctypes.c_char_p, pointer, ctypes.c_int32, pointer)
    functions.close.argtypes = (pointer,)
    return functions


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def script_table() -> np.ndarray:
    """What every code point is in a run, (0x110000,) uint8, by the same version of Unicode on every Python."""
    classes, scripts = known_classes(), codes_of(f"{UNSPACED} {_ALSO}")
    table = np.where(classes == MARK, JOINS, 0).astype(np.uint8)
    table[scripts[classes[scripts] != 0]] = RUN
    table[codes_of(_JOINERS)], table[codes_of(_ENDERS)], table[:_LOWEST] = JOINS, ENDS, 0
    return read_only(table)


def _called(builder: Any, address: Any, result: Any, arguments: tuple[Any, ...]) -> Any:
    from llvmlite import ir

    kind = ir.FunctionType(result, [argument.type for argument in arguments]).as_pointer()
    return builder.call(builder.inttoptr(address, kind), arguments)


def _build_set_text(_context: Any, address: Any, iterator: Any, units: Any, count: Any, status: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        text, error = (
            context.make_array(signature.args[number])(context, builder, arguments[number]).data for number in (2, 4)
        )
        length = builder.trunc(arguments[3], ir.IntType(32))
        _called(builder, arguments[0], ir.VoidType(), (arguments[1], text, length, error))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, units, types.int64, status), generate


@intrinsic(_build_set_text)
def _set_text(address: Any, iterator: Any, units: Any, count: Any, status: Any) -> None:
    """Begins to break the first `count` units."""
    import ctypes  # here, since the key of a kernel covers no global of it

    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
    kind(address)(iterator, units.ctypes.data, count, status.ctypes.data)


def _build_next_break(_context: Any, address: Any, iterator: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        unit = _called(builder, arguments[0], ir.IntType(32), (arguments[1],))
        return builder.sext(unit, ir.IntType(64))

    return types.int64(types.int64, types.int64), generate


@intrinsic(_build_next_break)
def _next_break(address: Any, iterator: Any) -> Any:
    """The next unit where a word ends, or `_DONE`."""
    import ctypes

    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address)(iterator)


@kernel
def write_breaks(offsets: Int64s, data: UInt8s, scripts: UInt8s, icu: Icu, runs: RunsOut, out: Int64sOut) -> int:
    """Fills `out` with `find_breaks` and returns their number. `scripts`: `script_table`."""
    units, places, status = runs
    count, num_units = np.int64(0), np.int64(0)
    for doc in range(len(offsets) - 1):
        offset, stop, first = offsets[doc], offsets[doc + 1], num_units
        while offset < stop:
            kind, size = np.uint8(0), np.int64(1)
            code = np.int64(data[offset])
            if code >= _LEAD:
                code, size = decode(data, offset, stop)
                kind = scripts[code]
            inside = kind == RUN or (kind == JOINS and num_units > first)
            if inside:
                num_units = _write_unit(units, places, num_units, code, offset)
            offset += size
            if num_units > first and (not inside or num_units - first >= LONGEST_RUN or offset == stop):
                units[num_units], places[num_units] = _NEWLINE, offset if inside or kind == ENDS else offset - size
                num_units += 1
                if num_units >= BLOCK:
                    count = _cut_runs(icu, units, places, num_units, status, count, out)
                    num_units = np.int64(0)
                first = num_units
    if num_units:
        count = _cut_runs(icu, units, places, num_units, status, count, out)
    return int(count)


@inline
def _write_unit(units, places, num_units, code, offset) -> Any:
    """Writes a code point at `offset` as UTF-16, and returns the number of units."""
    if code >= 0x10000:
        units[num_units], places[num_units] = 0xD800 + ((code - 0x10000) >> 10), offset
        num_units += 1
        code = 0xDC00 + (code & 0x3FF)
    units[num_units], places[num_units] = code, offset
    return num_units + 1


@inline
def _cut_runs(icu, units, places, num_units, status, count, out) -> Any:
    """Writes the breaks of some runs behind the first `count`, and returns their number. ICU breaks on either side of the
    newline behind each run, so at its end and at the begin of the next one."""
    _set_text(icu.set_text, icu.iterator, units, num_units, status)
    unit = np.int64(0)
    while unit != _DONE and unit < num_units:
        out[count] = places[unit]
        count += 1
        unit = _next_break(icu.next_break, icu.iterator)
    return count
