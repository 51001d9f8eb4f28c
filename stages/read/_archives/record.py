"""A record of a web archive, whatever the format."""

from dataclasses import dataclass


class Fields:
    """Headers as bytes by their names in lower case, found without regard to case and decoded when they are asked for."""

    __slots__ = ("_encoding", "_fields")

    def __init__(self, fields: dict[bytes, bytes], encoding: str = "utf-8") -> None:
        self._fields, self._encoding = fields, encoding

    def get(self, name: str, /) -> str | None:
        value = self._fields.get(name.lower().encode())
        return None if value is None else value.decode(self._encoding, "replace").strip()


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a kind as WARC names it. `has_short_length`: whether its head declares fewer bytes than `body` has."""

    position: int
    kind: str
    headers: Fields
    body: bytes
    has_short_length: bool = False
