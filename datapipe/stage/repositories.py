"""Repositories as documents: the texts of files, one after another, each with its path before it.

    <repo_name>NAME<file_sep>PATH\\nCONTENT<file_sep>PATH\\nCONTENT…     with the control tokens of a tokenizer, in segments
    #PATH\\nCONTENT\\n#PATH\\nCONTENT…                                   without any, as DeepSeek-Coder has it

    repository  a.py "x = 1"   b.py "y = 2\\n"     ─▶  text      "NAME\\na.py\\nx = 1\\nb.py\\ny = 2\\n"
                                                      segments  0 <repo_name> · 4 <file_sep> · 15 <file_sep>

The text is that of `text_and_segments` (`segments.py`): a line end stands for a token between two texts. A document holds
whole files. Files are cut into as many documents as `most_bytes` asks for; a longer file is a document by itself.
"""

import json
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from datapipe.columns import compute, numbers, text_buffers, text_lengths, texts_from
from datapipe.kernels.text.json_strings import quoted
from datapipe.stage.segments import Segments

FILES = "files"
"""The column with the paths of a document's files, as a JSON list."""

MOST_BYTES = 4 << 20
"""About a million tokens, more than a context has."""

ENDS_LINES = ("<|file_sep|>",)
"""Tokens before files whose published form ends the text before them with a line end (Qwen2.5-Coder)."""

_UNKNOWN = "LicenseRef-unknown"  # of a file without a licence, beside files that have one
_TEXT = pa.large_string()


class Files(NamedTuple):
    """Files in the order of their documents."""

    starts: np.ndarray  # (num_docs + 1,) int64: the first file of each document
    names: pa.Array  # (num_docs,) large_string: its repository, empty for none
    # paths, texts: (num_files,) large_string
    paths: pa.Array
    texts: pa.Array


def document_starts(files_bytes: np.ndarray, starts: np.ndarray, most_bytes: int) -> np.ndarray:
    """The first file of each document, (num_docs + 1,) int64: as many files of a repository as have `most_bytes`, at least one.
    `files_bytes`: (num_files,); `starts`: the first file of each repository, (num_repositories + 1,) int64."""
    ends = np.concatenate([[0], np.cumsum(files_bytes)])
    found = [starts]
    for number in np.flatnonzero(np.diff(ends[starts]) > most_bytes).tolist():
        first, stop = int(starts[number]), int(starts[number + 1])
        own: list[int] = []
        while first < stop:
            own.append(first)
            first = max(first + 1, int(np.searchsorted(ends, ends[first] + most_bytes, "right")) - 1)
        found.append(np.array(own, np.int64))
    return np.unique(np.concatenate(found))


def files_bytes(paths: pa.Array, texts: pa.Array) -> np.ndarray:
    """What each file counts in its document: its path, its text, and two line ends. (num_files,) int64."""
    return text_lengths(paths) + text_lengths(texts) + 2


def joined_files(files: Files, separators: tuple[str, ...]) -> tuple[pa.Array, pa.Array | None]:
    """The texts of documents, (num_docs,) large_string, and their column of segments. `separators`: the tokens before the name
    of a repository (empty: none, and no name) and before each file; (): files begin with #PATH, and there are no segments."""
    of_repository, of_file = separators or ("", "")
    num_files, firsts = len(files.paths), files.starts[:-1]
    is_first, is_last = np.zeros(num_files, np.bool_), np.zeros(num_files, np.bool_)
    is_first[firsts] = is_last[files.starts[1:] - 1] = True
    has_name = is_first & (of_repository != "")
    has_name[firsts] &= text_lengths(files.names) > 0
    documents = np.repeat(np.arange(len(firsts)), np.diff(files.starts))
    lacks_end = ~numbers(compute.ends_with(files.names, "\n"))
    names = compute.binary_join_element_wise(files.names, _line_ends(lacks_end), _scalar(""))
    headers = names.take(pa.array(documents, mask=~has_name)).fill_null("")
    is_ended = numbers(compute.or_(compute.ends_with(files.texts, "\n"), compute.equal(files.texts, ""))) | is_last
    parts = (headers, _scalar("" if of_file else "#"), files.paths, _scalar("\n"), files.texts)
    pieces = compute.binary_join_element_wise(*parts, _line_ends(~is_ended), _scalar(""))
    texts = _of_documents(pieces, files.starts)
    if not of_file:
        return texts, None
    stands_in = np.zeros(num_files, np.int64)  # bytes of the line end that stands for the token before a file
    if of_file not in ENDS_LINES:
        stands_in[1:] = (~is_ended)[:-1]
        stands_in[firsts] = has_name[firsts] & lacks_end
    offsets = text_buffers(pieces)[0]
    places = offsets[:-1], offsets[:-1] + text_lengths(headers)
    return texts, _segments(documents, places, stands_in, has_name, separators).column(offsets[files.starts])


