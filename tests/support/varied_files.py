"""Files of varied pages, each of about as much text, written one after the other as they are asked for.

The files of a smaller corpus are the first ones of a larger one. Memory does not grow with them.
"""

import gzip
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from tests.support.varied_pages import IN_HTML, IN_JSON, VariedPages
from tests.support.web_archives import response

MAX_PAGES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class CorpusFile:
    path: Path
    text_bytes: int  # of the lines or records in it


@dataclass(kw_only=True)
class VariedFiles:
    """A corpus in `folder` that grows.

    Attributes:
        items: the lines or records in order, without an end.
        pack: makes the content of a file out of some of them.
        ending: of the files.
        file_bytes: of the items of a file, about.
    """

    folder: Path
    items: Iterator[bytes]
    pack: Callable[[Sequence[bytes]], bytes]
    ending: str
    file_bytes: int
    written: list[CorpusFile] = field(default_factory=list)

    def first(self, num_bytes: int) -> list[CorpusFile]:
        """The first files that have at least so many bytes together."""
        for count in itertools.count(1):
            if len(self.written) < count:
                self.written.append(self._write(count))
            if sum(file.text_bytes for file in self.written[:count]) >= num_bytes:
                return self.written[:count]
        raise AssertionError

    def linked(self, num_bytes: int, folder: Path) -> int:
        """Makes a folder with links to these files. Returns the bytes of their items."""
        folder.mkdir(parents=True)
        files = self.first(num_bytes)
        for file in files:
            os.link(file.path, folder / file.path.name)
        return sum(file.text_bytes for file in files)

    def _write(self, number: int) -> CorpusFile:
        items, size = [], 0
        while size < self.file_bytes:
            items.append(next(self.items))
            size += len(items[-1])
        path = self.folder / f"{number:06}{self.ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.pack(items))
        return CorpusFile(path=path, text_bytes=size)


def text_files(folder: Path, texts: Sequence[str], file_bytes: int) -> VariedFiles:
    """JSON lines in Zstandard files, with `text` and a made-up `url`."""
    pages = VariedPages([json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in _mixed(texts)], IN_JSON)
    packer = zstandard.ZstdCompressor(level=3)
    return VariedFiles(
        folder=folder,
        items=(_line(number, page) for number, page in _all(pages)),
        pack=lambda items: packer.compress(b"".join(items)),
        ending=".jsonl.zst",
        file_bytes=file_bytes,
    )


def _mixed(pages: Sequence[str]) -> list[str]:
    """The pages in random order, so that a few of the files are like all of them."""
    return random.Random(17).sample(pages, len(pages))


def _line(number: int, page: bytes) -> bytes:
    return b'{"text": "%b", "url": "https://web-%d.example/%d"}\n' % (page, number % 997, number)


def archive_files(folder: Path, pages: Sequence[str], file_bytes: int) -> VariedFiles:
    """WARC files of one gzip member a record, as Common Crawl has them: every page is an HTTP response."""
    varied = VariedPages([page.encode() for page in _mixed(pages)], IN_HTML)
    content_type = "text/html; charset=utf-8"
    records = (response(page, number, content_type=content_type) for number, page in _all(varied))
    return VariedFiles(
        folder=folder,
        items=records,
        pack=lambda items: b"".join(gzip.compress(item, 6, mtime=0) for item in items),
        ending=".warc.gz",
        file_bytes=file_bytes,
    )


def _all(pages: VariedPages) -> Iterator[tuple[int, bytes]]:
    """Copy after copy, each page with a number."""
    for key in itertools.count():
        for number, page in enumerate(pages.copy(key)):
            yield key * MAX_PAGES + number, page
