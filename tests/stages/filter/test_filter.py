"""Filters that measure the text: what each rule measures, and that the text passes at a limit of that value."""

import base64
import math
from typing import Any

import pytest
from pydantic import ValidationError

from datapipe.stage import Filter
from stages.filter.code_quality import CodeQuality
from stages.filter.fineweb_quality import FinewebQuality
from stages.filter.gopher_quality import GopherQuality
from stages.filter.gopher_repetition import GopherRepetition
from stages.filter.length import Length
from tests.support.decisions import assert_decides, decision, reasons
from tests.support.global_stages import batch_of

PROFILES = ("paper", "datatrove", "dclm")
Case = tuple[dict[str, Any], str, str | None, float]
"""Options, a text, the rule that drops it or None, and the value."""

# ------------------------------------------------------------------------------------------------ source files

_LIMITS = ("max_lines", "max_mean_line_length", "max_line_length", "min_alphanumeric", "min_alphabetic")
FREE_CODE: dict[str, Any] = dict.fromkeys((*_LIMITS, "max_encoded_run", "max_encoded_share")) | {
    "generated_marks": [],
    "drop_xml": False,
}
"""Every rule is off."""

CODE = "def area(width, height):\n    # the area of a rectangle\n    return width * height\n"
WIDE = "  é中\t\n\nab"
MIXED = "aé中1٣+-*/\n"
MARKS = {"generated_marks": ["auto-generated", "Do not edit"]}
BEHIND = "\n\n\n\n\n# auto-generated\n"
XML = '<?xml version="1.0"?>'

CODE_CASES: list[tuple[dict[str, Any], str, str | None, float]] = [
    ({"max_lines": 1}, "a\nb\n", "too_many_lines", 2),
    ({"max_lines": 1}, "a\nb", "too_many_lines", 2),  # the last line needs no newline
    ({"max_lines": 1}, "\n\n", "too_many_lines", 2),
    ({"max_lines": 0, "max_mean_line_length": 0, "max_line_length": 0, "max_encoded_share": 0}, "", None, 0),
    ({"max_line_length": 4}, WIDE, "line_length", 5),  # in characters, as they stand
    ({"max_mean_line_length": 2}, WIDE, "mean_line_length", 7 / 3),
    ({"max_line_length": 2}, "ab\r\n", "line_length", 3),
    ({"min_alphanumeric": 0.6}, MIXED, "too_few_alphanumeric", 0.5),
    ({"min_alphabetic": 0.5}, MIXED, "too_few_alphabetic", 0.3),
    ({"min_alphabetic": 0.6}, "ab1+", "too_few_alphabetic", 0.5),
    (MARKS, "\n\n\n\n# AUTO-Generated\n", "generated", 1),
    (MARKS, "// DO NOT EDIT", "generated", 1),
    (MARKS, BEHIND, None, 0),
    (MARKS | {"generated_lines": 6}, BEHIND, "generated", 1),
    (MARKS, "# auto-\ngenerated, do  not edit", None, 0),
    ({"drop_xml": True}, "é" * 86 + XML, "xml", 1),  # in the first 100 characters
    ({"drop_xml": True}, "é" * 87 + XML, None, 0),
    ({"max_encoded_share": 0}, "\n".join(["12"] * 30) + ";" * 11, "encoded_share", 0.89),  # runs of two kinds count once
    ({"max_encoded_run": 1023}, "A" * 1024 + ";" + "A" * 1024, "encoded_run", 1024),
]

ENCODED_RUNS = [
    ("A" * 64, 64),
    ("A" * 63, 0),
    (base64.encodebytes(bytes(90)).decode(), 122),
    (",".join(["0x1f"] * 8), 39),
    (",".join(["0x1f"] * 7), 0),
    ("de ad be ef 00 11 22 33 ", 24),
    (r"\x48\x31\xc0\x50\x68\x2f\x2f\x73\x68", 32),  # the first has no border before it, as in the published expression
    (r"\u00e9" * 8, 48),
    (r"\u00e9" * 7, 0),
    ("0x1f, " * 100, 0),
]
for run, length in ENCODED_RUNS:
    text = f'x = "{run}"; y = 1'
    CODE_CASES.append(({"max_encoded_run": 0}, text, "encoded_run" if length else None, length))
    CODE_CASES.append(({"max_encoded_share": 0}, text, "encoded_share" if length else None, length / len(text)))

