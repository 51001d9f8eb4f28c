"""Each rule about lines by hand: a line that it removes or edits, and its neighbour that passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.filter.line_rules import LineRules

FILLING = "so it is and so it was"


def _batch(*texts: str) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(["a"] * len(texts), pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS)))


def _edited(text: str, **options: Any) -> str:
    """The kept text, with no limit on the removed share."""
    result = LineRules.model_validate({"max_removed": 1} | options).process(_batch(text))
    assert result.keep[0]
    return result.columns["text"][0].as_py() if "text" in result.columns else text


def _is_removed(line: str, **options: Any) -> bool:
    """Whether a line between two others is removed; a line is removed whole or kept unchanged."""
    rest = _edited(f"{FILLING}\n{line}\n{FILLING}", **options)
    assert rest in (f"{FILLING}\n{FILLING}", f"{FILLING}\n{line}\n{FILLING}")
    return rest == f"{FILLING}\n{FILLING}"


def test_line_rules_defaults_are_those_of_dclm() -> None:
    stage = LineRules()
    limits = [stage.max_removed, stage.max_uppercase, stage.max_numeric, stage.min_words, stage.max_phrase_words]
    assert limits == [0.05, 0.5, 0.999999, 2, 10]
    assert stage.any_after_read_more
    assert not LineRules(profile="refinedweb").any_after_read_more
    assert LineRules(profile="refinedweb", any_after_read_more=True).any_after_read_more


def test_line_rules_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="profile"):
        LineRules.model_validate({"profile": "gopher"})


@pytest.mark.parametrize("line", ["SHOUT IT", "ÉÀÜ é ÖÄ", "A BCD e"])
def test_line_rules_lines_of_capitals_go(line: str) -> None:
    assert _is_removed(line)


@pytest.mark.parametrize("line", ["AB cd", "ABC ef", "中文 中文", "A B c d"])
def test_line_rules_lines_with_half_or_fewer_capitals_are_kept(line: str) -> None:
    assert not _is_removed(line)


def test_line_rules_limit_on_capitals_is_an_option() -> None:
    assert _is_removed("Ab cd", max_uppercase=0.1)
    assert not _is_removed("AB CD", max_uppercase=1)


@pytest.mark.parametrize("line", ["123", "٣٤", "12²"])
def test_line_rules_lines_of_digits_go(line: str) -> None:
    assert _is_removed(line, min_words=0)


@pytest.mark.parametrize("line", ["12 3", "12.3", "12a"])
def test_line_rules_lines_with_other_characters_among_digits_are_kept(line: str) -> None:
    assert not _is_removed(line, min_words=0)
    assert _is_removed(line, min_words=0, max_numeric=0.5)


@pytest.mark.parametrize(
    "line", ["12 likes", "1,234.5K Shares", "★ 3 comments!", ",5 likes", "(7m  views)", "0 followers", "2.  quotes"]
)
def test_line_rules_counters_go(line: str) -> None:
    assert _is_removed(line)
    assert not _is_removed(line, remove_counters=False)


@pytest.mark.parametrize("line", ["12 like", "likes 12", "12kk views", "12 viewsé", "a 12 likes", "12 likes so", "_ 3 likes"])
def test_line_rules_near_misses_of_counters_are_kept(line: str) -> None:
    assert not _is_removed(line)


def test_line_rules_single_words_go() -> None:
    assert _is_removed("Home")
    assert _is_removed("中文")
    assert not _is_removed("Home page")
    assert not _is_removed("Home", min_words=1)


def test_line_rules_lines_of_symbols_go_where_asked() -> None:
    assert not _is_removed("| | |")
    assert _is_removed("| | |", symbol_lines="|")
    assert _is_removed("| -- |", symbol_lines="-|")
    assert not _is_removed("| a |", symbol_lines="|")
    with pytest.raises(ValueError, match="symbol_lines"):
        LineRules(symbol_lines="a")


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("you have 3 items in cart today", "you have 3 today"),
        ("Items in Cart items in cart so it is", " so it is"),
        ("so it is Read more...", "so it is"),
        ("so it is READ MORE...", "so it is"),
        ("Sign-in or go on", "or go on"),
        ("sign-inor go on", "or go on"),
        ("sign-in so it is items in cart read more...", "so it is"),
    ],
)
def test_line_rules_phrases_are_cut_out_of_short_lines(line: str, rest: str) -> None:
    assert _edited(f"{FILLING}\n{line}\n{FILLING}") == f"{FILLING}\n{rest}\n{FILLING}"
    assert not _is_removed(line, max_phrase_words=0)


@pytest.mark.parametrize("line", ["items in cart", "Read more...", "Sign-in items in cart"])
def test_line_rules_phrases_alone_go_with_their_line(line: str) -> None:
    assert _is_removed(line, min_words=0)


@pytest.mark.parametrize("line", ["Read more... or not", "go to sign-in", "items in the cart", "read more.."])
def test_line_rules_phrases_elsewhere_are_kept(line: str) -> None:
    assert not _is_removed(line)


def test_line_rules_phrases_of_longer_lines_are_kept() -> None:
    nine = "a b c d e f g h"
    assert _edited(f"{nine} read more...") == nine
    assert not _is_removed(f"{nine} i read more...")


def test_line_rules_dots_stand_for_any_character_in_dclm() -> None:
    assert _edited("so it is Read more»»»") == "so it is"
    assert not _is_removed("so it is Read more»»»", profile="refinedweb")
    assert _edited("so it is Read more...", profile="refinedweb") == "so it is"


def test_line_rules_too_much_removed_drops_the_document() -> None:
    stage = LineRules()
    words = " ".join(["word"] * 19)
    result = stage.process(_batch(f"{words}\nHome", f"{words[5:]}\nHome", "Home", "- - -", ""))
    assert result.keep.tolist() == [True, False, False, False, False]
    assert [stage.rules()[rule].name for rule in result.rule[1:]] == ["too_much_removed"] * 4
    assert result.value[1:].tolist() == [pytest.approx(1 / 19), 1, 1, 1]
    assert result.columns["text"][0].as_py() == words


def test_line_rules_words_of_signs_do_not_count() -> None:
    text = f"{FILLING}\n-\n*\n—"
    assert _edited(text, max_removed=0) == FILLING


def test_line_rules_blank_lines_are_kept() -> None:
    assert _edited(f"{FILLING}\n\n  Home \n\n{FILLING}\r\n") == f"{FILLING}\n\n\n{FILLING}"


def test_line_rules_white_space_around_an_edited_text_is_removed() -> None:
    assert _edited(f"Home\n\n {FILLING}\nHome") == FILLING


def test_line_rules_untouched_batch_keeps_its_text() -> None:
    result = LineRules().process(_batch(f" {FILLING} \n\n\n", f"\r\n{FILLING}"))
    assert result.keep.all()
    assert "text" not in result.columns


def test_line_rules_untouched_document_beside_an_edited_document_is_unchanged() -> None:
    result = LineRules(max_removed=1).process(_batch(f" {FILLING}\n", f"{FILLING}\nHome", f"\n{FILLING}"))
    assert result.columns["text"].to_pylist() == [f" {FILLING}\n", FILLING, f"\n{FILLING}"]


def test_line_rules_counts_have_what_is_removed_from_kept_documents() -> None:
    lines = ["||", "SHOUT IT", "123", "3 likes", "Home", "items in cart", "so it is items in cart"]
    text = "\n".join([*[FILLING] * 100, *lines])
    stage = LineRules(symbol_lines="|")
    result = stage.process(_batch(text, "\n".join(lines)))
    assert result.keep.tolist() == [True, False]
    assert {name: result.columns[name].to_pylist() for name in stage.counts} == {
        "symbol_lines_removed": [1, 0],
        "uppercase_lines": [1, 0],
        "numeric_lines": [1, 0],
        "counter_lines": [1, 0],
        "short_lines": [1, 0],
        "phrase_lines": [2, 0],
    }
