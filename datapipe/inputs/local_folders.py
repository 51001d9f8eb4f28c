"""The files and folders below a local folder that a pattern matches, also behind links to folders.

    real folders ─▶ the links in them, in the order of their paths ─▶ the folders behind each ─▶ the links in those ─▶ …

Each real folder gives its files once: by its own path where that is below the first folder, else by the first link to it. Links
to a folder above themselves, and to a folder whose files are listed already, are passed over and named in the notes.
"""

import os
from collections.abc import Callable, Iterable, Iterator

from datapipe.dataclass import dataclass, field
from datapipe.errors import UserError
from datapipe.inputs.entries import FOLDER, Entry, Notes, status_of

_MOST_VISITS = 100_000  # to folders a second time because nothing in them matched the first time: links may cross each other
_Link = tuple[str, tuple[str, ...]]  # path of a folder to enter, and the real folders that hold the links on the way there


@dataclass(kw_only=True, slots=True)
class LocalFolders:
    """Lists the entries below a folder, `prefix` with a slash at its end, that match."""

    prefix: str
    depth: int | None  # how many folders down the files are; None for any number
    enters: Callable[[str], bool]  # whether a folder of this name is entered
    matches: Callable[[str], bool]
    notes: Notes
    _given: set[tuple[int, int]] = field(default_factory=set)
    _entered: set[tuple[int, int]] = field(default_factory=set)
    _num_visits: int = 0

    def entries(self) -> Iterator[Entry]:
        links: list[_Link] = [(self.prefix, ())]
        while links:
            found: list[_Link] = []
            for path, above in sorted(links):
                yield from self._below(path, above, found)
            links = found

    def _below(self, path: str, above: tuple[str, ...], found: list[_Link]) -> Iterator[Entry]:
        """What matches in the real folders below one. Adds the links in them to `found`."""
        for folder, folders, names in os.walk(path, onerror=_unless_missing):
            folders[:] = [name for name in folders if self.enters(name)]
            if self._is_given(folder, is_linked=bool(above)):
                folders.clear()
                continue
            entries = [Entry(path, instead=FOLDER) for path in _joined(folder, folders) if self.matches(path)]
            entries += [Entry.local(path, status_of(path)) for path in _joined(folder, names) if self.matches(path)]
            if any(not entry.instead for entry in entries):
                self._given.add(_identity(folder))
            yield from entries
            below = folder[len(self.prefix) :].count("/") + (folder != self.prefix)
            if self.depth is not None and below >= self.depth:
                folders.clear()
            links = (path for path in _joined(folder, folders) if os.path.islink(path))
            found += [into for path in links if (into := self._entered_by(path, above)) is not None]

    def _is_given(self, folder: str, *, is_linked: bool) -> bool:
        identity = _identity(folder)
        if is_linked and identity in self._given:
            self.notes.linked_again.append(f"{folder} is {os.path.realpath(folder)}, whose files are listed already")
            return True
        self._num_visits += identity in self._entered
        if self._num_visits > _MOST_VISITS:
            raise UserError(
                f"links below {self.prefix} lead to the same folders by more than {_MOST_VISITS:,} paths. Name the folders "
                f"with the files in the pattern"
            )
        self._entered.add(identity)
        return False

    def _entered_by(self, path: str, above: tuple[str, ...]) -> _Link | None:
        """The folder behind a link; None where it is above the link."""
        target, holder = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
        holders = (*above, holder)
        if any(f"{holder}/".startswith(f"{target.rstrip('/')}/") for holder in holders):
            self.notes.linked_again.append(f"{path} leads to {target}, a folder above it")
            return None
        return path, holders


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _joined(folder: str, names: Iterable[str]) -> list[str]:
    return [os.path.join(folder, name) for name in names]


def _unless_missing(error: OSError) -> None:
    """Raises the error of a folder that cannot be listed; a missing folder just has no files."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