# ------------------------------------------------------------------------------------------------ web pages

FREE_FINEWEB = {"min_ended_lines": 0, "max_short_lines": 1, "max_duplicate_line_chars": 9, "max_newlines_per_word": 9}

ENDED = "One.\nTwo\n\nThree?\nFour. \nFive.\r\n"  # white space behind the stop is the last character
THIRTY = "é" * 30 + "\n" + "x" * 31
PER_WORD = "one, two\n\nthree\n"  # four words as spaCy cuts, three between white space
FINEWEB_CASES: list[tuple[dict[str, Any], str, str | None, float]] = [
    *(({}, text, "empty", 0) for text in ("", "\n \n\t", "\u3000")),
    ({"min_ended_lines": 0.5}, ENDED, "too_few_ended_lines", 2 / 5),
    *(({"min_ended_lines": 1}, f"word{end}", None, 0) for end in ".!。।؟"),
    *(({"min_ended_lines": 1}, f"word{end}", "too_few_ended_lines", 0) for end in (",", '."', ")", "…")),
    ({"min_ended_lines": 0.1}, "one\ntwo", "too_few_ended_lines", 0),
    ({"min_ended_lines": 0.1, "allow_no_ended_lines": True}, "one\ntwo", None, 0),
    ({"min_ended_lines": 0.6, "sentence_ends": ";"}, "one;\ntwo", "too_few_ended_lines", 0.5),
    ({"max_short_lines": 0.4}, THIRTY, "short_lines", 0.5),  # of at most 30 characters
    ({"max_short_lines": 0.4}, f" {THIRTY}", None, 0),  # 31 with the white space
    ({"max_duplicate_line_chars": 0.2}, "abcd\nef\nabcd\n abcd\n", "duplicate_line_chars", 4 / 15),  # newlines do not count
    ({"max_newlines_per_word": 0.5}, PER_WORD, "newlines_per_word", 3 / 4),
    ({"max_newlines_per_word": 0.5, "words": "whitespace"}, PER_WORD, "newlines_per_word", 1),
]

LEAST = {"min_words": 0, "min_mean_word_length": 0, "min_letter_words": 0, "min_stop_words": 0}
MOST = {"max_mean_word_length": 1e9, "max_hash_ratio": 1e9, "max_ellipsis_ratio": 1e9}
FREE_QUALITY = LEAST | MOST | {"max_bullet_lines": 1, "max_ellipsis_lines": 1}

MEAN = "é 中文! ---------"
BULLETS = "- a\n\n  • b\r\n* c\n ● d\nplain"
ENDS = "read more...  \n\nand…\r\n... not here\nnor here."
DATATROVE, DCLM = {"profile": "datatrove"}, {"profile": "dclm"}
SIGNS = "Well, it is so: yes."  # Well , it is so : yes .
THEM = "The cat, and (to) them"
UNSPACED = "吾輩は猫である。名前はまだ無い。"

