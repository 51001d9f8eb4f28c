"""Tables of FlatBuffers by the numbers of their fields, each read checked against the bytes that there are.

A table begins with the distance back to its list of fields, and the list has for each field its distance from the table, 0 for
an absent one. See flatbuffers.dev, "Internals".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table at `offset` of `content`. Every method raises ValueError for an offset outside the bytes."""

    content: bytes
    offset: int

    @classmethod
    def root(cls, content: bytes) -> FlatTable:
        return cls(content, _number(content, "<I", 0))

    def integer(self, field: int, kind: str, default: int = 0) -> int:
        """A number; `kind` as `struct` names it."""
        at = self._at(field)
        return default if at is None else _number(self.content, f"<{kind}", at)

    def table(self, field: int) -> FlatTable | None:
        at = self._at(field)
        return None if at is None else FlatTable(self.content, at + _number(self.content, "<I", at))

    def structs(self, field: int, kind: str) -> list[tuple[int, ...]]:
        """A vector of structs of numbers; `kind` as `struct` names them."""
        at = self._at(field)
        if at is None:
            return []
        start = at + _number(self.content, "<I", at)
        count, size = _number(self.content, "<I", start), struct.calcsize(f"<{kind}")
        if start + 4 + count * size > len(self.content):
            raise ValueError(f"a vector of {count} elements in {len(self.content)} bytes")
        return list(struct.iter_unpack(f"<{kind}", self.content[start + 4 : start + 4 + count * size]))

    def _at(self, field: int) -> int | None:
        """Where a field begins; None where the table has none."""
        fields = self.offset - _number(self.content, "<i", self.offset)
        entry = 4 + 2 * field
        if entry + 2 > _number(self.content, "<H", fields):
            return None
        distance = _number(self.content, "<H", fields + entry)
        return self.offset + distance if distance else None


def _number(content: bytes, kind: str, offset: int) -> int:
    if not 0 <= offset <= len(content) - struct.calcsize(kind):
        raise ValueError(f"an offset of {offset} in {len(content)} bytes")
    return struct.unpack_from(kind, content, offset)[0]
