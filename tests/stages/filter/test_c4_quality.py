"""Filters that edit lines, `c4_quality` and `line_rules`: what each rule edits or drops, and neighbours that pass."""

from typing import Any

import pyarrow as pa
import pytest

from datapipe.stage import Filter
from stages.filter.c4_quality import C4Quality
from stages.filter.line_rules import LineRules
from tests.support.decisions import assert_decides, edited, reasons
from tests.support.global_stages import batch_of

LONE = {"min_sentences": 0, "min_words_per_line": 0}
"""Options by which no rule but that of a test drops anything."""

ENDED = ["It ends.", "Does it?", "It does!", '"It does"']
NOT_ENDED = ["It ends", "It goes on...", "So it goes on…", "Then:", "'It does'", "It ends.)", "It ends.’"]
NOTICES = ["JavaScript", "Terms of Use", "PRIVACY POLICY", "cookie policy", "uses cookies", "Use of Cookies"]
NO_NOTICES = ["java script", "terms for use", "privacy-policy", "cookies policy", "used cookies"]
CITED = "Only [1] three[edit] words."
LONG = "é" * 9
NO_MARK = {"need_end_mark": False}

C4_EDITS: list[tuple[dict[str, Any], str, str]] = [
    *(({}, f"A line.\n{line}\nMore.", f"A line.\n{line}\nMore.") for line in ENDED),
    *(({}, f"A line.\n{line}\nMore.", "A line.\nMore.") for line in NOT_ENDED),
    *(({}, f"The end.\nRead our {phrase} here.", "The end.") for phrase in NOTICES),
    *(({}, f"Read our {phrase} here.", f"Read our {phrase} here.") for phrase in NO_NOTICES),
    ({"remove_javascript": False}, "Javascript.\nUse cookies.", "Javascript."),
    ({"remove_policies": False}, "Javascript.\nUse cookies.", "Use cookies."),
    ({"apostrophe_ends_line": True}, "'It does'", "'It does'"),
    (NO_MARK, "It goes on...\n\nand on", "It goes on...\nand on"),
    ({"min_words_per_line": 5}, "one two three four five.\none two three four.", "one two three four five."),
    ({"min_words_per_line": 4, "words_before_citations": True}, f"A.\n{CITED}", "Only  three words."),
    ({"min_words_per_line": 4}, f"A b c d.\n{CITED}", "A b c d."),
    ({}, "A[12] b[] c[citation needed] d[Edit] e[1,2].", "A b c d[Edit] e[1,2]."),
    ({"remove_citations": False}, "A[12].", "A[12]."),
    ({}, "A line.[1]\nAnother. [2]", "A line."),  # the end mark is looked for without citations
    ({"max_word_chars": 8}, f"{LONG} b.\n{LONG[1:]} b.", f"{LONG[1:]} b."),
    # white space around lines is an edit
    ({}, " A b.\n\nC d.\n", "A b.\nC d."),
    ({}, "A b.\r\nC d.", "A b.\nC d."),
    (NO_MARK, "[1] \u00a0A b.\nC d [2]", "A b.\nC d"),
]

FILLING = "so it is and so it was"
ANY_SHARE = {"max_removed": 1}
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
CUT: list[tuple[str, str | None, dict[str, Any]]] = [
    *((line, None, options) for line, options in REMOVED),
    *((line, line, options) for line, options in KEPT),
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
]


def _between(line: str | None) -> str:
    return "\n".join([FILLING, *([] if line is None else [line]), FILLING])


LINE_EDITS = [(ANY_SHARE | options, _between(line), _between(rest)) for line, rest, options in CUT]


@pytest.mark.parametrize(
    ("kind", "options", "text", "expected"),
    [*((C4Quality, LONE | row[0], *row[1:]) for row in C4_EDITS), *((LineRules, *row) for row in LINE_EDITS)],
)
def test_lines_are_edited_by_their_rule(kind: type[Filter], options: dict[str, Any], text: str, expected: str) -> None:
    assert edited(kind, options, text) == expected


LOREM = "Fine.\nLorem Ipsum dolor."
PAGE = "éééé\nfour\nabc\nabcde"
DROPS: list[tuple[dict[str, Any], str, str | None, float]] = [
    ({}, LOREM, "lorem_ipsum", 1),
    ({}, LOREM[:-1], None, 0),  # the line goes first
    ({"drop_lorem_ipsum": False}, LOREM, None, 0),
    ({}, "a { b.\nc { d.", "curly_bracket", 2),
    ({}, "javascript { b.\n} d.\n{", None, 0),
    ({"drop_curly_brackets": False}, "a { b.", None, 0),
    ({"min_sentences": 4}, "One is. Two are.\nThree here. Four there\nFive.", "too_few_sentences", 3),
    ({"max_chars": 4}, "é\n\nb.", "too_many_chars", 5),  # of the page as it came
    ({"min_long_lines": 4, "long_line_chars": 4}, PAGE, "too_few_long_lines", 3),
    *(
        (NO_MARK | {"min_sentences": 100}, text, "too_few_sentences", number)
        for text, number in (
            ("Mr. Smith met Dr. J. R. Jones of the U.S. at 9 a.m. in St. Louis, e.g. by car.", 1),
            ("He went. She stayed! Why? Who knows...", 4),
            ("“It is.” “Is it?” (It is.) So.", 4),
            ("Begin.End it.And so on.", 3),
            ("See www.Example.com or a.B@example.org now.", 1),
            ("Wait... what? Well… no.", 2),
            ("It cost 25g. of 3.5 kg. No more.", 2),
            ("中。 文。 字！", 3),
        )
    ),
]