QUALITY_CASES: list[tuple[dict[str, Any], str, str | None, float]] = [
    ({"min_words": 50}, "\u3000", "too_few_words", 0),
    ({"min_words": 50}, " \n\t", "too_few_words", 0),
    ({}, "", None, 0),
    ({"min_words": 3}, "one, -- 2 … + ☺ !", "too_few_words", 2),  # words without letters or digits do not count
    ({"max_words": 2}, "a b c", "too_many_words", 3),
    ({"min_mean_word_length": 3}, MEAN, "mean_word_length_low", 2),
    ({"max_mean_word_length": 1.5}, MEAN, "mean_word_length_high", 2),
    ({"max_hash_ratio": 0.7}, "##a b# c d", "hash_ratio", 0.75),
    ({"max_ellipsis_ratio": 0.5}, "a... b… ...... c.. d", "ellipsis_ratio", 0.8),
    ({"max_ellipsis_ratio": 0}, "a. . . b", None, 0),
    ({"max_bullet_lines": 0.7}, BULLETS, "too_many_bullet_lines", 0.8),  # of the lines that are not blank
    ({"max_bullet_lines": 0, "bullets": ""}, BULLETS, None, 0),
    ({"max_ellipsis_lines": 0.3}, ENDS, "too_many_ellipsis_lines", 0.5),
    ({"min_letter_words": 0.8}, "1 2nd é 中 -", "too_few_letter_words", 0.6),
    # stop words
    ({"min_stop_words": 2}, "The dog and cat", None, 0),
    ({"min_stop_words": 2}, "“THE” (of)", None, 0),
    ({"min_stop_words": 2}, "¿with? ...that…", None, 0),
    ({"min_stop_words": 2}, "have*have*the the 'be'", None, 0),
    ({"min_stop_words": 2}, "the The THE", "too_few_stop_words", 1),
    ({"min_stop_words": 2}, "then andy t'he", "too_few_stop_words", 0),
    ({"min_stop_words": 2}, "ofthe to", "too_few_stop_words", 1),
    ({"min_stop_words": 3}, "tHe oF aNd thE", None, 0),
    ({"min_stop_words": 1}, "tHé oƑ", "too_few_stop_words", 0),
    # the first rule that fails gives the reason
    ({"min_words": 1, "max_hash_ratio": 0.1, "min_letter_words": 0.5}, "# #", "too_few_words", 0),
    ({"max_hash_ratio": 0.1, "min_letter_words": 0.5}, "# #", "hash_ratio", 1),
    # datatrove: signs are words, but not in the length; stop words as they stand; blank lines count
    (DATATROVE | {"min_words": 6}, SIGNS, "too_few_words", 5),
    (DATATROVE | {"min_letter_words": 0.7}, SIGNS, "too_few_letter_words", 5 / 8),
    ({"min_letter_words": 1.0}, SIGNS, None, 0),
    (DATATROVE | {"min_stop_words": 3}, THEM, "too_few_stop_words", 2),
    ({"min_stop_words": 3}, THEM, None, 0),
    (DATATROVE | {"max_bullet_lines": 0.4}, "- a\n\n- b\n\n", "too_many_bullet_lines", 0.5),
    ({"max_bullet_lines": 0.99}, "- a\n\n- b", "too_many_bullet_lines", 1),
    (DATATROVE | {"max_bullet_lines": 0}, "* a\n* b", None, 0),
    # dclm: symbols are summed, spaced ellipses count, stop words may repeat, the length is in words of fastText
    (DCLM | {"max_hash_ratio": 0.49}, "# one . . . two…", "hash_ratio", 0.5),
    (DCLM | {"max_ellipsis_lines": 0.4}, "and so . . .\nno", "too_many_ellipsis_lines", 0.5),
    (DCLM | {"min_words": 4}, "one - two - three", "too_few_words", 3),
    (DCLM | {"min_words": 3}, "(hello) " * 60 + "the of", "too_few_words", 2),
    (DCLM | {"min_mean_word_length": 2.7}, "one - two - three", "mean_word_length_low", 13 / 5),
    (DCLM | {"min_words": 4, "words": "unicode"}, "re-use (it)", "too_few_words", 3),
    (DCLM | {"min_stop_words": 3}, "The the THE", None, 0),
    (DCLM | {"min_stop_words": 3}, "The the, THE", "too_few_stop_words", 2),
    (DCLM | {"min_stop_words": 1}, "tHé oƑ", "too_few_stop_words", 0),
    *(
        (DCLM | {"min_words": words + 1}, text, "too_few_words", words)
        for text, words in (
            ("one\u00a0two three", 2),  # fastText separates at ASCII white space
            ("one\u3000two\u2028three\x85four\x1cfive", 1),
            ("one\0two\vthree\ffour\r\nfive", 5),
            ("don't re-use x.y.z", 3),
            ("_one “two” three 4th ½ Ⅳ", 4),
            ("吾輩は猫である。 名前はまだ無い。", 2),
            ("\u0301a ّب ①", 1),
        )
    ),
    # scripts without spaces are counted by character where that is asked for
    ({"min_words": 15, "words": "unicode"}, UNSPACED, "too_few_words", 14),
    ({"min_words": 2}, UNSPACED, "too_few_words", 1),
]
QUALITY_CASES.append((DCLM | {"max_words": 2}, "a b c", "too_many_words", 3))

