"""The lists of `filter.url`, read from files and the mixture into what its kernels look things up in.

    path.txt, .gz, .zst  ─┐
    entries in the YAML  ─┴▶  lines without comments  ─▶  hashes of hosts, hashes of URLs, or words of an automaton

A file of domains or URLs is read and hashed as one column, so a list of millions costs its bytes once, and 16 to 32 bytes an
entry from then on. An automaton costs some 160 bytes for each byte of its words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.errors import UserError
from datapipe.kernels.filters import url, url_lists
from datapipe.kernels.filters.url_lists import Automaton
from datapipe.kernels.text.words import find_lines

_COMMENT = ord("#")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_WORD_BYTES = 1_000_000
"""The published lists of words have some thousands; an automaton of this size takes 200 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entries:
    """The entries of one list from one place.

    Attributes:
        where: the option or file, for error messages.
        starts, stops: (num_entries,) int64, in `data`.
        data: uint8.
    """

    where: str
    starts: np.ndarray
    stops: np.ndarray
    data: np.ndarray

    def texts(self) -> Iterator[bytes]:
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield self.data[start:stop].tobytes()


def read_entries(option: str, given: Sequence[str], files: Sequence[Path]) -> list[Entries]:
    """The entries that an option and its files hold, one `Entries` a place. Raises UserError for a file that cannot be read."""
    places = [(f"the option `{option}`", "\n".join(given).encode())] if given else []
    for path in files:
        try:
            with pa.input_stream(str(path), compression="detect") as stream:
                places.append((str(path), stream.read()))
        except OSError as error:
            raise UserError(
                f"filter.url: cannot read {path} ({error}). Expected a text file with one entry a line, or one in .gz or .zst."
            ) from error
    read = [_lines_of(where, content) for where, content in places]
    for place in read:
        if len(place.starts) == 0:
            raise UserError(
                f"filter.url: {place.where} has no entry. Expected one a line; leave it out if nothing is to be listed."
            )
    return read


def _lines_of(where: str, content: bytes) -> Entries:
    data = np.frombuffer(content.removeprefix(_BYTE_ORDER_MARK), np.uint8)
    lines = find_lines(np.array([0, len(data)]), data)
    kept = data[lines.starts] != _COMMENT
    starts = lines.starts[kept]
    return Entries(where=where, starts=starts, stops=starts + lines.lengths[kept], data=data)


def domain_table(places: Sequence[Entries]) -> np.ndarray:
    """The hosts of the entries, for `find_domains`. Raises UserError for an entry that is more than a host."""
    hashes = [np.empty(0, np.uint64)]
    for place in places:
        offsets, data = url.normalize_urls(place.starts, place.stops, place.data)
        starts, stops = np.empty(len(offsets) - 1, np.int64), np.empty(len(offsets) - 1, np.int64)
        url.find_hosts(offsets, data, starts, stops)
        blanks = np.concatenate([[0], np.cumsum(data <= ord(" "))])
        bad = (offsets[1:] - stops > 1) | (starts == stops) | (blanks[offsets[1:]] > blanks[offsets[:-1]])
        if bad.any():
            first = int(bad.argmax())
            entry = place.data[place.starts[first] : place.stops[first]].tobytes().decode(errors="replace")
            raise UserError(
                f"filter.url: {place.where} has '{entry[:200]}' as a domain. Expected a host alone, such as example.com; "
                "whole URLs belong in `urls`."
            )
        hashes.append(url_lists.hashes_of(starts, stops, data))
    return url_lists.hash_table(np.concatenate(hashes))


def url_table(places: Sequence[Entries]) -> np.ndarray:
    """The entries in the form of `normalize_urls`, for `find_hashes`."""
    hashes = [np.empty(0, np.uint64)]
    for place in places:
        offsets, data = url.normalize_urls(place.starts, place.stops, place.data)
        hashes.append(url_lists.hashes_of(offsets[:-1], offsets[1:], data))
    return url_lists.hash_table(np.concatenate(hashes))


def substring_automaton(places: Sequence[Entries]) -> Automaton:
    """The entries without what parts their words."""
    return url_lists.automaton(sorted({words.replace(b" ", b"") for words in _words(places)}))


def word_automaton(hard: Sequence[Entries], soft: Sequence[Entries]) -> tuple[Automaton, int]:
    """Hard words, then soft words that are not hard as well, and where the soft ones begin."""
    first, second = ({b" " + words + b" " for words in _words(places)} for places in (hard, soft))
    return url_lists.automaton([*sorted(first), *sorted(second - first)]), len(first)


def _words(places: Sequence[Entries]) -> Iterator[bytes]:
    for place in places:
        if (place.stops - place.starts).sum() > _MOST_WORD_BYTES:
            raise UserError(
                f"filter.url: {place.where} has {len(place.starts):,} entries, too many for a list of words. Expected at most "
                f"{_MOST_WORD_BYTES:,} bytes of them; hosts belong in `domains`, whole URLs in `urls`."
            )
        for entry in place.texts():
            words = url_lists.words_in(entry)
            if not words:
                raise UserError(
                    f"filter.url: {place.where} has the entry '{entry.decode(errors='replace')[:200]}', which has no word. "
                    "Expected letters or digits; remove it, or begin the line with # if it is a comment."
                )
            yield words
