"""Parts of a text after cuts, changes and redactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from datapipe.browse.document.parts import Part, after_redaction, after_stage, display_of, edits, text_of, with_cuts

TEXTS = st.text(st.sampled_from("ab@. \né\u202e"), max_size=40)


@given(TEXTS, TEXTS)
def test_edits_turn_one_text_into_the_other(before: str, after: str) -> None:
    out, position = [], 0
    for start, stop, new in edits(before, after):
        assert position <= start <= stop <= len(before)
        out += [before[position:start], new]
        position = stop
    assert "".join([*out, before[position:]]) == after


@given(TEXTS, st.lists(st.tuples(TEXTS, st.booleans()), max_size=3), st.integers(0, 40), st.integers(0, 40), TEXTS)
def test_parts_follow_the_text_of_every_stage_and_end_as_the_redacted_display(
    text: str, stages: list[tuple[str, bool]], first: int, second: int, display: str
) -> None:
    parts = [Part(text=text)]
    for after, redacts in stages:
        parts = after_stage(parts, after, "a stage", redacts=redacts)
        assert text_of(parts) == after
    before = text_of(parts)
    start, stop = sorted((min(first, len(before)), min(second, len(before))))
    parts = with_cuts(parts, [(start, stop)], "a cut") if start < stop else parts
    assert text_of(parts) == before[:start] + before[stop:]
    assert display_of(after_redaction(parts, display)) == display


def test_a_cut_stays_in_its_place_and_an_address_half_in_it_is_replaced_as_a_whole() -> None:
    parts = with_cuts([Part(text="Call me. Ann: a@b.org now")], [(0, 9), (16, 21)], "dedup.lines")
    assert [(part.text, part.kind) for part in parts] == [
        ("Call me. ", "cut"),
        ("Ann: a@", "kept"),
        ("b.org", "cut"),
        (" now", "kept"),
    ]
    shown = after_redaction(parts, "Call me. Ann: <EMAIL> now")
    assert [(part.text, part.kind) for part in shown if part.text] == [
        ("Call me. ", "cut"),
        ("Ann: ", "kept"),
        ("<EMAIL>", "replacement"),
        (" now", "kept"),
    ]
    [inside] = after_redaction([Part(text="Ann: a@b.org now", kind="cut", stage="dedup.lines")], "Ann: <EMAIL> now")
    assert inside == Part(text="Ann: <EMAIL> now", kind="cut", stage="dedup.lines")