@pytest.mark.parametrize(("options", "text", "rule", "value"), DROPS)
def test_c4_page_is_decided_by_rule_and_value(options: dict[str, Any], text: str, rule: str | None, value: float) -> None:
    assert_decides(C4Quality, LONE | options, text, rule, value)


def test_profiles_hold_the_published_values_and_given_values_win() -> None:
    names = ("min_sentences", "min_words_per_line", "words_before_citations", "need_end_mark", "apostrophe_ends_line")
    values = {name: [getattr(C4Quality(profile=name), one) for one in names] for name in ("paper", "datatrove", "fineweb")}
    assert values["paper"] == [3, 5, False, True, False]
    assert values["datatrove"] == [5, 3, True, True, True]
    assert values["fineweb"] == [5, 3, True, False, True]
    assert C4Quality.model_validate({"profile": "datatrove", "min_sentences": 1}).min_sentences == 1
    names = ("max_removed", "max_uppercase", "max_numeric", "min_words", "max_phrase_words", "any_after_read_more")
    assert [getattr(LineRules(), name) for name in names] == [0.05, 0.5, 0.999999, 2, 10, True]
    assert not LineRules(profile="refinedweb").any_after_read_more
    assert LineRules(profile="refinedweb", any_after_read_more=True).any_after_read_more


WRONG = [(C4Quality, {"profile": "gopher"}), (LineRules, {"profile": "gopher"}), (LineRules, {"symbol_lines": "a"})]


@pytest.mark.parametrize(("kind", "options"), WRONG)
def test_options_that_do_not_fit_are_refused(kind: type[Filter], options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        kind.model_validate(options)


def test_edits_of_a_batch_leave_the_neighbours_alone() -> None:
    result = C4Quality.model_validate(LONE).process(batch_of(["One.\ntwo", "a { b.", "Three.[1]", ""]))
    assert result.keep.tolist() == [True, False, True, True]
    assert result.columns["text"].filter(pa.array(result.keep)).to_pylist() == ["One.", "Three.", ""]
    texts = [f" {FILLING} \n\n\n", f"Home\n\n {FILLING}\nHome", f"\r\n{FILLING}"]  # white space around edited texts alone goes
    stage = LineRules(max_removed=1)
    assert stage.process(batch_of(texts)).columns["text"].to_pylist() == [texts[0], FILLING, texts[2]]
    assert "text" not in stage.process(batch_of(texts[::2])).columns
    unchanged = C4Quality().process(batch_of(["The first line of all.\nThe second line of all. And more."]))
    assert unchanged.keep.all() and "text" not in unchanged.columns


def test_line_rules_too_much_removed_drops_the_document() -> None:
    stage, words = LineRules(), " ".join(["word"] * 19)
    batch = batch_of([f"{words}\nHome", f"{words[5:]}\nHome", "Home", "- - -", ""])
    result = stage.process(batch)
    assert reasons(stage, batch) == [None] + ["too_much_removed"] * 4
    assert result.value[1:].tolist() == [pytest.approx(1 / 19), 1, 1, 1]
    assert result.columns["text"][0].as_py() == words
    assert reasons(LineRules(min_words=1), batch_of(["Word"])) == [None]


LINES = ["||", "SHOUT IT", "123", "3 likes", "Home", "items in cart", "so it is items in cart"]
LINE_COUNTS = ["symbol_lines_removed", "uppercase_lines", "numeric_lines", "counter_lines", "short_lines"]
C4_LINES = f"Kept it is.\nno mark\nGo.\nUse cookies now.\nJavascript it is.\n{'x' * 1001} a b."
C4_COUNTS = ["long_word_lines", "lines_without_end_mark", "short_lines", "javascript_lines", "policy_lines"]


@pytest.mark.parametrize(
    ("stage", "texts", "counts"),
    [
        (
            C4Quality.model_validate(LONE | {"min_words_per_line": 3}),
            [C4_LINES, f"{C4_LINES}\nA {{ too many."],
            dict.fromkeys(C4_COUNTS, 1),
        ),
        (
            LineRules(symbol_lines="|"),
            ["\n".join([*[FILLING] * 100, *LINES]), "\n".join(LINES)],
            dict.fromkeys(LINE_COUNTS, 1) | {"phrase_lines": 2},
        ),
    ],
)
def test_counts_have_what_is_removed_from_kept_documents(stage: Filter, texts: list[str], counts: dict[str, int]) -> None:
    result = stage.process(batch_of(texts))
    assert result.keep.tolist() == [True, False]
    assert set(stage.counts) == set(counts)
    assert {name: result.columns[name].to_pylist() for name in counts} == {name: [one, 0] for name, one in counts.items()}
