"""Licences as SPDX writes them, of mixtures and of documents, and which are allowed."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.licenses import allowed_name, is_allowed, named, single_licenses, spdx

ATOMS = ("MIT", "Apache-2.0", "GPL-3.0-only WITH Classpath-exception-2.0", "LicenseRef-Ours")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cc-by-4.0", "CC-BY-4.0"),
        ("mit or apache-2.0", "MIT OR Apache-2.0"),
        ("GPL-2.0+", "GPL-2.0-or-later"),
        ("MIT and (isc OR zlib)\tand 0bsd", "MIT AND (ISC OR Zlib) AND 0BSD"),
        ("gpl-2.0-only with classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"),
        ("DocumentRef-x:LicenseRef-y", "DocumentRef-x:LicenseRef-y"),
    ],
)
def test_expressions_are_written_as_spdx_writes_them(text: str, name: str) -> None:
    assert spdx(text) == name == spdx(name) == named(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("apache2", "Did you mean 'Apache-2.0'"),
        ("Public Domain", "write LicenseRef-Public-Domain"),
        ("MIT AND", "stand between two names"),
        ("(MIT", "a parenthesis is not closed"),
        ("MIT WITH MIT", "'MIT' is no exception of SPDX"),
        ("", "expected an SPDX licence"),
        ("MIT OR " * 99 + "MIT", "at most 300 characters"),
        ("GPL-2.0+ OR " * 24 + "MIT", "at most 300 characters"),  # as SPDX writes it, it has 483
        ("(" * 21 + "MIT" + ")" * 21, "at most 20 parentheses within each other"),
    ],
)
def test_other_text_is_refused_with_a_way_out(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        spdx(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (None, "unknown"),
        ("  ", "unknown"),
        ("Public Domain", "LicenseRef-public-domain"),
        ("🎈", "LicenseRef-other"),
        ('["mit", "Apache-2.0"]', "MIT AND Apache-2.0"),
        ('["mit OR isc", null, "mit OR isc", "zlib"]', "(MIT OR ISC) AND Zlib"),
        ("[]", "unknown"),
        ("[" * 100_000, "unknown"),
        ("(" * 20 + "mit" + ")" * 20, "MIT"),
        ("(" * 148 + "mit" + ")" * 148, "LicenseRef-mit"),
    ],
)
def test_a_document_may_say_anything(text: str | None, name: str) -> None:
    assert named(text) == name == named(name)
    assert is_allowed(name, [name])
    assert not is_allowed(name, ["ISC"])


@given(st.text(max_size=400) | st.lists(st.none() | st.text(max_size=30) | st.integers(), max_size=4).map(json.dumps))
def test_names_of_documents_are_names_that_a_list_can_hold(text: str) -> None:
    name = named(text)
    assert allowed_name(name) == name == named(name)
    assert is_allowed(name, [name])


def _allowed(expression: object, listed: set[str]) -> bool:
    """An expression of nested tuples (operator, left, right)."""
    if isinstance(expression, str):
        return expression in listed
    operator, left, right = expression  # type: ignore[misc]
    both = (_allowed(left, listed), _allowed(right, listed))
    return any(both) if operator == "OR" else all(both)


def _written(expression: object) -> str:
    if isinstance(expression, str):
        return expression
    operator, left, right = expression  # type: ignore[misc]
    return f"({_written(left)}) {operator} ({_written(right)})"


EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS), lambda inner: st.tuples(st.sampled_from(["AND", "OR"]), inner, inner), max_leaves=6
)


@given(EXPRESSIONS, st.sets(st.sampled_from(ATOMS)))
def test_an_expression_is_allowed_as_its_truth_table_says(expression: object, listed: set[str]) -> None:
    name = spdx(_written(expression))
    assert is_allowed(name, [atom.lower() for atom in listed]) == _allowed(expression, listed)
    assert is_allowed(name, [name])
    assert {f"{single}" for single in single_licenses(name)} == {
        atom.partition(" ")[0] for atom in ATOMS if atom in _written(expression)
    }


def test_no_licence_is_allowed_only_where_it_is_listed() -> None:
    assert [is_allowed("unknown", listed) for listed in (["MIT"], ["MIT", allowed_name("Unknown")])] == [False, True]
    assert single_licenses("unknown") == []
