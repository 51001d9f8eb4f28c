"""The lists of `filter.url`: entries of files and of the mixture become lookup tables for kernels.

    path.txt, .gz, .zst  ─┐
    entries in the YAML  ─┴▶  lines without comments  ─▶  hashes of hosts, hashes of URLs, or an automaton of words

A file of domains or URLs is read and hashed as one column: a list of millions of entries takes the bytes of its file while it
is read, and 16 to 32 bytes an entry afterwards. An automaton takes about 160 bytes for each byte of its words.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.filters import url, url_lists
from datapipe.kernels.filters.url_lists import Automaton
from datapipe.kernels.text.words import find_lines, find_words

_COMMENT = ord("#")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_WORD_BYTES = 1_000_000
"""Published lists of words have some thousands of bytes; an automaton of this size takes 200 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entries:
    """Entries `data[starts[i] : stops[i]]` of a list, from one file or the mixture (`origin`)."""

    origin: str
    starts: np.ndarray
    stops: np.ndarray
    data: np.ndarray


def read_entries(option: str, given: Sequence[str], files: Sequence[Path]) -> list[Entries]:
    """The entries of an option and of its files, one `Entries` each. Raises UserError for a file that cannot be read."""
    contents = [(f"the option `{option}`", "\n".join(given).encode())] if given else []
    for path in files:
        try:
            with pa.input_stream(str(path), compression="detect") as stream:
                contents.append((str(path), stream.read()))
        except OSError as error:
            raise UserError(
                f"filter.url: cannot read {path} ({error}). Expected a text file with one entry a line, plain, .gz or .zst."
            ) from error
    read = [_lines_of(origin, content) for origin, content in contents]
    for entries in read:
        if len(entries.starts) == 0:
            raise UserError(f"filter.url: {entries.origin} has no entry. Expected one entry a line; leave out an empty list.")
    return read


def _lines_of(origin: str, content: bytes) -> Entries:
    data = np.frombuffer(content.removeprefix(_BYTE_ORDER_MARK), np.uint8)
    lines = find_lines(find_words(np.array([0, len(data)]), data), data)
    kept = data[lines.starts] != _COMMENT
    starts = lines.starts[kept]
    return Entries(origin=origin, starts=starts, stops=starts + lines.lengths[kept], data=data)


def domain_table(lists: Sequence[Entries]) -> np.ndarray:
    """The table of hosts for `find_domains`. Raises UserError for more than a host."""
    hashes = [np.empty(0, np.uint64)]
    for entries in lists:
        offsets, data = url.normalize_urls(entries.starts, entries.stops, entries.data)
        starts, stops = np.empty(len(offsets) - 1, np.int64), np.empty(len(offsets) - 1, np.int64)
        url.find_hosts(offsets, data, starts, stops)
        blanks = np.concatenate([[0], np.cumsum(data <= ord(" "))])
        bad = (offsets[1:] - stops > 1) | (starts == stops) | (blanks[offsets[1:]] > blanks[offsets[:-1]])
        if bad.any():
            first = int(bad.argmax())
            entry = entries.data[entries.starts[first] : entries.stops[first]].tobytes().decode(errors="replace")
            raise UserError(
                f"filter.url: {entries.origin} has '{entry[:200]}' as a domain. Expected a host alone, such as example.com; "
                "whole URLs belong in `urls`."
            )
        hashes.append(url_lists.hashes_of(starts, stops, data))
    return url_lists.hash_table(np.concatenate(hashes))


def url_table(lists: Sequence[Entries]) -> np.ndarray:
    """The table of URLs in the form of `normalize_urls`, for `find_hashes`."""
    hashes = [np.empty(0, np.uint64)]
    for entries in lists:
        offsets, data = url.normalize_urls(entries.starts, entries.stops, entries.data)
        hashes.append(url_lists.hashes_of(offsets[:-1], offsets[1:], data))
    return url_lists.hash_table(np.concatenate(hashes))


def substring_automaton(lists: Sequence[Entries]) -> Automaton:
    """The automaton of entries with everything between their words left out."""
    return url_lists.automaton(sorted({words.replace(b" ", b"") for words in _words(lists)}))


def word_automaton(hard: Sequence[Entries], soft: Sequence[Entries]) -> tuple[Automaton, int]:
    """The automaton of hard words, then of soft words that are not hard too, and the index of the first soft word."""
    first, second = ({b" " + words + b" " for words in _words(lists)} for lists in (hard, soft))
    return url_lists.automaton([*sorted(first), *sorted(second - first)]), len(first)


def _words(lists: Sequence[Entries]) -> Iterator[bytes]:
    for entries in lists:
        if (entries.stops - entries.starts).sum() > _MOST_WORD_BYTES:
            raise UserError(
                f"filter.url: {entries.origin} has {len(entries.starts):,} entries, too many for a list of words. Expected "
                f"at most {_MOST_WORD_BYTES:,} bytes; hosts belong in `domains`, whole URLs in `urls`."
            )
        for start, stop in zip(entries.starts.tolist(), entries.stops.tolist()):
            entry = entries.data[start:stop].tobytes()
            words = url_lists.words_in(entry)
            if not words:
                raise UserError(
                    f"filter.url: {entries.origin} has the entry '{entry.decode(errors='replace')[:200]}', which has no word. "
                    "Expected letters or digits; remove it, or begin the line with # if it is a comment."
                )
            yield words
