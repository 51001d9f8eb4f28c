"""Hostile JSON lines: which lines are documents, why others are rejected, and that no line affects its neighbours."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.stage import FieldNames, Split
from stages.read.jsonl import Jsonl
from tests.support.reader_results import ReadResult, input_file, read_file, read_splits, text_at


def _read(folder: Path, content: bytes, fields: FieldNames | None = None, name: str = "a.jsonl", **options: int) -> ReadResult:
    return read_file(Jsonl(**options), input_file(folder / name, content), fields)


def _stored(name: str, content: bytes) -> bytes:
    return gzip.compress(content) if name.endswith(".gz") else zstandard.compress(content) if name.endswith(".zst") else content


def _rejected(folder: Path, line: bytes) -> str:
    """Why a line between two good ones is rejected, which must be its only effect."""
    before, after = b'{"text": "before"}\n', b'\n{"text": "after"}\n'
    found = _read(folder, before + line + after)
    assert found.texts == ["before", "after"]
    assert (found.rejected_places, found.excerpts, found.is_damage) == ([len(before)], [line[:4096]], [False])
    return found.rejected[0][1]


def test_jsonl_plain_lines_are_documents_at_their_offsets(tmp_path: Path) -> None:
    content = b'{"text": "one", "id": "a"}\n{"id": "b", "text": "t\\u00e9\\n\\ud83d\\ude00"}\n{"text": ""}\n'
    found = _read(tmp_path, content)
    assert found.documents == [(0, "one", "a"), (27, "té\n😀", "b"), (72, "", None)]
    assert found.rejected == []
    assert found.input_bytes == len(content)


def test_jsonl_blank_lines_crlf_and_a_missing_last_newline_change_nothing(tmp_path: Path) -> None:
    found = _read(tmp_path, b'\n{"text": "a"}\r\n\r\n  \n \t{"text": "b"} \t\r\n\n{"text": "c"}')
    assert (found.documents, found.rejected) == ([(1, "a", None), (21, "b", None), (41, "c", None)], [])
    for blank in (b"\n", b"\n \n\t\r\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"):
        found = _read(tmp_path, blank)
        assert (found.documents, found.rejected) == ([], [])


def test_jsonl_byte_order_mark_is_skipped_at_the_start_of_a_file_only(tmp_path: Path) -> None:
    line = b'\xef\xbb\xbf{"text": "a"}\n'
    for name in ("a.jsonl", "a.jsonl.gz"):
        found = _read(tmp_path, _stored(name, line + line), name=name)
        assert (found.documents, found.rejected_places) == ([(3, "a", None)], [17])


BAD_LINES = [
    (b"[1]", "not a JSON object"),
    (b"text", "not a JSON object"),
    (b'{"text": "a"', "not a JSON object"),
    (b'{"text": "a"},', "not a JSON object"),
    (b'{"text": "a"}\x0c', "not a JSON object"),
    (b'{"text": "a"}\x00', "not a JSON object"),
    (b"\x00\x00\x00", "not a JSON object"),
    (b"{}", "field 'text' is missing or null"),
    (b'{"Text": "a"}', "field 'text' is missing or null"),
    (b'{"text": null}', "field 'text' is missing or null"),
    (b'{"text": 3}', "type number; expected string"),
    (b'{"text": ["a"]}', "type array; expected string"),
    (b'{"text": {"a": "b"}}', "type object; expected string"),
    (b'{"text": "a", "text": "b"}', "field 'text' occurs twice"),
    (b'{"text": "a"}{"text": "b"}', "2 JSON objects"),
    (b'{"text": "a"} {"text": "b"} {}', "3 JSON objects"),
    (b'{"text": "a\x00b"}', "a NUL byte"),
    (b'{"text": "a"}\x00{"text": "b"}', "a NUL byte"),
    (b'{"text": "\xff"}', "invalid UTF-8"),
    (b'{"text": "\xed\xa0\x80"}', "invalid UTF-8"),
    (b'{"text": "a", "\xff": 1}', "invalid UTF-8"),
    (b'{"text": "a\tb"}', "a raw control character"),
    (b'{"text": "a"}}', "text after the object"),
    (b'{"text": "a", "x": "\\ud800"}', "`lone_surrogates: replace`"),
    (b'{"text": "\\udc00a"}', "half a surrogate pair"),
    (b'{"text": "a", "x": "\\ud800\\u0041"}', "half a surrogate pair"),
    (b'{"text": "a", "x": 1e999}', "beyond the range of a 64-bit float"),
    (b'{"text": "a",}', "not valid JSON"),
    (b'{"text" "a"}', "not valid JSON"),
    (b'{"text": "\\x"}', "not valid JSON"),
    (b'{"text": "a", "x": 01}', "not valid JSON"),
    (b'{"text": "a", "x": [1,,2]}', "not valid JSON"),
    (b'{"text": "a" /* why */}', "not valid JSON"),
]
"""Lines that are no documents, and what is reported of each."""


@pytest.mark.parametrize(("line", "error"), BAD_LINES)
def test_jsonl_bad_line_is_rejected_alone_with_the_reason(tmp_path: Path, line: bytes, error: str) -> None:
    assert error in _rejected(tmp_path, line)


@pytest.mark.parametrize(
    "last",
    [
        b'{"text": "a"},',
        b'{"text": "a"}}',
        b'{"text": "a", "x": [1,,2]}',
        b'{"text": "a\tb"}',
        b'{"text": "\xff"}',
        b"not json",
        b"]",
        b'{"text": 5}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"text": "whole", "x": ' + b"7" * 5000 + b"}}",
        b'{"text": "with a newline at its e\n',
    ],
)
def test_jsonl_bad_last_line_is_one_bad_record_of_a_whole_file(tmp_path: Path, last: bytes) -> None:
    found = _read(tmp_path, b'{"text": "a"}\n' + last)
    assert (found.rejected_places, found.is_damage) == ([14], [False])


def test_jsonl_document_over_several_lines_is_rejected_line_by_line(tmp_path: Path) -> None:
    found = _read(tmp_path, b'{"text":\n"a"}\n{"text": "b", "x": {}\n}\n{"text": "c"}{"text": "d"}\n{"a": [{}\n{}]}\n')
    assert found.documents == []
    assert found.rejected_places == [0, 9, 14, 36, 38, 65, 75]


def test_jsonl_ids_of_any_type_are_kept_as_they_are_written(tmp_path: Path) -> None:
    written = ["1", "-0", "1.0", "1.10", "1e3", "9007199254740993", "123456789012345678901234567890", "true", '{"a": [1, "b"]}']
    strings = ['"\\u0000"', '"1"', '"2024-01-01"', '"2024-01-01T00:00:00Z"', '""', '"\\u00e9\\"\\\\"', "null"]
    lines = [f'{{"id": {value}, "text": "t"}}\n'.encode() for value in written + strings]
    expected = [*written, "\0", "1", "2024-01-01", "2024-01-01T00:00:00Z", "", 'é"\\', None]
    assert _read(tmp_path, b"".join(lines)).ids == expected
    assert [_read(tmp_path, line).ids[0] for line in lines] == expected


def test_jsonl_kept_fields_are_strings_or_json_text(tmp_path: Path) -> None:
    content = b"""{"text": "a", "url": "http://x", "score": 0.50, "meta": {"lang": "en", "tags": [1, "}"]}}
{"score": null, "meta": {"lang": 7}, "text": "b"}
{"text": null, "score": 9}
{"text": "c", "meta": "none", "url": ["u"], "sc\\u006fre": -1}
"""
    found = _read(tmp_path, content, FieldNames(keep=("url", "score", "meta", "meta.lang")))
    assert found.texts == ["a", "b", "c"]
    assert found.extra == {
        "url": ["http://x", None, '["u"]'],
        "score": ["0.50", None, "-1"],
        "meta": ['{"lang": "en", "tags": [1, "}"]}', '{"lang": 7}', "none"],
        "meta.lang": ["en", "7", None],
    }


def test_jsonl_deep_nesting_and_long_numbers_beside_the_text_do_no_harm(tmp_path: Path) -> None:
    deep = b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b', "text": "deep", "id": 1}\n'
    long = b'{"x": ' + b"7" * 10_000 + b', "text": "long", "id": 2}\n'
    found = _read(tmp_path, deep + b"bad\n" + long)
    assert list(zip(found.texts, found.ids)) == [("deep", "1"), ("long", "2")]
    assert found.rejected_places == [len(deep)]


def test_jsonl_line_of_the_most_bytes_is_a_document_and_one_byte_more_is_none(tmp_path: Path) -> None:
    fits, long = b'{"text": "%s"}\n' % (b"a" * 1012), b'{"text": "%s"}\n' % (b"b" * 1013)
    for content, places in ((fits + long + fits, [1025]), (fits + long + fits[:-1], [1025]), (long[:-1], [0])):
        found = _read(tmp_path, content, max_line_bytes=1024)
        assert found.rejected_places == places
        assert set(found.texts) <= {"a" * 1012} and len(found.texts) == 2 * places[0] // 1025


@pytest.mark.medium
@pytest.mark.parametrize("filler", [b" ", b"\xff", b"x"])
def test_jsonl_line_too_long_is_rejected_for_its_length_whatever_it_holds(tmp_path: Path, filler: bytes) -> None:
    """Whether its end is at hand depends on where ranges are cut, so what is in it must not matter."""
    file = input_file(tmp_path / "a.jsonl", b'{"text": "a"}\n' + filler * (5 << 20) + b'\n{"text": "b"}\n' + filler * 3000)
    places = [14, 14 + (5 << 20) + 1 + 14]
    for target_bytes in (1 << 30, 3 << 20, 1000):
        found = read_splits(Jsonl(max_line_bytes=2000), Jsonl().cut(file, target_bytes))
        assert found.texts == ["a", "b"]
        assert found.rejected_places == places
        assert {error.split(",")[0] for _, error in found.rejected} == {"a line of more than 2000 bytes"}


@pytest.mark.parametrize("content", [b"[", b" [\n", b'[\n  {"te'])
def test_array_that_is_cut_off_near_its_beginning_is_damage(tmp_path: Path, content: bytes) -> None:
    found = _read(tmp_path, content)
    assert (found.documents, any(found.is_damage)) == ([], True)


_LINES = [
    *(line for line, _ in BAD_LINES),
    b'{"text": "a", "id": 1}',
    b'{"id": 1.0, "text": "\xc3\xa9"}',
    b'{"text": "c", "id": {"a": [null]}, "k": 9007199254740993}',
    b'{"text": "d", "k": {"z": "}{"}}',
    b' {"text": ""}\r',
    b'{"text":',
    b'"e"}',
    b'{"text": "f", "x": {}',
    b"}",
    b'{"x": [{}',
    b"{}]}",
    b"\xef\xbb\xbf{}",
    b"",
    b" \t",
    b"{{}}",
    b'{"text": {"a": "nested"}}',
    b'{"text": "a", "id": 1, "id": 2}',
    b'{"text": "h", "id": -1.50e-3, "k": NaN}',
    b'{"text": "i", "id": null, "k": [1, "\xe4\xb8\xad"]}',
    b'{"text": "k", "k": "\xc3("}',
    b'\t{\t"text"\t:\t"o"\t}\t',
    b'{"text": "p\\u0000"}',
    b'{"text": "' + b"long " * 20_000 + b'"}',
    b'{"text": "deep", "k": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"text": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
]
_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda one: st.lists(one, max_size=3))
_OBJECTS = st.dictionaries(st.sampled_from(["text", "id", "k", "x"]), _JSON | st.text(), max_size=4)
_ANY_LINE = (
    st.sampled_from(_LINES)
    | _OBJECTS.map(lambda one: json.dumps(one).encode())
    | st.binary(max_size=20).map(lambda b: b.replace(b"\n", b""))
).filter(lambda line: not line.lstrip().startswith(b"["))  # which alone may begin a JSON text over lines


@pytest.mark.medium
@settings(max_examples=25, deadline=None)
@given(lines=st.lists(_ANY_LINE, max_size=30))
def test_jsonl_a_line_among_others_reads_as_it_does_alone(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("lines")
    fields = FieldNames(keep=("k",))
    together = _read(folder, b"\n" + b"\n".join(lines) + b"\n", fields)
    documents, rejected, kept, place = [], [], [], 0
    for line in lines:
        alone = _read(folder, b"\n" + line + b"\n", fields)
        documents += [(at + place, text, one) for at, text, one in alone.documents]
        rejected += [(at + place, error) for at, error in alone.rejected]
        kept += alone.extra.get("k", [])
        place += len(line) + 1
    assert (together.documents, together.rejected, together.extra.get("k", [])) == (documents, rejected, kept)


@pytest.mark.medium
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_jsonl_byte_ranges_of_every_size_read_the_same_documents(tmp_path: Path, bom: bytes) -> None:
    lines = [b'{"text": "a"}', b"", b'{"text": "bcd"}\r', b"bad", b'{"text": "\xc3\xa9\xe4\xb8\xad"}', b" ", b'{"text": "e"}']
    for content in (bom + b"\n".join(lines), bom + b"\n".join(lines) + b"\n\n"):
        file = input_file(tmp_path / "a.jsonl", content)
        whole = read_file(Jsonl(), file)
        assert len(whole.documents) == 4
        for size in range(1, len(content) + 1):
            borders = [*range(0, len(content), size), len(content)]
            found = read_splits(Jsonl(), [Split(file=file, start=start, stop=stop) for start, stop in pairwise(borders)])
            assert found.told == whole.told


@pytest.mark.medium
def test_jsonl_lines_longer_than_a_block_are_read_by_the_range_they_begin_in(tmp_path: Path) -> None:
    texts = ["a" * 10, "b" * (5 << 20), "c" * 20, "d" * (9 << 20), "e"]
    file = input_file(tmp_path / "a.jsonl", b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    found = read_splits(Jsonl(), Jsonl().cut(file, 1 << 20))
    assert found.texts == texts


_VALUES = st.sampled_from(["x", "", None, 7, ["l"], {"b": "in", "b.c": 1}, {"b": None}, {"b": 3}, {}])


def _named(record: dict, texts_only: bool) -> str | None:
    """The field "a.b" as it is meant: the member b of a where it has a value, otherwise the key of this name."""
    inner = record.get("a")
    for value in (inner.get("b") if isinstance(inner, dict) else None, record.get("a.b")):
        if isinstance(value, str):
            return value
        if value is not None and not texts_only:
            return json.dumps(value)
    return None


def _line_of(record: dict, is_escaped: bool) -> bytes:
    line = json.dumps(record)
    return (line.replace('"a.b"', '"a\\u002Eb"') if is_escaped else line).encode()


@pytest.mark.medium
@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries({}, optional={"a": _VALUES, "a.b": _VALUES, "id": st.just("n"), "t": st.just("text")}),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_jsonl_key_with_a_dot_is_the_field_where_its_path_has_no_value(tmp_path_factory, lines) -> None:
    folder = tmp_path_factory.mktemp("keys")
    content = b"\n".join(_line_of(*line) for line in lines)
    records = [record for record, _ in lines]
    by_text = _read(folder, content, FieldNames(text="a.b"))
    assert by_text.texts == [text for text in (_named(record, texts_only=True) for record in records) if text is not None]
    assert len(by_text.rejected) == len(records) - len(by_text.texts)
    kept = _read(folder, content, FieldNames(text="t", keep=("a.b",)))
    assert kept.extra.get("a.b", []) == [_named(record, texts_only=False) for record in records if "t" in record]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (r"a \ud83d b", "a \ufffd b"),
        (r"low \ude00 first", "low \ufffd first"),
        (r"\uD83D\uDE00 whole", "😀 whole"),
        (r"\ud83d\ud83d\ude00\udead", "\ufffd😀\ufffd"),
        (r"\\ud83d is text", r"\ud83d is text"),
        (r"\\\ud83d", "\\\ufffd"),
        (r"\\ud83d\ude00", "\\ud83d\ufffd"),
        (r"\ud7ff\ue000 \u00e9", "\ud7ff\ue000 é"),
    ],
)
def test_lone_surrogates_are_replaced_where_the_source_reports_it(tmp_path: Path, written: str, expected: str) -> None:
    content = f'{{"text": "first"}}\n{{"k": "{written}", "text": "{written}"}}\n{{"text": "last"}}\n'
    file = input_file(tmp_path / "a.jsonl", content.encode())
    fields = FieldNames(keep=("k",), replaces_surrogates=True)
    found = read_file(Jsonl(), file, fields)
    assert (found.texts, found.rejected) == (["first", expected, "last"], [])
    assert found.extra["k"] == [None, expected, None]
    assert [text_at(Jsonl(), file, place, fields) for place, _, _ in found.documents] == found.texts
    assert [place for place, _, _ in found.documents] == [0, 18, content.rindex("{")]
