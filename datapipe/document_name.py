"""The name of a document for people: SOURCE/PATH:POSITION. Every message prints it, and every command takes it.

    key  =  hash of (source, path), position   ◀─▶   web/2025/part-07.jsonl:15180

PATH is the path of the input file relative to its source. POSITION is the byte offset of the record in the decompressed file,
its row number, or in files of many members what `stages/README.md` says. A document whose input has an id is printed with it:
"doc-17 (web/a.jsonl:120)".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from datapipe.errors import UserError

FORMS = "SOURCE/PATH:POSITION, a line of `inspect`, or the 32 hex digits of a key"
"""The forms that `named_key` takes, in words. PATH:POSITION is taken too, where only one source has the file."""

_HEX_KEY = re.compile(r"[0-9a-fA-F]{32}")
_LINE = re.compile(r"(?P<name>.*?:\d+)(?:  | \(of ).*", re.DOTALL)
_GAP = re.compile(r"  +")
_POSITION_BYTES = 8


def document_name(source: str, path: str, position: int) -> str:
    """SOURCE/PATH:POSITION; without a source where none is known."""
    return f"{source}/{path}:{position}" if source else f"{path}:{position}"


def with_own_id(own_id: str, name: str) -> str:
    """The name of a document behind its own id: "doc-17 (web/a.jsonl:120)". A document without an id has its name as its id."""
    return name if own_id in ("", name) else f"{own_id} ({name})"


def named_key(text: str, files: Mapping[int, tuple[str, str]]) -> bytes | None:
    """The key of a document that the user names in one of the forms of `FORMS`, such as a line of `inspect`:
    `web/part-0.jsonl:123 (of runs/2024)  4,194 characters`, or `web  part-0.jsonl:123` of earlier versions.

    Args:
        files: (source, path) by file hash, the first half of the keys of a file's documents.

    Returns:
        16 bytes; None where no file has the name. A key in hex digits is not looked up.

    Raises:
        UserError: the text has none of these forms, or is PATH:POSITION and several sources have the file.
    """
    named = text.strip()
    if _HEX_KEY.fullmatch(named):
        return bytes.fromhex(named)
    line = _LINE.fullmatch(named)
    file, colon, digits = (line["name"] if line else named).rpartition(":")
    if not (file and colon and digits.isascii() and digits.isdigit() and int(digits) < 1 << 8 * _POSITION_BYTES):
        raise UserError(f"{text!r}: expected {FORMS}.")
    found = _files_named(file, files) or _files_named(_GAP.sub("/", file, count=1), files)
    if len(found) > 1:
        sources = " and ".join(sorted(files[number][0] for number in found))
        raise UserError(f"{text!r}: the sources {sources} have such a file. Expected SOURCE/PATH:POSITION.")
    return found[0].to_bytes(8, "big") + int(digits).to_bytes(_POSITION_BYTES, "big") if found else None


def _files_named(name: str, files: Mapping[int, tuple[str, str]]) -> list[int]:
    """The file with the name SOURCE/PATH, or else those with this path."""
    with_source = [number for number, (source, path) in files.items() if f"{source}/{path}" == name]
    return with_source or [number for number, (_, path) in files.items() if path == name]
