"""Files of JSON that are not JSON lines, as JSON lines: arrays of objects, and objects that are written over several lines.

    chunks ─▶ how does the file begin? ─┬─▶ {"text": …}↵       JSON lines: as they are
                                        ├─▶ [{…},{…}]          one line an element
                                        └─▶ {↵  "text": …↵}    one line an object

Positions are those in the file: no byte is added or left out. Such a file is read from its beginning to its end. Memory is that
of lines: no more than a block, or the longest object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from datapipe.errors import UnsplittableInputError
from datapipe.kernels.read.json_values import FlatValues
from datapipe.stage.decoding.formats import BrokenStreamError
from datapipe.stage.reader import Split

_BEGINNING = re.compile(rb"[ \t\r\n]*(?:\[[ \t\r\n]*[{\]]|\{[ \t]*\r?\n[ \t\r\n]*[\"}])")
"""An array that is empty or begins with an object; an object with nothing else on its first line, which no JSON line has."""


def is_json_text(beginning: bytes) -> bool:
    """Whether content begins as JSON that is no JSON lines."""
    return _BEGINNING.match(beginning) is not None


def as_json_lines(content: Iterator[tuple[int, bytes]], split: Split) -> Iterator[tuple[int, bytes]]:
    """The content, in chunks with their offsets, as JSON lines.

    Raises:
        UnsplittableInputError: the split is the beginning of a file that must be read whole.
        BrokenStreamError: the file ends within an array or an object. All content has been yielded.
    """
    flat: FlatValues | None = None
    for number, (offset, chunk) in enumerate(content):
        if number == 0 and split.start == 0 and is_json_text(chunk):
            if split.stop is not None:
                raise UnsplittableInputError("the file is one JSON text and not JSON lines, so no line of it can be found")
            flat = FlatValues()
        yield offset, chunk if flat is None else flat.lines(chunk)
    if flat is not None and flat.is_open:
        raise BrokenStreamError(
            "the file ends within a JSON array or object: it is cut off, or one of its values has a bracket or quote too many"
        )