# ------------------------------------------------------------------------------------------------ repetition

FREE_REPETITION = {option: 1e9 for option in GopherRepetition.model_fields if option.startswith("max_")}

LINES = "one\ntwo\n\n  one\r\none\nthree"
PARAGRAPHS = "one\ntwo\n\nthree\n \n\none \n two\n\ntwo\none"
SEEN = " ".join("abcde" * 3)
WORLD = "Hello, World.\n\nHello, World.\n\nHello, World.\nHello"

MEASURES: dict[str, list[tuple[str, str, float]]] = {
    "paper": [
        ("duplicate_lines", LINES, 2 / 5),  # copies count from the second on
        ("duplicate_line_chars", LINES, 6 / 17),
        ("duplicate_paragraphs", PARAGRAPHS, 1 / 4),
        ("duplicate_paragraph_chars", PARAGRAPHS, 6 / 23),
        ("duplicate_paragraphs", "a\n \nb\n\nb", 1 / 3),
        ("top_2_gram", "aa b x aa b y aa b z", 9 / 12),  # all occurrences of the most frequent one
        ("top_3_gram", "aa b x aa b y aa b z", 0),
        ("top_2_gram", "a b 1 a b 2 cc dd 3 cc dd", 8 / 15),  # the longest of equally frequent ones
        ("top_3_gram", "a a a a a a", 12 / 6),  # overlapping occurrences may exceed the whole
        ("top_2_gram", "a b A b a b.", 0),
        ("top_2_gram", "ab c a bc", 0),
        ("duplicate_5_grams", SEEN, 1),
    ],
    "datatrove": [  # lines are raw, and shares are of the text
        ("duplicate_lines", "one\ntwo\n one\none", 1 / 4),
        ("duplicate_line_chars", "one\ntwo\n one\none", 3 / 16),
        ("duplicate_lines", "\nab\n", 1 / 3),  # empty lines at both ends
        ("duplicate_lines", "\nab", 0),
        ("duplicate_paragraph_chars", "a\nb\n\na\nb", 3 / 8),
        ("top_2_gram", "one three two", 9 / 13),  # the first of n-grams that occur once
        ("top_2_gram", "a b, a b", 6 / 8),
        ("top_3_gram", "a b", 0),
        ("duplicate_5_grams", SEEN, 10 / 29),  # an n-gram that was seen is passed over
        ("duplicate_6_grams", SEEN, 6 / 29),
    ],
    "dclm": [  # first occurrences count, and words are without signs
        ("duplicate_lines", "one\ntwo\none\nthree", 2 / 4),
        ("duplicate_line_chars", "one\ntwo\none", 6 / 9),
        ("top_2_gram", "a b, x (a b) y", 4 / 6),
        ("duplicate_paragraph_chars", WORLD, 26 / 45),  # between empty lines, with their newlines
        ("duplicate_paragraphs", "a\n \nb\n\nb\n\na\n \nb", 2 / 3),
        ("duplicate_paragraphs", "a\r\n\r\na", 0),
        ("duplicate_paragraphs", "\n\n\na b\n\n\n\n\n a b \n", 1),
        ("top_2_gram", "__a __b __a __b c", 0),  # words begin with a letter or a digit
        ("top_2_gram", "a_ b_ a_ b_ c", 8 / 9),
        ("top_2_gram", "Ⓐ1 b Ⓐ1 b c d", 0),
    ],
}
for profile in PROFILES:  # carriage returns make no lines
    MEASURES[profile] += [("duplicate_lines", f"one{end}two{end}three{end}four", 0) for end in ("\n\n", "\r\n\r\n", " \n \n")]
for n in range(5, 11):  # repeated n-grams mark each word once
    words = [f"w{place}" for place in range(n)]
    longer = [*words, "v1", "v2"]  # three n-grams that overlap
    MEASURES["paper"] += [
        (f"duplicate_{n}_grams", " ".join([*words, "x1", "x2", *words]), 4 * n / (4 * n + 4)),
        (f"duplicate_{n}_grams", " ".join([*longer, "x1", "x2", *longer]), (4 * n + 8) / (4 * n + 12)),
        (f"duplicate_{n}_grams", " ".join([*words, "x1", "x2", *words[1:]]), 0),
    ]
