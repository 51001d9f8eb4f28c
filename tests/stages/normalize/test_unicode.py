"""Which text is changed, and that normalized text passes unchanged."""

import unicodedata
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.normalize.unicode import Unicode
from tests.support.global_stages import batch_of

FORMS = ["NFC", "NFKC", "NFD", "NFKD"]
HOSTILE = st.text(
    st.sampled_from("ab\r\n\x0b\x1c\0\ufeff\u2028e\u0301\u0327\u1100\u1161\u11a8ﬁÅ한") | st.characters(codec="utf-8")
)


def _normalized(texts: list[str], **options: Any) -> list[str]:
    batch = batch_of(texts)
    return batch.with_columns(Unicode.model_validate(options).process(batch)).texts.to_pylist()


NO_CONTROL, NO_NEWLINES = {"strip_control": False}, {"fix_newlines": False}
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "a\r\nb\rc\nd", "a\nb\nc\nd"),
    ({}, "a\r\r\n\n\rb", "a\n\n\n\nb"),
    ({}, "a\x0bb\x0cc\u2028d\u2029e", "a\nb\nc\nd\ne"),
    ({}, "a\0b\x01\x7fc\td", "abc\td"),
    ({}, "a\x1cb\x1fc", "a b c"),
    ({}, "\ufeff\0\ufeffa\ufeffb", "a\ufeffb"),
    ({}, "e\0\u0301", "é"),
    ({}, "e\u0301 Å \u1112\u1161\u11ab", "é Å 한"),
    ({}, "ﬁ ² ａ", "ﬁ ² ａ"),
    ({}, "\x85\u200b\u2060", "\x85\u200b\u2060"),
    ({"form": "NFKC"}, "ﬁ ² ａ \xa0", "fi 2 a  "),
    ({"form": "NFD"}, "é plain 한", "e\u0301 plain \u1112\u1161\u11ab"),
    (NO_CONTROL, "\ufeffa\r\nb\0\x0c", "\ufeffa\nb\0\n"),
    (NO_NEWLINES, "\ufeffa\r\nb\rc\x0cd\0e\u2028f", "a\nb c de\u2028f"),  # no words are glued
    (NO_NEWLINES | NO_CONTROL, "\ufeff\r\0e\u0301", "\ufeff\r\0é"),
]


@pytest.mark.parametrize(("options", "text", "expected"), CASES)
def test_unicode_options_change_what_they_declare(options: dict[str, Any], text: str, expected: str) -> None:
    assert _normalized([text], **options) == [expected]


def test_unicode_batch_is_read_where_it_is_and_passed_on_uncopied() -> None:
    assert Unicode().process(batch_of(["plain", "“quoted” café\n\tmore", "中文。", "한국어", "😀"])) == {}
    batch = batch_of(["x\r", "a\r\nb", "e\u0301", "y\r"]).slice(1, 3)
    assert batch.with_columns(Unicode().process(batch)).texts.to_pylist() == ["a\nb", "é"]


@pytest.mark.medium
@settings(deadline=None)
@given(st.lists(HOSTILE, max_size=5), st.sampled_from(FORMS))
def test_unicode_any_text_has_the_form_of_the_standard_and_stays_in_it(texts: list[str], form: Any) -> None:
    once = _normalized(texts, form=form)
    assert once == _normalized(once, form=form)
    assert pc.utf8_normalize(pa.array(once, pa.large_string()), form=form).to_pylist() == once
    known = ["".join(character for character in text if unicodedata.category(character) != "Cn") for text in texts]
    expected = [unicodedata.normalize(form, text) for text in known]
    assert _normalized(known, form=form, fix_newlines=False, strip_control=False) == expected
