"""Lists of words: text files, read into the tables of `kernels/filters/word_lists.py`."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from datapipe.columns import compute as pc
from datapipe.columns import text_buffers
from datapipe.dataclass import dataclass
from datapipe.errors import UserError
from datapipe.kernels.filters.word_lists import WordLists, word_hashes, word_lists

_ALL = np.uint64(2**64 - 1)
_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists:
    """Lists that are ready to be searched for; list i has bit i in the table."""

    names: tuple[str, ...]
    table: WordLists
    notes: tuple[str, ...]


def read_lists(paths: Mapping[str, Path]) -> Lists:
    """Reads lists. Raises UserError for a file that is no text, or holds no entry."""
    entries: dict[tuple[int, ...], int] = {}
    notes: list[str] = []
    for number, (name, path) in enumerate(paths.items()):
        lines = _lines(name, path)
        hashed = word_hashes(*text_buffers(pa.array(lines, pa.large_string())))
        for words in hashed:
            if words:
                entries[words] = entries.get(words, 0) | 1 << number
        unseen = [line for line, words in zip(lines, hashed) if not words]
        if len(unseen) == len(lines):
            raise UserError(
                f"lists: {path} ({name}) has no entry with a letter or digit. Expected a word or phrase on each line."
            )
        shown = ", ".join(unseen[:_SHOWN])
        without = f"; {len(unseen):,} without a letter or digit are never found: {shown}" if unseen else ""
        seen = len(lines) - len(unseen)
        notes.append(f"list {name}: {seen:,} {'entry' if seen == 1 else 'entries'}{without}")
    return Lists(names=tuple(paths), table=word_lists(entries), notes=tuple(notes))


def _lines(name: str, path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"lists: {path} ({name}) is not UTF-8: byte {error.start} is wrong. Save the list as UTF-8.") from error
    except OSError as error:
        raise UserError(f"lists: cannot read {path} ({name}): {error.strerror}. Expected a text file.") from error
    stripped = (line.strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in stripped if line and not line.startswith("#")))


def masks_of(lists: Lists, languages: pa.Array | None, num_docs: int) -> np.ndarray:
    """The lists that count for each document, a bit for each: (num_docs,) uint64; None: all."""
    if languages is None:
        return np.full(num_docs, _ALL)
    names = pa.array(lists.names, pa.large_string())
    places = pc.index_in(languages.cast(pa.large_string()), value_set=names).fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(places < 0, np.uint64(0), np.uint64(1) << np.maximum(places, 0).astype(np.uint64))
