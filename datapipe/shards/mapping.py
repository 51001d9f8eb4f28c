"""Mapped files that are cut short while they are mapped: an error that names the file, in place of the end of the process.

    read past the new end ─▶ SIGBUS ─▶ handler maps zeros there ─▶ the read goes on ─▶ the last byte of the file is 0: an error
    read of the last page, which the system fills with zeros     ─▶ the read goes on ─▶ the last byte of the file is 0: an error

The operating system ends a process that reads a page past the end of a mapped file, and no check before a read can rule that
out. So the read is made harmless, and what was read is dropped after it: shards end with "ARROW1" or "PAR1", never with a zero,
and who read rows looks at the last byte of their files. That costs no call of the system.

The thread that reads calls the handler, in the middle of a copy; never inside malloc or the interpreter, as handlers of other
signals may be called, so it may be Python. For an address outside all mappings it puts the handler back that was there before,
and the read is repeated under that one. Only on Linux: elsewhere the process ends as before.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import weakref

import pyarrow as pa

_PAGE = mmap.PAGESIZE
_MAP_FIXED, _SA_SIGINFO, _ADDRESS_OFFSET = 0x10, 4, 16
"""Of Linux; and where `si_addr` is in a siginfo_t of 64 bits."""


class Mapping:
    """A mapped file that does not end with a zero, safe to read for as long as this object lives."""

    def __init__(self, whole: pa.Buffer) -> None:
        self.whole = whole
        self.start, self.stop = whole.address, whole.address + whole.size
        _MAPPINGS[id(self)] = self
        if _IS_SUPPORTED:
            _install()

    @property
    def is_cut(self) -> bool:
        """Whether the file was cut short: what was read before this may be zeros."""
        return self.whole.size > 0 and self.whole[self.whole.size - 1] == 0


_MAPPINGS: weakref.WeakValueDictionary[int, Mapping] = weakref.WeakValueDictionary()
_IS_SUPPORTED = sys.platform == "linux" and sys.maxsize > 1 << 32


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux on 64-bit processors, in glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_LIBC = ctypes.CDLL(None)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


def _on_bus_error(number: int, info: int, context: int) -> None:
    """Maps zeros from the page that is read to the end of its file."""
    address = ctypes.c_void_p.from_address(info + _ADDRESS_OFFSET).value or 0
    for mapping in list(_MAPPINGS.values()):
        if mapping.start <= address < mapping.stop:
            start, flags = address - address % _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _LIBC.mmap(start, mapping.stop - start, mmap.PROT_READ, flags, -1, 0)
            return
    _LIBC.sigaction(signal.SIGBUS, ctypes.byref(_BEFORE), None)


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_bus_error)
_ADDRESS = ctypes.cast(_HANDLER, ctypes.c_void_p).value
_BEFORE = _Action()


def _install() -> None:
    """Makes `_HANDLER` that of the process, unless it is: another one may have taken its place since the last mapping."""
    current = _Action()
    _LIBC.sigaction(signal.SIGBUS, None, ctypes.byref(current))
    if current.handler != _ADDRESS:
        ctypes.memmove(ctypes.byref(_BEFORE), ctypes.byref(current), ctypes.sizeof(_Action))
        action = _Action(handler=_ADDRESS, flags=_SA_SIGINFO)
        _LIBC.sigaction(signal.SIGBUS, ctypes.byref(action), None)
