"""What people write in mixtures and lists: names of documents, licences as SPDX writes them, and weights of any digits."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.document_name import InputFiles, document_name
from datapipe.errors import UserError
from datapipe.stage.licenses import allowed_name, is_allowed, named, single_licenses, spdx
from datapipe.weights import (
    MAX_WEIGHT_SUM,
    ROUNDED_SUM,
    changed_shares,
    changes_in_words,
    exact_integers,
    exact_number,
    integer_weights,
)

FILES = {
    1: ("web", "part-0.jsonl"),
    2: ("web", "2024/part-1 (copy).jsonl"),
    3: ("books", "2024/a:7.txt"),
    4: ("code", "lib.py"),
    5: ("docs", "lib.py"),
    6: ("x", "web/part-0.jsonl"),
    7: ("y", "two  spaces.jsonl"),
    8: ("web", "odd #1.jsonl"),
    9: ("web", ' "a\nb"\t'),
}
ODD = FILES | {
    10: ("web", "part-0.jsonl:1 (of 3)"),
    11: ("web", "part-0.jsonl:1 (of 3)  7 characters"),
    12: ("web", "part-0.jsonl:1 #2"),
    13: ("web", "part-0.jsonl:1  more"),
}
"""With names that are lines about documents of the first."""

COMMENTS = ["", " # ticket 7: see web/part-0.jsonl:9", "\t# why", "  12 characters  # twice", " #"]
PRINTED = ["", "  4,194 characters", " (of runs/2024)", " (of runs/2024:7)  4,194 characters", "  id doc-1 ──"]


def named_key(text: str, files: dict[int, tuple[str, str]]) -> bytes | None:
    return InputFiles((number, *name) for number, name in files.items()).key(text)


def key_of(number: int, position: int) -> bytes:
    return number.to_bytes(8, "big") + position.to_bytes(8, "big")


@given(st.sampled_from(list(FILES)), st.integers(0, 2**64 - 1), st.sampled_from([*PRINTED, *COMMENTS]))
def test_named_key_takes_lines_as_they_are_printed_and_with_comments(number: int, position: int, after: str) -> None:
    assert named_key(f" {document_name(*FILES[number], position)}{after}\n", FILES) == key_of(number, position)


@pytest.mark.parametrize("after", [comment for comment in COMMENTS if comment.lstrip().startswith("#") or not comment])
@pytest.mark.parametrize("number", list(ODD))
def test_named_key_in_quotes_is_that_name_whatever_it_holds(number: int, after: str) -> None:
    assert named_key(json.dumps(document_name(*ODD[number], 5)) + after, ODD) == key_of(number, 5)


@pytest.mark.parametrize(
    ("text", "number", "position"),
    [
        ("2024/a:7.txt:5", 3, 5),
        ("2024/part-1 (copy).jsonl:5", 2, 5),
        ("web/part-0.jsonl:1 (of 3):0", 10, 0),  # the whole name before the beginning of a line
        ("web/part-0.jsonl:1 (of 3)  7 characters:0", 11, 0),
        ("part-0.jsonl:1 (of 3):0", 10, 0),
        ("web/part-0.jsonl:1 #2:0", 12, 0),
        ("web/part-0.jsonl:1 (of 3)", 1, 1),
        ("web/part-0.jsonl:1 #2", 1, 1),
        ("\ufeffweb/part-0.jsonl:1", 1, 1),
        ("web/part-0.jsonl:1  more:2", 13, 2),
        ("docs/lib.py:3", 5, 3),
    ],
)
def test_named_key_takes_paths_and_whole_names(text: str, number: int, position: int) -> None:
    assert named_key(text, ODD) == key_of(number, position)


@given(st.binary(min_size=16, max_size=16))
def test_named_key_takes_hex_digits_of_any_case(key: bytes) -> None:
    assert named_key(key.hex(), {}) == key == named_key(f"\ufeff{key.hex().upper()} # why", FILES)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("web/part-0.jsonl:1  more:2  7 characters", ["'web/part-0.jsonl:1'", "'web/part-0.jsonl:1  more:2'"]),
        ("lib.py:3", ["'code/lib.py:3'", "'docs/lib.py:3'"]),
        *((text, []) for text in ("", "web/part-0.jsonl", ":7", "part-0.jsonl:-1", f"part-0.jsonl:{2**64}", "0" * 31)),
        *((text, []) for text in ('"web/part-0.jsonl:1', '"web/part-0.jsonl":1', '"web/part-0.jsonl"', '""', '"a:1" b')),
    ],
)
def test_named_key_of_text_with_no_meaning_or_two_is_refused(text: str, names: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        named_key(text, ODD)
    assert all(name in str(caught.value) for name in names)


def test_named_key_of_a_file_that_is_not_there_is_none() -> None:
    assert [named_key(text, FILES) for text in ("web/gone.jsonl:3", "gone.jsonl:3", "books/part-0.jsonl:0")] == [None] * 3


def test_files_of_two_sources_with_one_hash_and_path_are_one_document() -> None:
    files = InputFiles([(1, "old.web", "a.jsonl"), (1, "new.web", "a.jsonl"), (2, "b", "a.jsonl")])
    assert files.key("new.web/a.jsonl:3") == files.key("old.web/a.jsonl:3") == key_of(1, 3)
    with pytest.raises(UserError, match=r"b/a\.jsonl:3.*new\.web/a\.jsonl:3"):
        files.key("a.jsonl:3")


ATOMS = ("MIT", "Apache-2.0", "GPL-3.0-only WITH Classpath-exception-2.0", "LicenseRef-Ours")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cc-by-4.0", "CC-BY-4.0"),
        ("mit or apache-2.0", "MIT OR Apache-2.0"),
        ("GPL-2.0+", "GPL-2.0-or-later"),
        ("apache-1.0+", "Apache-1.0+"),
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
        ("MIT ISC", "stand between two names"),
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
def test_a_document_may_hold_anything(text: str | None, name: str) -> None:
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
@pytest.mark.medium
def test_an_expression_is_allowed_as_its_truth_table_declares(expression: object, listed: set[str]) -> None:
    name = spdx(_written(expression))
    assert is_allowed(name, [atom.lower() for atom in listed]) == _allowed(expression, listed)
    assert is_allowed(name, [name])
    assert {f"{single}" for single in single_licenses(name)} == {
        atom.partition(" ")[0] for atom in ATOMS if atom in _written(expression)
    }


def test_no_licence_is_allowed_only_where_it_is_listed() -> None:
    assert [is_allowed("unknown", listed) for listed in (["MIT"], ["MIT", allowed_name("Unknown")])] == [False, True]
    assert single_licenses("unknown") == []


def exact(weights: object) -> dict[str, Fraction]:
    return {f"s{number:03}": exact_number(weight) for number, weight in enumerate(weights)}


def proportions_of(whole: dict[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(weight, sum(whole.values())) for name, weight in whole.items()}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([Fraction("0.7"), Fraction("0.3")], [7, 3]),
        ([4, 6, 0], [2, 3, 0]),
        ([Fraction(1, 3), Fraction(1, 7)], [7, 3]),
        ([Fraction("0.35")], [1]),
        ([2**61 - 1, 2**61], [2**61 - 1, 2**61]),  # not rounded
    ],
)
def test_integer_weights_are_the_smallest_in_proportion(weights: list[Fraction], expected: list[int]):
    whole = integer_weights(exact(weights))
    assert list(whole.values()) == expected
    assert changed_shares(exact(weights), whole) == {}


@given(st.dictionaries(st.text(), st.fractions(min_value=0, max_value=100, max_denominator=1000), min_size=1))
@pytest.mark.slow
def test_exact_integers_keep_every_proportion(weights: dict[str, Fraction]):
    total = sum(weights.values())
    if not total:
        return
    whole = exact_integers(weights)
    assert proportions_of(whole) == {name: weight / total for name, weight in weights.items()}
    assert integer_weights(weights) == whole or sum(whole.values()) >= MAX_WEIGHT_SUM


@pytest.mark.parametrize("weights", [{}, {"a": Fraction(0)}, {"a": Fraction(-1), "b": Fraction(2)}])
def test_integer_weights_that_nothing_follows_from_are_refused(weights: dict[str, Fraction]):
    with pytest.raises(ValueError):
        integer_weights(weights)


positive = st.fractions(min_value=0, max_denominator=10**20) | st.floats(0, 1e300).map(exact_number)


@pytest.mark.slow
@given(st.dictionaries(st.text(), positive, min_size=1).filter(lambda weights: any(weights.values())))
def test_integer_weights_of_anything_can_be_counted_and_no_share_vanishes(weights: dict[str, Fraction]):
    counted = integer_weights(weights)
    assert 0 < sum(counted.values()) < MAX_WEIGHT_SUM
    assert {name for name, weight in counted.items() if weight} == {name for name, weight in weights.items() if weight}
    assert integer_weights(dict(reversed(weights.items()))) == counted  # the order of the sources does not count
    assert integer_weights({name: Fraction(weight) for name, weight in counted.items()}) == counted
    total, raised = sum(weights.values()), sum(0 < weight * ROUNDED_SUM < sum(weights.values()) for weight in weights.values())
    for name, share in proportions_of(counted).items():  # units that tiny shares are raised to are missing elsewhere
        assert abs(share - weights[name] / total) <= Fraction(1 + raised, ROUNDED_SUM)


def test_changed_shares_reports_what_is_more_than_noise():
    given = exact([1.0, 1e-30, 0.1 + 0.2])
    changed = changed_shares(given, integer_weights(given))
    assert changed == {"s001": (pytest.approx(1e-30 / 1.3), 2.0**-40)}
    assert "'s001'" in changes_in_words(changed)
    noisy = exact([0.1 + 0.2] * 3 + [0.1 * 3, 1 / 3, 1e-3 / 3, 0.7])
    assert changed_shares(noisy, integer_weights(noisy)) == {}


@pytest.mark.parametrize(
    "value", [True, None, "", "x", "1/0", "1e999999999", float("nan"), float("inf"), np.float64("nan"), [1], 1j, b"1"]
)
def test_exact_number_of_anything_else_is_refused(value: object):
    with pytest.raises(ValueError):
        exact_number(value)
