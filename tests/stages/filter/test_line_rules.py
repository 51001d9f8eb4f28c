"""Each rule about lines: lines that it removes or edits, and their neighbours that pass."""

from __future__ import annotations

from typing import Any

import pytest

from stages.filter.line_rules import LineRules
from tests.support.decisions import edited, reasons
from tests.support.global_stages import batch_of

FILLING = "so it is and so it was"
ANY_SHARE = {"max_removed": 1}


def _is_removed(line: str, **options: Any) -> bool:
    """Whether a line between two others is removed; a line is removed whole or kept unchanged."""
    rest = edited(LineRules, ANY_SHARE | options, f"{FILLING}\n{line}\n{FILLING}")
    assert rest in (f"{FILLING}\n{FILLING}", f"{FILLING}\n{line}\n{FILLING}")
    return rest == f"{FILLING}\n{FILLING}"


def test_line_rules_defaults_are_those_of_dclm() -> None:
    stage = LineRules()
    limits = [stage.max_removed, stage.max_uppercase, stage.max_numeric, stage.min_words, stage.max_phrase_words]
    assert limits == [0.05, 0.5, 0.999999, 2, 10]
    assert stage.any_after_read_more
    assert not LineRules(profile="refinedweb").any_after_read_more
    assert LineRules(profile="refinedweb", any_after_read_more=True).any_after_read_more


@pytest.mark.parametrize("options", [{"profile": "gopher"}, {"symbol_lines": "a"}])
def test_line_rules_options_that_do_not_fit_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        LineRules.model_validate(options)


ANY_WORDS = {"min_words": 0}
REMOVED: list[tuple[str, dict[str, Any]]] = [
    *((line, {}) for line in ("SHOUT IT", "ÉÀÜ é ÖÄ", "A BCD e")),
    ("Ab cd", {"max_uppercase": 0.1}),
    *((line, ANY_WORDS) for line in ("123", "٣٤", "12²", "items in cart", "Read more...", "Sign-in items in cart")),
    *((line, ANY_WORDS | {"max_numeric": 0.5}) for line in ("12 3", "12.3", "12a")),
    *((line, {}) for line in ("12 likes", "1,234.5K Shares", "★ 3 comments!", ",5 likes", "(7m  views)", "0 followers")),
    *((line, {}) for line in ("2.  quotes", "Home", "中文")),
    *((line, {"symbol_lines": "-|"}) for line in ("| | |", "| -- |")),
]
KEPT: list[tuple[str, dict[str, Any]]] = [
    *((line, {}) for line in ("AB cd", "ABC ef", "中文 中文", "A B c d", "Home page", "| | |")),
    ("AB CD", {"max_uppercase": 1}),
    ("Home", {"min_words": 1}),
    *((line, ANY_WORDS) for line in ("12 3", "12.3", "12a")),
    *((line, {}) for line in ("12 like", "likes 12", "12kk views", "12 viewsé", "a 12 likes", "12 likes so", "_ 3 likes")),
    *((line, {"remove_counters": False}) for line in ("12 likes", "★ 3 comments!")),
    ("| a |", {"symbol_lines": "|"}),
    *((line, {}) for line in ("Read more... or not", "go to sign-in", "items in the cart", "read more..")),
    ("so it is read more...", {"max_phrase_words": 0}),
    ("a b c d e f g h i read more...", {}),  # longer lines are none of buttons
    ("so it is Read more»»»", {"profile": "refinedweb"}),
]


@pytest.mark.parametrize(("line", "options"), REMOVED)
def test_line_rules_line_is_removed(line: str, options: dict[str, Any]) -> None:
    assert _is_removed(line, **options)


@pytest.mark.parametrize(("line", "options"), KEPT)
def test_line_rules_line_is_kept(line: str, options: dict[str, Any]) -> None:
    assert not _is_removed(line, **options)


@pytest.mark.parametrize(
    ("line", "rest", "options"),
    [
        ("you have 3 items in cart today", "you have 3 today", {}),
        ("Items in Cart items in cart so it is", " so it is", {}),
        ("so it is READ MORE...", "so it is", {}),
        ("so it is Read more...", "so it is", {"profile": "refinedweb"}),
        ("so it is Read more»»»", "so it is", {}),  # dots stand for any character in DCLM
        ("Sign-in or go on", "or go on", {}),
        ("sign-inor go on", "or go on", {}),
        ("sign-in so it is items in cart read more...", "so it is", {}),
        ("a b c d e f g h read more...", "a b c d e f g h", {}),
        ("\n  Home \n", "\n", {}),  # blank lines stay
        ("-\n*\n—", None, {"max_removed": 0}),  # words of signs do not count
    ],
)
def test_line_rules_phrases_are_cut_out_of_short_lines(line: str, rest: str | None, options: dict[str, Any]) -> None:
    expected = [FILLING, FILLING] if rest is None else [FILLING, rest, FILLING]
    assert edited(LineRules, ANY_SHARE | options, f"{FILLING}\n{line}\n{FILLING}") == "\n".join(expected)


def test_line_rules_too_much_removed_drops_the_document() -> None:
    stage, words = LineRules(), " ".join(["word"] * 19)
    batch = batch_of([f"{words}\nHome", f"{words[5:]}\nHome", "Home", "- - -", ""])
    result = stage.process(batch)
    assert reasons(stage, batch) == [None] + ["too_much_removed"] * 4
    assert result.value[1:].tolist() == [pytest.approx(1 / 19), 1, 1, 1]
    assert result.columns["text"][0].as_py() == words
    assert reasons(LineRules(min_words=1), batch_of(["Word"])) == [None]


def test_line_rules_white_space_is_removed_around_edited_texts_alone() -> None:
    texts = [f" {FILLING} \n\n\n", f"Home\n\n {FILLING}\nHome", f"\r\n{FILLING}"]
    stage = LineRules(max_removed=1)
    assert stage.process(batch_of(texts)).columns["text"].to_pylist() == [texts[0], FILLING, texts[2]]
    assert "text" not in stage.process(batch_of(texts[::2])).columns


def test_line_rules_counts_have_what_is_removed_from_kept_documents() -> None:
    lines = ["||", "SHOUT IT", "123", "3 likes", "Home", "items in cart", "so it is items in cart"]
    stage = LineRules(symbol_lines="|")
    result = stage.process(batch_of(["\n".join([*[FILLING] * 100, *lines]), "\n".join(lines)]))
    assert result.keep.tolist() == [True, False]
    counted = ["symbol_lines_removed", "uppercase_lines", "numeric_lines", "counter_lines", "short_lines"]
    expected = {name: [1, 0] for name in counted} | {"phrase_lines": [2, 0]}
    assert {name: result.columns[name].to_pylist() for name in stage.counts} == expected