REPETITION_CASES: list[Case] = [
    ({"profile": profile, f"max_{rule}": 0}, text, rule if value else None, value)
    for profile, rows in MEASURES.items()
    for rule, text, value in rows
]

TABLES: dict[type[Filter], tuple[dict[str, Any], list[Case]]] = {
    CodeQuality: (FREE_CODE, CODE_CASES),
    FinewebQuality: (FREE_FINEWEB, FINEWEB_CASES),
    GopherQuality: (FREE_QUALITY, QUALITY_CASES),
    GopherRepetition: (FREE_REPETITION, REPETITION_CASES),
}


@pytest.mark.parametrize(
    ("kind", "options", "text", "rule", "value"),
    [(kind, free | options, *row) for kind, (free, cases) in TABLES.items() for options, *row in cases],
)
def test_filter_text_is_decided_by_rule_and_value(
    kind: type[Filter], options: dict[str, Any], text: str, rule: str | None, value: float
) -> None:
    assert_decides(kind, options, text, rule, value)


PROSE = "The people of the town came to the square, and those who have been there say that it was good.\n" * 3
DEFAULTS: list[tuple[type[Filter], dict[str, Any], str, str | None]] = [
    *((CodeQuality, {"profile": profile}, CODE, None) for profile in ("the_stack", "starcoder", "starcoder2")),
    (CodeQuality, {}, "", "too_few_alphabetic"),
    (GopherQuality, {}, PROSE, None),
    (GopherQuality, {}, "", "too_few_words"),
    *((GopherRepetition, {}, text, None) for text in ("", " \n ", "word", PROSE.splitlines()[0])),
]


@pytest.mark.parametrize(("kind", "options", "text", "rule"), DEFAULTS)
def test_filter_defaults_keep_good_text_without_a_value(
    kind: type[Filter], options: dict[str, Any], text: str, rule: str | None
) -> None:
    found, value = decision(kind, options, text)
    assert found == rule
    assert math.isnan(value) == (rule is None)


QUALITY = [50, 100_000, 3, 10, 0.1, 0.1, 0.9, 0.3, 0.8, 2]
REPETITION = [0.3, 0.3, 0.2, 0.2, 0.2, 0.18, 0.16, 0.15, 0.14, 0.13, 0.12, 0.11, 0.1]
PUBLISHED: list[tuple[type[Filter], dict[str, Any], list[float]]] = [
    (CodeQuality, {}, [100_000, 100, 1000, 0.25, 1024, 0.5, 0]),
    (FinewebQuality, {}, [1, 0.12, 0.67, 0.01, 0.3]),
    (FinewebQuality, {"profile": "paper"}, [1, 0.12, 0.67, 0.1, 0.3]),
    (FinewebQuality, {"language": "pt"}, [1, 0.077, 1, 0.1, 0.186]),
    *((GopherQuality, options, QUALITY) for options in ({}, *({"profile": profile} for profile in PROFILES))),
    *((GopherRepetition, options, REPETITION) for options in ({}, {"profile": "paper"}, {"profile": "dclm"})),
    (GopherRepetition, {"profile": "datatrove"}, [0.3, 0.2, 0.3, 0.2, *REPETITION[4:]]),  # paragraphs first
]


@pytest.mark.parametrize(("kind", "options", "limits"), PUBLISHED)
def test_filter_profiles_have_the_published_thresholds(
    kind: type[Filter], options: dict[str, Any], limits: list[float]
) -> None:
    assert [rule.limit for rule in kind.model_validate(options).rules()] == limits


def _code_limits(**options: Any) -> dict[str, Any]:
    return CodeQuality.model_validate(options).model_dump(exclude={"mode", "profile", "generated_lines"})


