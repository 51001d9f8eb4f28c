"""Locates documents by their keys, and reads their texts again from the sources.

    key  =  hash of (source, path), position  ─▶  the inputs that an output remembers  ─▶  source, path, position  ─▶  text

The position is a byte offset or a row number. A key may belong to a file of this run, or to a file of an earlier run that a
stage compares `against`. An index of an earlier run knows source, path and position; the output of an earlier run also knows
the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from datapipe.config import Mixture
from datapipe.credentials import masked
from datapipe.document_name import document_name
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import UserError
from datapipe.index.write import open_index
from datapipe.stage.reader import FieldNames, InputFile, Reader
from datapipe.storage import Root, open_input

GONE = "(a file that no longer exists)"
NOT_FOUND = "(a file of an earlier run that is not at its old path)"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedDocument:
    """A document and the file that holds it.

    Attributes:
        source: empty when no run remembers the file.
        path: `GONE` or `NOT_FOUND` when no run remembers the file.
        position: byte offset or row number.
        text: as read; None when it was not requested, or the file no longer holds it.
        run: the output or index of the earlier run that read the document; empty for this run.
    """

    source: str
    path: str
    position: int
    text: str | None = None
    run: str = ""

    @property
    def label(self) -> str:
        """SOURCE/PATH:POSITION, and the earlier run."""
        name = document_name(self.source, self.path, self.position)
        return name + (f" (of {masked(self.run)})" if self.run else "")

    def to_json(self) -> dict[str, Any]:
        """The document as plain data; `run` and `text` are None where it has none."""
        name = document_name(self.source, self.path, self.position)
        return {"document": name, "run": masked(self.run) or None, "text": self.text}


class DocumentLocator:
    """Locates documents in the inputs of an output and of the earlier runs that it was compared with.

    Args:
        files: source, file and reader by file hash, as `engine.history.RunHistory` has them.
        mixture: of the output; it names the fields.
        earlier: outputs and indexes of the earlier runs.
    """

    def __init__(
        self, files: Mapping[int, tuple[str, InputFile, Reader]], mixture: Mixture, earlier: Sequence[str] = ()
    ) -> None:
        self.files, self._mixture, self._earlier_urls = files, mixture, tuple(earlier)

    def locate(self, key: bytes, *, text: bool = True) -> LocatedDocument:
        """The document with this key.

        Args:
            text: whether to read the text, which may take reading a whole archive.
        """
        file_number, position = _split_key(key)
        if file_number not in self.files:
            return self._locate_earlier(key, text)
        source_name, file, reader = self.files[file_number]
        if not text:
            return LocatedDocument(source=source_name, path=file.path, position=position)
        source = self._mixture.sources[source_name]
        fields = FieldNames(text=source.text, id=source.id, replaces_surrogates=source.replaces_surrogates)
        try:
            content = reader.read_document(file, position, fields, open_input)
        except FileNotFoundError:
            content = None
        return LocatedDocument(source=source_name, path=file.path, position=position, text=content)

    def _locate_earlier(self, key: bytes, text: bool) -> LocatedDocument:
        file_number, position = _split_key(key)
        for url, files in self._earlier_files.items():
            if file_number in files:
                source, path = files[file_number]
                locator = _locator_of(url) if text else None
                content = None if locator is None else locator.locate(key).text
                return LocatedDocument(source=source, path=path, position=position, text=content, run=url)
        all_opened = len(self._earlier_files) == len(self._earlier_urls)
        return LocatedDocument(source="", path=GONE if all_opened else NOT_FOUND, position=position)

    @cached_property
    def _earlier_files(self) -> dict[str, dict[int, tuple[str, str]]]:
        """Source and path by file hash, by the URL of each earlier run or index that still exists."""
        files_by_url: dict[str, dict[int, tuple[str, str]]] = {}
        for url in self._earlier_urls:
            with suppress(UserError):
                files_by_url[url] = {file.hash: (file.source, file.path) for file in open_index(url).files}
        return files_by_url


def _split_key(key: bytes) -> tuple[int, int]:
    """The file hash and the position in a key of 16 bytes."""
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


def _locator_of(url: str) -> DocumentLocator | None:
    """The locator of an output; None for an index, which does not know where its input files are."""
    try:
        root = Root(url)
        return DocumentLocator(read_history(root).files, read_mixture(root))
    except (UserError, FileNotFoundError):
        return None
