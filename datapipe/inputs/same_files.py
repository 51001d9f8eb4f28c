"""Input files that are read more than once: by two sources, or by one source under two names.

Local files are the same where device and inode are, so links of both kinds are followed; files
elsewhere where their URLs are, without credentials and options. One file has one size and one set
of times, so the system is asked only about files that agree in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from datapipe.stage.reader import InputFile
from datapipe.storage.http import is_http
from datapipe.storage.root import is_remote, split_query

Reading = tuple[str, InputFile]
"""Name of a source, and a file that it reads."""


def same_files(files: Mapping[str, Iterable[InputFile]]) -> list[list[Reading]]:
    """The files of all sources that are read more than once, each with all its readings, in the order of sources and paths."""
    alike: dict[object, list[Reading]] = {}
    for source, listed in files.items():
        for file in listed:
            facts = file.num_bytes, file.mtime_ns, file.ctime_ns, is_remote(file.url)
            alike.setdefault(facts, []).append((source, file))
    same: dict[object, list[Reading]] = {}
    for readings in alike.values():
        for source, file in readings if len(readings) > 1 else ():
            for identity in _identity(file):
                same.setdefault(identity, []).append((source, file))
    return [readings for readings in same.values() if len(readings) > 1]


def _identity(file: InputFile) -> Iterator[object]:
    """What the same file has and no other; nothing for a file that is gone meanwhile."""
    if is_remote(file.url):
        yield file.url if is_http(file.url) else split_query(file.url)[0]  # the query of a web server may name the file
        return
    try:
        status = os.stat(file.url)
    except OSError:
        return
    yield status.st_dev, status.st_ino
