"""Documents as their sources gave them, found again from their keys alone.

    key  =  hash of (source, path), place  ─▶  what the output remembers of its inputs  ─▶  source, path, place  ─▶  text

Nothing else knows where a key leads, so whatever may stand behind one (a file of this run, or one day of an earlier run)
is found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datapipe.config import Mixture
from datapipe.stage import FieldNames, InputFile, Reader
from datapipe.storage import open_input

GONE = "(a file that is gone)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """Where a document is from.

    Attributes:
        source: empty where the output remembers no such file.
        path: `GONE` where the output remembers no such file.
        text: as it was read; None where that was not asked for, or the source does not give it again.
    """

    source: str
    path: str
    place: int
    text: str | None = None


class Originals:
    """The documents of an output's inputs.

    Args:
        files: as `memory.Remembered` has them.
        mixture: the output's, which names the fields.
    """

    def __init__(self, files: Mapping[int, tuple[str, InputFile, Reader]], mixture: Mixture) -> None:
        self._files, self._mixture = files, mixture

    def find(self, key: bytes, *, text: bool = True) -> Original:
        """The document of a key, with its text unless that is not wanted: reading it may take reading all of an archive."""
        place = int.from_bytes(key[8:], "big")
        found = self._files.get(int.from_bytes(key[:8], "big"))
        if found is None:
            return Original(source="", path=GONE, place=place)
        name, file, reader = found
        if not text:
            return Original(source=name, path=file.path, place=place)
        source = self._mixture.sources[name]
        fields = FieldNames(text=source.text, id=source.id, keep=source.keep)
        try:
            content = reader.read_one(file, place, fields, open_input)
        except FileNotFoundError:
            content = None
        return Original(source=name, path=file.path, place=place, text=content)
