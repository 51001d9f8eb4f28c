"""Licences by their SPDX names: identifiers, expressions of them, and names of one's own.

    "cc-by-4.0"              ─▶ "CC-BY-4.0"                        identifiers in any case
    "mit or apache-2.0"      ─▶ "MIT OR Apache-2.0"                expressions: AND, OR, WITH, parentheses
    "LicenseRef-our-terms"   ─▶ as it is                           a licence that the list of SPDX lacks

A mixture gets an error for any other text (`spdx`). A document does not: what it says becomes a name of this kind (`named`).

    "Public Domain"          ─▶ "LicenseRef-public-domain"
    ["mit", "isc"]           ─▶ "MIT AND ISC"                      a list, as JSON
    "", null, "NOASSERTION"  ─▶ "unknown"

The identifiers are those of the library license-expression, which carries the list of SPDX.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import accumulate

UNKNOWN = "unknown"
"""The name of no licence, in lists of allowed ones and in counts."""

_MOST_CHARS = 300
"""Longer text is no expression, also as SPDX writes it. The longest of the GitHub API and the Stack v2 have about a hundred."""

_MOST_NESTED = 20
"""Parentheses within parentheses. Text with more is no expression, so that no document decides how deep the parser goes."""

_UNSAID = frozenset({"", UNKNOWN, "noassertion", "none", "null", "no_license"})
_OWN = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+", re.IGNORECASE)
_OWN_CHARS = 60
_OPERATORS = frozenset({"AND", "OR", "WITH"})
_WORD = re.compile(r"[()]|[^\s()]+")
_EXPECTED = "expected an SPDX licence such as MIT, CC-BY-4.0 or MIT OR Apache-2.0, or LicenseRef-NAME for any other"
_TOO_LONG = f"{_EXPECTED}, in at most {_MOST_CHARS} characters"
_EXPECTED_OPERATOR = f"{_EXPECTED}; AND, OR and WITH stand between two names"


def spdx(text: str) -> str:
    """The expression with its identifiers as SPDX writes them. Raises ValueError with the nearest identifier."""
    try:
        return _parsed(text).written()
    except _UnknownIdentifierError as error:
        raise ValueError(_lacking(text, error)) from None


@lru_cache(maxsize=4096)
def named(text: str | None) -> str:
    """The name of the licence that a document gives: an expression of SPDX, a name of its own, or "unknown"."""
    plain = (text or "").strip()
    if plain.startswith("["):
        return _named_by_all(plain)
    if plain.lower() in _UNSAID:
        return UNKNOWN
    try:
        return _parsed(plain).written()
    except ValueError:
        own = re.sub(r"[^a-z0-9.]+", "-", plain[: 4 * _OWN_CHARS].lower()).strip("-.")[:_OWN_CHARS]
        return f"LicenseRef-{own or 'other'}"


def _named_by_all(text: str) -> str:
    """The licence of a list in JSON, as repositories have it: all of them hold. Other text has a name of its own."""
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
    """Whether a list of licences allows one.

    `A OR B` is allowed if one of the two is, and `A AND B` if both are. `A WITH B` stands in the list itself. A list that names
    the whole expression allows it.

    Args:
        license: as `named` or `spdx` returns it.
        allowed: as `allowed_name` returns them.
    """
    listed = {name.lower() for name in allowed}
    return license.lower() in listed or (license != UNKNOWN and _parsed(license).is_allowed(listed))


def single_licenses(license: str) -> list[str]:
    """The licences that an expression names, each once, in its order: MIT and Apache-2.0 of "MIT OR Apache-2.0"."""
    return [] if license == UNKNOWN else list(dict.fromkeys(_parsed(license).names()))


# ------------------------------------------------------------------------------------------------ expressions


class _UnknownIdentifierError(ValueError):
    """A word of an expression is no identifier."""

    def __init__(self, word: str, is_exception: bool) -> None:
        super().__init__(word)
        self.word, self.is_exception = word, is_exception


def _lacking(text: str, error: _UnknownIdentifierError) -> str:
    """The message about a word that is no identifier."""
    what = "no exception of SPDX" if error.is_exception else "no licence of SPDX"
    plain = {_without_signs(name): name for name in sorted(_identifiers(error.is_exception).values(), reverse=True)}
    near = [f" Did you mean '{plain[key]}'?" for key in get_close_matches(_without_signs(error.word), plain, n=1)]
    own = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:_OWN_CHARS]
    remedy = "" if error.is_exception else f" For a licence that SPDX does not list, write LicenseRef-{own or 'NAME'}"
    return f"'{error.word[:_OWN_CHARS]}' is {what}.{''.join(near)}{remedy}"


def _without_signs(name: str) -> str:
    """A name as people shorten it: "gpl30" of "GPL-3.0-or-later"."""
    return re.sub(r"[^a-z0-9]+", "", re.sub(r"-(only|or-later)$", "", name.lower()))


@dataclass(frozen=True, slots=True)
class _Expression:
    """A licence (no parts), or parts joined by "AND" or "OR".

    Attributes:
        name: of the licence, with its exception; the operator where there are parts.
    """

    name: str
    parts: tuple[_Expression, ...] = ()

    def written(self) -> str:
        """The expression with the parentheses that it needs."""
        if not self.parts:
            return self.name
        inner = (f"({part.written()})" if self.name == "AND" and part.name == "OR" else part.written() for part in self.parts)
        return f" {self.name} ".join(inner)

    def names(self) -> Iterator[str]:
        """The licences, without their exceptions."""
        if not self.parts:
            yield self.name.partition(" ")[0]
        for part in self.parts:
            yield from part.names()

    def is_allowed(self, listed: Collection[str]) -> bool:
        """Whether a list in lower case allows it."""
        if self.written().lower() in listed:
            return True
        holds = any if self.name == "OR" else all
        return bool(self.parts) and holds(part.is_allowed(listed) for part in self.parts)


def _parsed(text: str) -> _Expression:
    """The parts of an expression. Raises ValueError; `_UnknownIdentifierError` for a word that is no identifier."""
    words = _WORD.findall(text)
    if len(text) > _MOST_CHARS or not words:
        raise ValueError(_TOO_LONG if words else _EXPECTED)
    if max(accumulate({"(": 1, ")": -1}.get(word, 0) for word in words)) > _MOST_NESTED:
        raise ValueError(f"{_EXPECTED}, with at most {_MOST_NESTED} parentheses within each other")
    left = words[::-1]
    parsed = _joined("OR", left)
    if left:
        raise ValueError(_EXPECTED_OPERATOR)
    if len(parsed.written()) > _MOST_CHARS:
        raise ValueError(_TOO_LONG)
    return parsed


def _joined(operator: str, left: list[str]) -> _Expression:
    """Takes operands of one operator from the end of `left`. AND binds more closely than OR."""
    parts = [_joined("AND", left) if operator == "OR" else _operand(left)]
    while left and left[-1].upper() == operator:
        left.pop()
        parts.append(_joined("AND", left) if operator == "OR" else _operand(left))
    flat = [inner for part in parts for inner in (part.parts if part.parts and part.name == operator else (part,))]
    return parts[0] if len(parts) == 1 else _Expression(operator, tuple(flat))


def _operand(left: list[str]) -> _Expression:
    word = left.pop() if left else ")"
    if word == "(":
        inner = _joined("OR", left)
        if not left or left.pop() != ")":
            raise ValueError(f"{_EXPECTED}; a parenthesis is not closed")
        return inner
    if word == ")" or word.upper() in _OPERATORS:
        raise ValueError(_EXPECTED_OPERATOR)
    name = _identifier(word)
    if left and left[-1].upper() == "WITH":
        left.pop()
        exception = _identifiers(True).get(left[-1].lower()) if left else None
        if exception is None:
            raise _UnknownIdentifierError(left[-1] if left else "", True)
        left.pop()
        name = f"{name} WITH {exception}"
    return _Expression(name)


def _identifier(word: str) -> str:
    """The identifier as SPDX writes it; `+` stands for later versions."""
    if _OWN.fullmatch(word):
        return word
    known = _identifiers(False)
    if (name := known.get(word.lower())) is not None:
        return name
    if word.endswith("+") and (name := known.get(word[:-1].lower())) is not None:
        return f"{name}+"
    raise _UnknownIdentifierError(word, False)


@lru_cache(maxsize=2)
def _identifiers(of_exceptions: bool) -> dict[str, str]:
    """The identifiers of licences, or of exceptions, by their lower case; earlier spellings lead to those of now."""
    from license_expression import get_license_index

    now: dict[str, str] = {}
    earlier: dict[str, str] = {}
    for entry in get_license_index():
        name = entry["spdx_license_key"]
        if name and not name.startswith("LicenseRef-") and bool(entry["is_exception"]) == of_exceptions:
            now[name.lower()] = name
            earlier |= {other.lower(): name for other in entry["other_spdx_license_keys"]}
    return {key: name for key, name in earlier.items() if _OWN.fullmatch(key) is None} | now
