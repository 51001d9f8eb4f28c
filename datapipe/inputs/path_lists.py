"""Lists of input files: `path: "@warc.paths.gz"`, one path or URL a line, as Common Crawl publishes them.

    # a comment; blank lines are passed over                          relative to `prefix`, or to the folder of the list:
    crawl-data/CC-MAIN-2024-10/segments/1/warc/a.warc.gz              https://data.commoncrawl.org/ + the line
    https://host/b.warc.gz                                            as it is
    /data/c.warc.gz                                                   as it is; in a local list without a remote prefix

    list ─▶ lines ─▶ absolute paths and URLs ─▶ size and time of each, `_THREADS` at a time ─▶ InputFile, in their order

A file's path, which the keys of its documents are made of, is its line, without scheme and leading slash: a list may move. In
a followed list (`datapipe run --follow`) a line counts once it is whole and its file exists. A cut archive is an error. A list
from a store or web server cannot name files of this machine. 100,000 lines take 60 MB of memory.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep

from datapipe.credentials import masked
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.inputs.entries import Entry, Notes, entry_at
from datapipe.machine.retries import RetryPolicy, retry_io
from datapipe.quantities import counted
from datapipe.stage.decoding import BOM, BrokenStreamError, as_utf8, decoded
from datapipe.stage.reader import InputFile
from datapipe.storage.http import is_http
from datapipe.storage.outages import input_error, outage_of
from datapipe.storage.root import STORE_SCHEMES, is_remote, open_input, split_query

SIGN = "@"
_MOST_BYTES = 512 << 20
_MOST_LINE_BYTES = 16 << 10
_THREADS = 16
_RETRIES = RetryPolicy(first_s=1.0, longest_s=8.0, most_attempts=5)  # of requests to a store, whose client also retries


@dataclass(frozen=True, slots=True)
class ListedPath:
    """A line of a list, numbered from 1."""

    number: int
    url: str  # absolute path, or URL without its "?key=value…", which is the `query`
    query: str
    path: str  # for the keys of the documents


def listed_paths(location: str, compression: str | None, prefix: str | None, where: str, notes: Notes) -> list[ListedPath]:
    """The files that a list names, each URL once, in its order. Relative lines begin in `prefix`; None for its folder."""
    found: dict[str, ListedPath] = {}
    shown = masked(location)
    base = split_query(location)[0].rpartition("/")[0] + split_query(location)[1] if prefix is None else prefix
    content = _content(location, compression, where, shown)
    if notes.may_grow:
        content = content[: content.rfind(b"\n") + 1]
    for number, line in _lines(content, f"{where}: {shown}"):
        listed = _listed(number, line, base, is_remote(location) or is_remote(base), f"{where}: {shown}, line {number}")
        if found.setdefault(listed.url + listed.query, listed) is not listed:
            notes.named_twice.append(f"{shown}, line {number}: {masked(listed.url)}")
    if not found and not notes.may_grow:
        raise UserError(f"{where}: the list {shown} names no file. Expected one path a line")
    return list(found.values())


def listed_files(
    pattern: str, listed: Sequence[ListedPath], is_left_out: Callable[[str], bool], where: str, notes: Notes
) -> list[InputFile]:
    """The files of a list without those that are left out. Raises UserError for a missing file, and for a failing store."""
    wanted = [line for line in listed if not is_left_out(line.url)]
    if not wanted and not notes.may_grow:
        raise UserError(f"{where}: '{masked(pattern)}' names {counted(len(listed), 'file')}, and `exclude` leaves out all.")
    with ThreadPoolExecutor(_THREADS, "path-list") as threads:
        entries: list[Entry | None] = []
        for entry in threads.map(lambda line: _entry(line, where), wanted):
            entries.append(entry)
            notes.on_file()
    missing = [line for line, entry in zip(wanted, entries) if entry is None or entry.instead]
    if notes.may_grow:
        notes.not_there_yet += [f"{masked(pattern)}, line {line.number}: {masked(line.url)}" for line in missing]
        return [entry.file_as(line.path, line.query) for line, entry in zip(wanted, entries) if entry and not entry.instead]
    if missing:
        entry = entries[wanted.index(missing[0])]
        found = "there is no such file" if entry is None else f"it is {entry.instead}"
        more = f", and {counted(len(missing) - 1, 'other line')} like it" if len(missing) > 1 else ""
        place = f"'{masked(pattern)}', line {missing[0].number}: {masked(missing[0].url)}"
        raise UserError(f"{where}: {place}: {found}{more}. Correct the list or `prefix`, or `exclude` what is missing.")
    return [entry.file_as(line.path, line.query) for line, entry in zip(wanted, entries) if entry is not None]


def _entry(line: ListedPath, where: str) -> Entry | None:
    """The entry at a line. A store that asks to slow down is asked again: a list is thousands of requests."""

    def pause_after(error: OSError, number: int) -> float:
        if number >= _RETRIES.most_attempts or is_http(line.url) or outage_of(error, line.url) is None:
            raise input_error(error, where, "cannot read", masked(line.url)) from error
        return _RETRIES.pause_s(number)

    return retry_io(lambda: entry_at(line.url, line.query), pause_after, sleep)


def _content(location: str, compression: str | None, where: str, shown: str) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        for chunk in as_utf8(decoded(open_input, location, compression)):
            chunks.append(chunk)
            num_bytes += len(chunk)
            if num_bytes > _MOST_BYTES:
                raise UserError(f"{where}: the list {shown} has more than {_MOST_BYTES >> 20} MiB. Expected one path a line")
    except BrokenStreamError as error:
        raise UserError(f"{where}: the list {shown}: {error}. No file of it is read") from None
    except OSError as error:
        raise input_error(error, where, "cannot read the list", shown) from error
    return b"".join(chunks)


def _lines(content: bytes, where: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(content.removeprefix(BOM).split(b"\n"), 1):
        if len(line) > _MOST_LINE_BYTES or b"\0" in line:
            found = "a NUL byte" if b"\0" in line[:_MOST_LINE_BYTES] else f"a line of {len(line):,} bytes"
            raise UserError(f"{where}, line {number}: found {found}. Expected a list of one path a line")
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise UserError(f"{where}, line {number}: not UTF-8. Expected a list of one path a line") from None
        if text and not text.startswith("#"):
            yield number, text


def _listed(number: int, line: str, base: str, is_of_store: bool, where: str) -> ListedPath:
    scheme = line.partition("://")[0].lower() if "://" in line else ""
    is_local = scheme in ("", "file")
    is_elsewhere = scheme not in STORE_SCHEMES if scheme else line.startswith("/") or ".." in line.split("/")
    if is_of_store and is_elsewhere:
        raise UserError(
            f"{where}: found {line!r}. Expected a path below {masked(split_query(base)[0])}, or a URL: a list that is read "
            f"from a store, or relative to one, names no file of this machine"
        )
    if not is_local:
        url, query = split_query(line)
        return ListedPath(number, url, query, url.partition("://")[2].rpartition("@")[2])
    folder, query = split_query(base)
    if is_of_store:
        relative = line.removeprefix("./")
        return ListedPath(number, f"{folder.rstrip('/')}/{relative}", query, relative)
    path = os.path.normpath(os.path.join(folder, line[len("file://") :] if scheme else line))
    below = folder.rstrip("/") + "/"
    return ListedPath(number, path, "", path.removeprefix(below).lstrip("/"))
