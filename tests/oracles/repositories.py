"""Repositories as documents, file by file in plain Python."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from datapipe.stage.segments import text_and_segments


class File(NamedTuple):
    key: bytes
    repository: str  # empty for none
    path: str
    text: str
    license: str = ""
    rank: int = 0  # of a random order


class Document(NamedTuple):
    files: tuple[File, ...]
    text: str
    segments: list[dict[str, Any]]

    @property
    def key(self) -> bytes:
        return self.files[0].key


ORDERS: dict[str, Callable[[File], Any]] = {
    "path": lambda file: (file.path.encode()[:128], file.key),  # see join.repository
    "random": lambda file: (file.rank, file.key),
    "given": lambda file: file.key,
}


def documents(files: Iterable[File], order: str, most_bytes: int, separators: Sequence[str]) -> Iterator[Document]:
    """The documents of all repositories."""
    named = sorted((file for file in files if file.repository), key=lambda file: file.repository)
    for _, of_repository in groupby(named, key=lambda file: file.repository):
        for part in parts(sorted(of_repository, key=ORDERS[order]), most_bytes):
            yield document(part, separators)
    for file in files:
        if not file.repository:
            yield document([file], separators)


def parts(files: Sequence[File], most_bytes: int) -> Iterator[list[File]]:
    held: list[File] = []
    for file in files:
        if held and sum(map(size, [*held, file])) > most_bytes:
            yield held
            held = []
        held.append(file)
    yield held


def size(file: File) -> int:
    return len(file.path.encode()) + len(file.text.encode()) + 2


def document(files: Sequence[File], separators: Sequence[str]) -> Document:
    if not separators:
        texts = [ended(f"#{file.path}\n{file.text}") for file in files[:-1]] + [f"#{files[-1].path}\n{files[-1].text}"]
        return Document(tuple(files), "".join(texts), [])
    before, between = separators
    end = ended if between == "<|file_sep|>" else str
    listed: list[dict[str, Any]] = []
    if before and files[0].repository:
        listed += [{"token": before}, {"text": end(files[0].repository)}]
    for number, file in enumerate(files):
        text = f"{file.path}\n{file.text}"
        listed += [{"token": between}, {"text": text if number == len(files) - 1 else end(text)}]
    return Document(tuple(files), *text_and_segments(listed))


def ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"
