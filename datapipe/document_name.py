"""The name of a document for people: SOURCE/PATH:POSITION. Every message prints it, and every command takes it.

    key  =  hash of (source, path), position   ◀─▶   web/2025/part-07.jsonl:15180

PATH is the path of the input file relative to its source. POSITION is the byte offset of the record
in the decompressed file, its row number, or in files of many members as in `stages/read/README.md`.
A document whose input has an id is printed with it: "doc-17 (web/a.jsonl:120)".

A text is taken as the first of these that a file has; a text that names two documents in the same way is refused with both:

| form | example |
|---|---|
| a JSON string | `"web/odd #1\\nname.jsonl:120"`: any name, and nothing behind it |
| the whole name | `web/a:12 (of b).jsonl:120` |
| a line of `inspect`, a comment | `web/a.jsonl:120 (of runs/a)  7 characters`, `web/a.jsonl:120 # why` |
| PATH:POSITION | `a.jsonl:120` |
"""

import json
import re
from collections.abc import Iterable, Mapping

from datapipe.errors import UserError

FORMS = "SOURCE/PATH:POSITION, the same as a JSON string, a line of `inspect`, or the 32 hex digits of a key"
"""The forms that `InputFiles.key` takes, in words. PATH:POSITION is taken too, where only one source has the file."""

_HEX_KEY = re.compile(r"([0-9a-fA-F]{32})(?:\s+#.*)?\Z", re.DOTALL)
_NAME_END = re.compile(r":\d+(?=(?: \(of .*\))?(?:  .*)?(?:[ \t]+#.*)?\Z)", re.DOTALL | re.ASCII)
"""The end of a name in a line: what follows is as `inspect` prints it, or a comment."""
_POSITION_BYTES = 8
_MOST_DIGITS = 20
_BYTE_ORDER_MARK = "\ufeff"


def document_name(source: str, path: str, position: int) -> str:
    """SOURCE/PATH:POSITION; without a source where none is known."""
    return f"{source}/{path}:{position}" if source else f"{path}:{position}"


def with_own_id(own_id: str, name: str) -> str:
    """The name of a document behind its own id: "doc-17 (web/a.jsonl:120)". A document without an id has its name as its id."""
    return name if own_id in ("", name) else f"{own_id} ({name})"


class InputFiles:
    """The input files that names of documents are looked up in. `files`: (hash, source, path); the hash is the first half
    of the keys of a file's documents. Sources that are taken from other snapshots may have the same one."""

    def __init__(self, files: Iterable[tuple[int, str, str]]) -> None:
        self._by_name: dict[str, dict[int, str]] = {}
        self._by_path: dict[str, dict[int, str]] = {}
        for number, source, path in files:
            name = f"{source}/{path}"
            self._by_name.setdefault(name, {})[number] = name
            self._by_path.setdefault(path, {})[number] = name

    def key(self, text: str) -> bytes | None:
        """The key, 16 bytes, of a document that the user names in one of the forms of `FORMS`; None
        where no file has the name. A key in hex digits is not looked up. Raises UserError for other
        texts, and for documents of several files."""
        named = text.strip().removeprefix(_BYTE_ORDER_MARK).strip()
        if key := _HEX_KEY.match(named):
            return bytes.fromhex(key[1])
        quoted = _quoted(named, text)
        whole = _numbered([named if quoted is None else quoted])
        beginnings = (named[: end.end()] for end in _NAME_END.finditer(named))
        numbered = whole if quoted is not None else _numbered([named, *beginnings])
        if not numbered:
            raise UserError(f"{text!r}: expected {FORMS}.")
        ways = (whole, self._by_name), (numbered, self._by_name), (numbered, self._by_path)
        documents = next(filter(None, (_documents(*way) for way in ways)), {})
        if len(documents) > 1:
            raise UserError(
                f"{text!r} may be {' and '.join(map(repr, sorted(documents.values())))}. Expected a whole name, "
                f"SOURCE/PATH:POSITION, or a key. In double quotes, as a JSON string, a name is nothing else."
            )
        return next(iter(documents), None)


def _quoted(named: str, text: str) -> str | None:
    """The name in a JSON string, which a comment may follow; None for other text. Raises UserError for a wrong string."""
    if not named.startswith('"'):
        return None
    try:
        name, end = json.JSONDecoder().raw_decode(named)
    except ValueError as error:
        raise UserError(
            f'{text!r}: not a JSON string: {error}. Expected a name in double quotes; a quote in it is written as \\".'
        ) from None
    rest = named[end:].strip()
    if rest and not rest.startswith("#"):
        raise UserError(f"{text!r}: found {rest!r} behind the JSON string. Expected its end, or a comment that begins with #.")
    return name


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    numbered: dict[tuple[str, int], None] = {}
    for name in names:
        file, colon, digits = name.rpartition(":")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
        if file and colon and is_number and int(digits) < 1 << 8 * _POSITION_BYTES:
            numbered[file, int(digits)] = None
    return list(numbered)


def _documents(numbered: Iterable[tuple[str, int]], files: Mapping[str, Mapping[int, str]]) -> dict[bytes, str]:
    return {
        number.to_bytes(8, "big") + position.to_bytes(_POSITION_BYTES, "big"): f"{name}:{position}"
        for file, position in numbered
        for number, name in files.get(file, {}).items()
    }