def test_code_quality_profiles_hold_what_was_published_and_given_values_win() -> None:
    stack = FREE_CODE | {"max_mean_line_length": 100, "max_line_length": 1000, "min_alphanumeric": 0.25, "generated_marks": ()}
    assert _code_limits(profile="the_stack") == stack
    assert _code_limits(profile="starcoder") == stack | {"min_alphabetic": 0.25, "drop_xml": True}
    assert _code_limits() == _code_limits(profile="starcoder2")
    assert [rule.limit for rule in CodeQuality().rules()] == [100_000, 100, 1000, 0.25, 1024, 0.5, 0]
    changed = {"max_line_length": 7, "min_alphanumeric": None}
    assert _code_limits(profile="the_stack", **changed) == stack | changed


def test_code_quality_options_in_json_are_as_strict_as_without_a_profile() -> None:
    given = '{"profile": "the_stack", "generated_marks": ["do not edit"], "max_mean_line_length": 80}'
    stage = CodeQuality.model_validate_json(given, strict=True)
    assert stage.generated_marks == ("do not edit",)
    assert stage.min_alphabetic is None
    for wrong in ('{"profile": "the_stack", "max_lines": "7"}', '{"profile": "starcoder3"}', '{"generated_marks": [""]}'):
        with pytest.raises(ValidationError):
            CodeQuality.model_validate_json(wrong, strict=True)


def test_gopher_quality_profile_and_language_fill_in_what_is_not_given() -> None:
    dclm = GopherQuality.model_validate({"profile": "dclm", "bullets": "-"})
    assert (dclm.words, dclm.stop_word_match, dclm.bullets) == ("whitespace", "folded", "-")
    german = GopherQuality.model_validate({"language": "de", "min_words": 10})
    assert (german.profile, german.words, german.max_mean_word_length, german.min_words) == ("datatrove", "english", 15, 10)
    assert german.stop_words[:3] == ("der", "und", "die")
    assert GopherQuality.model_validate({"language": "jpn_Jpan"}).words == "dictionary"
    with pytest.raises(ValueError, match="'deu_Latn'"):
        GopherQuality.model_validate({"language": "deu_Latin"})


def test_gopher_repetition_datatrove_tries_paragraphs_first() -> None:
    limits = {"max_duplicate_lines": 0.1, "max_duplicate_paragraphs": 0.1, "max_top_2_gram": 0.1}
    for profile, rule in {"paper": "duplicate_lines", "datatrove": "duplicate_paragraphs"}.items():
        options = FREE_REPETITION | limits | {"profile": profile}
        assert decision(GopherRepetition, options, "a\n\n" * 30)[0] == rule


def test_gopher_repetition_language_takes_the_settings_of_fineweb_2() -> None:
    stage = GopherRepetition.model_validate({"language": "pt"})
    tops = (stage.max_top_2_gram, stage.max_top_3_gram, stage.max_top_4_gram)
    assert (stage.max_duplicate_lines, *tops, stage.max_duplicate_10_grams) == (0.287, 0.371, 0.191, 0.163, 0.108)
    assert (stage.max_duplicate_paragraphs, stage.max_duplicate_line_chars) == (1, 1)


TEXTS = ["", "one", "zwölf 中", "four words are here"]
LENGTHS = {"bytes": [0, 3, 10, 19], "chars": [0, 3, 7, 19], "words": [0, 1, 2, 4]}


@pytest.mark.parametrize("unit", LENGTHS)
def test_length_each_unit_is_compared_with_its_limits(unit: str) -> None:
    shortest, least, most, longest = LENGTHS[unit]
    stage = Length.model_validate({f"min_{unit}": least, f"max_{unit}": most})
    assert reasons(stage, batch_of(TEXTS)) == [f"too_few_{unit}", None, None, f"too_many_{unit}"]
    assert stage.process(batch_of(TEXTS)).value[[0, 3]].tolist() == [shortest, longest]
    assert reasons(stage, batch_of(TEXTS).slice(2, 4)) == [None, f"too_many_{unit}"]


def test_length_first_rule_that_fails_gives_the_reason_and_no_rule_keeps_everything() -> None:
    assert reasons(Length(min_chars=5, min_words=2), batch_of(["one", "longer"])) == ["too_few_chars", "too_few_words"]
    assert reasons(Length(), batch_of(TEXTS)) == [None] * 4
