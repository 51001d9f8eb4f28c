"""Looks into large files for what cutting them needs: whether a compressed file has many members.

Only files of more text than a split are opened, several at once, as an object store takes a while to answer. The reader reads a
bounded part of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from datapipe.outages import input_error
from datapipe.plan.splits import text_bytes
from datapipe.stage.reader import InputFile, Reader
from datapipe.storage import open_input

_THREADS = 16


def look_into(
    files: Sequence[tuple[InputFile, Reader]], split_bytes: int, where: str, on_file: Callable[[int, int], None]
) -> list[tuple[InputFile, Reader]]:
    """The files, in which `Reader.probe_large` has looked into those that have more than `split_bytes` of text.

    Args:
        where: file, line and key of the patterns, for errors.
        on_file: gets how many files are looked into, and of how many, after each one.

    Raises UserError for a file that cannot be read.
    """
    large = [(file, reader) for file, reader in files if not file.damage and text_bytes(file) > split_bytes]
    known: dict[str, InputFile] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for file in threads.map(partial(_looked_into, where), large):
            known[file.path] = file
            on_file(len(known), len(large))
    return [(known.get(file.path, file), reader) for file, reader in files]


def _looked_into(where: str, listed: tuple[InputFile, Reader]) -> InputFile:
    file, reader = listed
    try:
        return reader.probe_large(file, open_input)
    except OSError as error:
        raise input_error(error, where, "cannot read", file.url) from error
