"""Which text is changed, and that normalized text passes unchanged."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.columns import make_keys
from datapipe.stage.documents import BASE_FIELDS, DocumentBatch
from stages.normalize.unicode import Unicode

FORMS = ["NFC", "NFKC", "NFD", "NFKD"]
HOSTILE = st.text(
    st.sampled_from("ab\r\n\x0b\x1c\0\ufeff\u2028e\u0301\u0327\u1100\u1161\u11a8ﬁÅ한") | st.characters(codec="utf-8")
)


def _batch(texts: list[str]) -> DocumentBatch:
    keys = make_keys(1, np.arange(len(texts), dtype=np.uint64))
    columns = [keys, pa.array(["a"] * len(texts), pa.large_string()), pa.array(texts, pa.large_string())]
    return DocumentBatch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(BASE_FIELDS)))


def _normalized(texts: list[str], **options: Any) -> list[str]:
    batch = _batch(texts)
    return batch.with_columns(Unicode.model_validate(options).process(batch)).texts.to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\nd", "a\nb\nc\nd"),
        ("a\r\r\n\n\rb", "a\n\n\n\nb"),
        ("a\x0bb\x0cc\u2028d\u2029e", "a\nb\nc\nd\ne"),
        ("a\0b\x01\x7fc\td", "abc\td"),
        ("a\x1cb\x1fc", "a b c"),
        ("\ufeff\0\ufeffa\ufeffb", "a\ufeffb"),
        ("e\0\u0301", "é"),
        ("e\u0301 Å \u1112\u1161\u11ab", "é Å 한"),
        ("ﬁ ² ａ", "ﬁ ² ａ"),
        ("\x85\u200b\u2060", "\x85\u200b\u2060"),
    ],
)
def test_unicode_defaults_change_what_they_say(text: str, expected: str) -> None:
    assert _normalized([text]) == [expected]


def test_unicode_compatibility_form_folds_presentation() -> None:
    assert _normalized(["ﬁ ² ａ \xa0"], form="NFKC") == ["fi 2 a  "]


def test_unicode_decomposed_form_splits_accents() -> None:
    assert _normalized(["é", "plain", "한"], form="NFD") == ["e\u0301", "plain", "\u1112\u1161\u11ab"]


def test_unicode_newlines_alone_leave_controls() -> None:
    assert _normalized(["\ufeffa\r\nb\0\x0c"], strip_control=False) == ["\ufeffa\nb\0\n"]


def test_unicode_controls_alone_leave_no_glued_words() -> None:
    assert _normalized(["\ufeffa\r\nb\rc\x0cd\0e\u2028f"], fix_newlines=False) == ["a\nb c de\u2028f"]


def test_unicode_nothing_on_leaves_all_but_the_form() -> None:
    assert _normalized(["\ufeff\r\0e\u0301"], fix_newlines=False, strip_control=False) == ["\ufeff\r\0é"]


def test_unicode_text_in_order_is_passed_on_uncopied() -> None:
    batch = _batch(["plain", "“quoted” café\n\tmore", "中文。", "한국어", "😀"])
    assert Unicode().process(batch) == {}


def test_unicode_slice_of_a_batch_is_read_where_it_is() -> None:
    batch = _batch(["x\r", "a\r\nb", "e\u0301", "y\r"]).slice(1, 3)
    assert batch.with_columns(Unicode().process(batch)).texts.to_pylist() == ["a\nb", "é"]


@pytest.mark.medium
@settings(deadline=None)
@given(st.lists(HOSTILE, max_size=5), st.sampled_from(FORMS))
def test_unicode_any_text_is_in_the_form_and_the_stage_is_idempotent(texts: list[str], form: str) -> None:
    once = _normalized(texts, form=form)
    assert once == _normalized(once, form=form)
    assert pc.utf8_normalize(pa.array(once, pa.large_string()), form=form).to_pylist() == once


@pytest.mark.medium
@settings(deadline=None)
@given(st.lists(HOSTILE, max_size=5), st.sampled_from(FORMS))
def test_unicode_form_alone_is_that_of_the_standard(texts: list[str], form: Any) -> None:
    known = ["".join(character for character in text if unicodedata.category(character) != "Cn") for text in texts]
    expected = [unicodedata.normalize(form, text) for text in known]
    assert _normalized(known, form=form, fix_newlines=False, strip_control=False) == expected