def _segments(
    documents: np.ndarray,
    places: tuple[np.ndarray, np.ndarray],
    stands_in: np.ndarray,
    has_name: np.ndarray,
    separators: tuple[str, ...],
) -> Segments:
    """A token and a text for each file, and before a first file with a name, the same for the name. All are (num_files,);
    `places`: where each file begins, with the name of its repository or without it."""
    (begins, paths), named = places, np.flatnonzero(has_name)
    counts = np.where(has_name, 4, 2)
    ends = np.cumsum(counts)
    starts, tokens = np.empty(int(counts.sum()), np.int64), np.full(int(counts.sum()), -1)
    starts[ends - 2], starts[ends - 1], tokens[ends - 2] = paths - stands_in, paths, 1
    starts[ends[named] - 4], starts[ends[named] - 3], tokens[ends[named] - 4] = begins[named], begins[named], 0
    names = pa.array(separators, pa.string()).take(pa.array(tokens, mask=tokens < 0))
    return Segments(np.repeat(documents, counts), starts, names, np.ones(len(starts), np.bool_))


def paths_as_json(paths: pa.Array, starts: np.ndarray) -> pa.Array:
    """The paths of the files of each document as a JSON list, (num_docs,) large_string."""
    is_first, is_last = np.zeros(len(paths), np.int64), np.ones(len(paths), np.int64)
    is_first[starts[:-1]], is_last[starts[1:] - 1] = 1, 2
    before = pa.array(["", "["], _TEXT).take(pa.array(is_first))
    behind = pa.array(["", ",", "]"], _TEXT).take(pa.array(is_last))
    names = texts_from(*quoted(*text_buffers(paths)))
    return _of_documents(compute.binary_join_element_wise(before, names, behind, _scalar("")), starts)


def joined_licenses(licenses: pa.Array, starts: np.ndarray) -> pa.Array:
    """The licences of the files of each document, (num_docs,) large_string: one by itself, several as a JSON list, none as
    null. `licenses`: (num_files,) large_string, each a text as `licenses.named` takes it, or empty."""
    encoded = licenses.dictionary_encode()
    listed = [_listed(text) for text in encoded.dictionary.to_pylist()]
    codes, documents = numbers(encoded.indices), np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pairs = np.unique(documents * max(1, len(listed)) + codes)
    of_documents: list[set[str]] = [set() for _ in range(len(starts) - 1)]
    for document, code in zip((pairs // max(1, len(listed))).tolist(), (pairs % max(1, len(listed))).tolist()):
        of_documents[document].update(listed[code])
    return pa.array([_as_text(sorted(names - {""}), "" in names) for names in of_documents], _TEXT)


def _listed(text: str) -> list[str]:
    """The licences in a text; an empty one stands for none."""
    try:
        names = json.loads(text) if text.strip().startswith("[") else [text]
    except ValueError:
        names = [text]
    return [name.strip() if isinstance(name, str) else "" for name in names] or [""]


def _as_text(names: list[str], some_have_none: bool) -> str | None:
    names = [*names, _UNKNOWN] if names and some_have_none else names
    return json.dumps(names, ensure_ascii=False) if len(names) > 1 else next(iter(names), None)


def _of_documents(pieces: pa.Array, starts: np.ndarray) -> pa.Array:
    """The texts of consecutive files as one text for each document."""
    offsets, data = text_buffers(pieces)
    return texts_from(offsets[starts], data)


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _line_ends(has_one: np.ndarray) -> pa.Array:
    return pa.array(["", "\n"], _TEXT).take(pa.array(has_one.astype(np.int8)))
