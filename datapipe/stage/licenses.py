"""Licences by their SPDX names: identifiers, expressions of them, and other names as `LicenseRef-NAME`.

    "cc-by-4.0"              ─▶ "CC-BY-4.0"                        identifiers in any case
    "mit or apache-2.0"      ─▶ "MIT OR Apache-2.0"                expressions: AND, OR, WITH, parentheses
    "LicenseRef-our-terms"   ─▶ unchanged                          a licence that the list of SPDX lacks

Any other text in a mixture is an error (`spdx`). Any other text in a document becomes such a name (`named`):

    "Public Domain"          ─▶ "LicenseRef-public-domain"
    ["mit", "isc"]           ─▶ "MIT AND ISC"                      a list, as JSON
    "", null, "NOASSERTION"  ─▶ "unknown"

The library license-expression parses expressions and carries the list of SPDX. Arrow is imported on
first use: the commands that only read a mixture do without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

UNKNOWN = "unknown"  # the name of no licence, in lists of allowed ones and in counts
_MOST_CHARS = 300
"""Longer text is no expression. The longest of GitHub and the Stack v2 have about a hundred."""

_MOST_NESTED = 20
"""Text with more nested parentheses is no expression: a document cannot exhaust the stack."""

_UNSAID = frozenset({"", UNKNOWN, "noassertion", "none", "null", "no_license"})
_OWN = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+", re.IGNORECASE)
_OWN_CHARS = 60
_EXPECTED = "expected an SPDX licence such as MIT, CC-BY-4.0 or MIT OR Apache-2.0, or LicenseRef-NAME for any other"
_TOO_LONG = f"{_EXPECTED}, in at most {_MOST_CHARS} characters"


def spdx(text: str) -> str:
    """The expression with its identifiers as SPDX writes them. Raises ValueError with the nearest identifier."""
    try:
        return _written(_parsed(text))
    except _UnknownIdentifierError as error:
        raise ValueError(_lacking(text, error)) from None


@lru_cache(maxsize=4096)
def named(text: str | None) -> str:
    """The licence of a document by name: an SPDX expression, a LicenseRef, or "unknown"."""
    plain = (text or "").strip()
    if plain.startswith("["):
        return _named_by_all(plain)
    if plain.lower() in _UNSAID:
        return UNKNOWN
    try:
        return _written(_parsed(plain))
    except ValueError:
        own = re.sub(r"[^a-z0-9.]+", "-", plain[: 4 * _OWN_CHARS].lower()).strip("-.")[:_OWN_CHARS]
        return f"LicenseRef-{own or 'other'}"


def _named_by_all(text: str) -> str:
    """The licence of a JSON list: all of them hold. Other text becomes a LicenseRef."""
    try:
        listed = json.loads(text)
        names = dict.fromkeys(named(entry) for entry in listed if entry is None or not entry.startswith("["))
    except (ValueError, AttributeError, RecursionError):
        return named(text.lstrip("["))
    known = [name for name in names if name != UNKNOWN]
    return named(" AND ".join(f"({name})" for name in known)) if known else UNKNOWN


def allowed_name(text: str) -> str:
    """An entry of a list of allowed licences: an expression, or "unknown". Raises ValueError."""
    return UNKNOWN if text.strip().lower() == UNKNOWN else spdx(text)


def is_allowed(license: str, allowed: Collection[str]) -> bool:
    """Whether a list of licences (`allowed_name`) allows one (`named` or `spdx`).

    `A OR B` is allowed if one of the two is, `A AND B` if both are, and `A WITH B` if the list
    names it. A list that names the whole expression allows it."""
    listed = {name.lower() for name in allowed}
    return license.lower() in listed or (license != UNKNOWN and _holds(_parsed(license), listed))


def single_licenses(license: str) -> list[str]:
    """The licences that an expression names, each once, in its order: MIT and Apache-2.0 of "MIT OR Apache-2.0"."""
    return [] if license == UNKNOWN else list(dict.fromkeys(_names(_parsed(license))))


def license_codes(column: pa.Array, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """The licence of each document as an index (num_docs,) into the names, each of which occurs once. `column`: (num_docs,)
    text, lists of text, or values that Arrow writes as text; `name`: of the column, for errors."""
    import numpy as np

    from datapipe.columns import compute

    encoded = compute.dictionary_encode(compute.fill_null(license_texts(column, name), ""))
    of_values = [named(value) for value in encoded.dictionary.to_pylist()]
    names = {license: number for number, license in enumerate(dict.fromkeys(of_values))}
    numbers = np.array([names[license] for license in of_values], np.int64)
    return numbers[encoded.indices.to_numpy(zero_copy_only=False)], list(names)


def license_texts(column: pa.Array, name: str) -> pa.Array:
    """The licences in a column as `named` takes them, (num_docs,) large_string: as those of `license_codes`."""
    import pyarrow as pa

    from datapipe.errors import UserError

    try:
        if pa.types.is_list(column.type):
            lists = column.cast(pa.list_(pa.large_string())).to_pylist()
            return pa.array([None if names is None else json.dumps(names) for names in lists], pa.large_string())
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UserError(
            f"license_field: the column '{name}' holds {column.type}, expected text: a license, or a list of them as JSON. "
            f"Name another field."
        ) from None


def codes_of_documents(record: pa.RecordBatch, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """As `license_codes`; documents without the column have no licence."""
    import pyarrow as pa

    index = record.schema.get_field_index(name)
    return license_codes(pa.nulls(record.num_rows, pa.string()) if index < 0 else record.column(index), name)


class _UnknownIdentifierError(ValueError):
    def __init__(self, word: str, is_exception: bool) -> None:
        super().__init__(word)
        self.word, self.is_exception = word, is_exception


def _lacking(text: str, error: _UnknownIdentifierError) -> str:
    what = "no exception of SPDX" if error.is_exception else "no licence of SPDX"
    plain = {_without_signs(name): name for name in sorted(_identifiers(error.is_exception).values(), reverse=True)}
    near = [f" Did you mean '{plain[key]}'?" for key in get_close_matches(_without_signs(error.word), plain, n=1)]
    return f"'{error.word[:_OWN_CHARS]}' is {what}.{''.join(near)}{'' if error.is_exception else _own_name(text)}"


def _own_name(text: str) -> str:
    own = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:_OWN_CHARS]
    return f" For a licence that SPDX does not list, write LicenseRef-{own or 'NAME'}"


def _without_signs(name: str) -> str:
    """A name as people shorten it: "gpl30" of "GPL-3.0-or-later"."""
    return re.sub(r"[^a-z0-9]+", "", re.sub(r"-(only|or-later)$", "", name.lower()))


def _parsed(text: str) -> Any:
    """The tree of the library: AND, OR, or a symbol. Raises ValueError."""
    from license_expression import Licensing

    if len(text) > _MOST_CHARS:
        raise ValueError(_TOO_LONG)
    if max(accumulate({"(": 1, ")": -1}.get(sign, 0) for sign in f" {text}")) > _MOST_NESTED:
        raise ValueError(f"{_EXPECTED}, with at most {_MOST_NESTED} parentheses within each other")
    try:
        parsed = Licensing().parse(text, simple=True)
    except Exception:  # the library also raises IndexError and TypeError for text that is no expression
        if text.count("(") > text.count(")"):
            raise ValueError(f"{_EXPECTED}; a parenthesis is not closed") from None
        raise ValueError(f"{_EXPECTED}; AND, OR and WITH stand between two names.{_own_name(text)}") from None
    if parsed is None:
        raise ValueError(_EXPECTED)
    return parsed


def _operator(node: Any) -> str:
    return str(getattr(node, "operator", None) or "").strip()


def _written(node: Any) -> str:
    """The expression with the parentheses that it needs. Raises ValueError, `_UnknownIdentifierError` for an unknown word."""
    operator = _operator(node)
    if not operator:
        return _identifier(node)
    parts = [(inner, _written(inner)) for inner in node.args]
    written = [f"({text})" if (operator, _operator(inner)) == ("AND", "OR") else text for inner, text in parts]
    expression = f" {operator} ".join(written)
    if len(expression) > _MOST_CHARS:
        raise ValueError(_TOO_LONG)
    return expression


def _names(node: Any) -> Iterator[str]:
    if not _operator(node):
        yield _identifier(node).partition(" ")[0]
    for inner in node.args if _operator(node) else ():
        yield from _names(inner)


def _holds(node: Any, listed: Collection[str]) -> bool:
    if _written(node).lower() in listed:
        return True
    inner = [_holds(inner, listed) for inner in node.args] if _operator(node) else [False]
    return any(inner) if _operator(node) == "OR" else all(inner)


def _identifier(symbol: Any) -> str:
    """A licence as SPDX writes it, with its exception; `+` stands for later versions. Raises `_UnknownIdentifierError`."""
    if (exception := getattr(symbol, "exception_symbol", None)) is not None:
        known = _identifiers(True).get(exception.key.lower())
        if known is None:
            raise _UnknownIdentifierError(exception.key, True)
        return f"{_identifier(symbol.license_symbol)} WITH {known}"
    word, known = symbol.key, _identifiers(False)
    if _OWN.fullmatch(word):
        return word
    if (name := known.get(word.lower())) is not None:
        return name
    if word.endswith("+") and (name := known.get(word[:-1].lower())) is not None:
        return f"{name}+"
    raise _UnknownIdentifierError(word, False)


@lru_cache(maxsize=2)
def _identifiers(of_exceptions: bool) -> dict[str, str]:
    """The identifiers of licences, or of exceptions, by their lower case; earlier spellings lead to the present ones."""
    from license_expression import get_license_index

    now: dict[str, str] = {}
    earlier: dict[str, str] = {}
    for entry in get_license_index():
        name = entry["spdx_license_key"]
        if name and not name.startswith("LicenseRef-") and bool(entry["is_exception"]) == of_exceptions:
            now[name.lower()] = name
            earlier |= {other.lower(): name for other in entry["other_spdx_license_keys"]}
    return {key: name for key, name in earlier.items() if _OWN.fullmatch(key) is None} | now
