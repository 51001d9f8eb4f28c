"""Documents as their sources gave them, found again from their keys alone.

    key  =  hash of (source, path), place  ─▶  what the output remembers of its inputs  ─▶  source, path, place  ─▶  text

Nothing else knows where a key leads, so whatever may stand behind one is found here: a file of this run, or of an earlier one
that a stage was held `against`. Of that an index knows source, path and place; its output knows the text, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from datapipe.config import Mixture
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import UserError
from datapipe.index.write import open_index
from datapipe.stage.base import FieldNames, InputFile, Reader
from datapipe.storage import Root, open_input

GONE = "(a file that is gone)"
NOT_FOUND = "(a file of an earlier run, which is not where it was)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """Where a document is from.

    Attributes:
        source: empty where nobody remembers such a file.
        path: `GONE` or `NOT_FOUND` where nobody does.
        run: the output or index of an earlier run that it belongs to; empty for this one's.
        text: as it was read; None where that was not asked for, or the source does not give it again.
    """

    source: str
    path: str
    place: int
    text: str | None = None
    run: str = ""

    @property
    def label(self) -> str:
        """Where it is, for people: what `trace` and `takedown` take, behind the source."""
        return f"{self.path}:{self.place}" + (f" (of {self.run})" if self.run else "")


class Originals:
    """The documents of an output's inputs.

    Args:
        files: as `RunHistory` has them.
        mixture: the output's, which names the fields.
        earlier: outputs and indexes that the run was held against.
    """

    def __init__(
        self, files: Mapping[int, tuple[str, InputFile, Reader]], mixture: Mixture, earlier: Sequence[str] = ()
    ) -> None:
        self._files, self._mixture, self._runs = files, mixture, tuple(earlier)

    def find(self, key: bytes, *, text: bool = True) -> Original:
        """The document of a key, with its text unless that is not wanted: reading it may take reading all of an archive."""
        place = int.from_bytes(key[8:], "big")
        found = self._files.get(int.from_bytes(key[:8], "big"))
        if found is None:
            return self._find_earlier(key, text)
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

    def _find_earlier(self, key: bytes, text: bool) -> Original:
        number, place = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
        for url, files in self._earlier.items():
            if number in files:
                source, path = files[number]
                known = self._originals_of(url) if text else None
                content = known.find(key).text if known is not None else None
                return Original(source=source, path=path, place=place, text=content, run=url)
        return Original(source="", path=GONE if len(self._earlier) == len(self._runs) else NOT_FOUND, place=place)

    @cached_property
    def _earlier(self) -> dict[str, dict[int, tuple[str, str]]]:
        """By the URL of each earlier run or index that is still there, its files by their hashes."""
        found: dict[str, dict[int, tuple[str, str]]] = {}
        for url in self._runs:
            with suppress(UserError):
                found[url] = {one.hash: (one.source, one.path) for one in open_index(url).files}
        return found

    def _originals_of(self, url: str) -> Originals | None:
        """The documents of an earlier run's inputs, where that is an output."""
        try:
            root = Root(url)
            return Originals(read_history(root).files, read_mixture(root))
        except (UserError, FileNotFoundError):  # an index, which does not know where its files are
            return None
