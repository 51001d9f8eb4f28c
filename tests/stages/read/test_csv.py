"""CSV and TSV: rows as Python's csv module reads them, and hostile files told row by row."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from datapipe.stage import FieldNames, Split
from datapipe.stage.decoding import lines
from datapipe.storage import open_input
from stages.read import _rows
from stages.read.csv import Csv
from tests.support.reader_results import ReadResult, broken_storage, input_file, read_file, read_splits

OPEN = "the file ends within a quoted value of this row: it is cut off, or a quote is never closed"


def _read(folder: Path, content: bytes, fields: FieldNames | None = None, name: str = "a.csv", **options: object) -> ReadResult:
    return read_file(Csv.model_validate(options), input_file(folder / name, content), fields)


# ------------------------------------------------------------------------------------------------ Python's csv module as oracle


def _parsed(text: str, delimiter: str, quote: str) -> list[list[str]]:
    quoting = {"quoting": csv.QUOTE_NONE} if quote == "none" else {"quotechar": quote}
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, **quoting) if row]  # type: ignore[arg-type]


def _expected(text: str, delimiter: str, quote: str) -> tuple[list[tuple[str, str]], int]:
    """Documents of two columns, and how many rows are none. A row of which the quotes are still open at the end is none."""
    rows = _parsed(text, delimiter, quote)
    is_open = _parsed(f"{text}\n<end>", delimiter, quote)[-1] != ["<end>"]
    whole = rows[:-1] if is_open else rows
    documents = [(row[0], row[1]) for row in whole if len(row) == 2]
    return documents, len(rows) - len(documents)


@settings(deadline=None)
@given(
    text=st.text(alphabet="ab\",;\n\r é'", max_size=40),
    block_bytes=st.integers(1, 9),
    delimiter=st.sampled_from(",;\t "),
    quote=st.sampled_from(['"', "'", "none"]),
)
def test_csv_rows_are_those_of_pythons_csv_module(
    tmp_path_factory: pytest.TempPathFactory, text: str, block_bytes: int, delimiter: str, quote: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    options = {"delimiter": delimiter, "quote": quote, "column_names": ["id", "text"]}
    whole = _read(folder, text.encode(), **options)
    documents, num_rejected = _expected(text, delimiter, quote)
    assert [(key or "", value) for _, value, key in whole.documents] == documents
    assert len(whole.rejected) == num_rejected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block_bytes)
        patch.setattr(_rows, "BLOCK_BYTES", block_bytes)
        in_blocks = _read(folder, text.encode(), **options)
    assert (in_blocks.documents, in_blocks.rejected) == (whole.documents, whole.rejected)
    assert in_blocks.excerpts == whole.excerpts


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(*[st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)] * 3)),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    name=st.sampled_from(["a.csv", "a.tsv"]),
)
def test_csv_what_pythons_csv_module_writes_is_read_back_value_by_value(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]], line_end: str, quoting: int, name: str
) -> None:
    written = io.StringIO(newline="")
    delimiter = "\t" if name == "a.tsv" else ","
    writer = csv.writer(written, delimiter=delimiter, lineterminator=line_end, quoting=quoting)  # type: ignore[arg-type]
    if quoting == csv.QUOTE_MINIMAL and len(line_end) == 1:  # before 3.13 the module writes the other line end without quotes
        other = "\r" if line_end == "\n" else "\n"
        rows = [(url.replace(other, ""), text.replace(other, ""), key.replace(other, "")) for url, text, key in rows]
    writer.writerows([("url", "text", "id"), *rows])
    content = written.getvalue().encode()
    file = input_file(tmp_path_factory.getbasetemp() / name, content)
    found = read_file(Csv(), file, FieldNames(keep=("url", "none")))
    assert found.rejected == []
    assert [(text, key or "") for _, text, key in found.documents] == [(text, key) for _, text, key in rows]
    assert found.extra == {"url": [url for url, _, _ in rows], "none": [None] * len(rows)} or not rows
    for position, text, _ in found.documents:
        assert Csv().read_document(file, position, FieldNames(), open_input) == text


# ------------------------------------------------------------------------------------------------ plain facts


def test_csv_values_are_text_as_it_is_written(tmp_path: Path) -> None:
    values = ["007", "NA", "", "null", "1e5", "2024-01-02", " a ", "true", "-", "nan", "\\N"]
    found = _read(tmp_path, "\n".join(["text,n", *(f"{value},1" for value in values)]).encode())
    assert found.texts == values


def test_csv_positions_are_the_bytes_where_rows_begin(tmp_path: Path) -> None:
    found = _read(tmp_path, b'\xef\xbb\xbfid,text\r\n1,"a\r\nb"\r\n\r\n2,c\n')
    assert found.documents == [(12, "a\r\nb", "1"), (24, "c", "2")]


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"id,text", b"id,text\n", b"\n\nid,text\r\n\n"])
def test_csv_files_without_rows_hold_nothing(tmp_path: Path, content: bytes) -> None:
    found = _read(tmp_path, content)
    assert (found.documents, found.rejected) == ([], [])


def test_csv_an_empty_id_is_none_and_an_empty_text_is_a_text(tmp_path: Path) -> None:
    assert _read(tmp_path, b'id,text\n,""\n"",\n').documents == [(8, "", None), (12, "", None)]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (b"1", "1 value, expected 2, one for each column"),
        (b"1,2,3", "3 values, expected 2, one for each column"),
        (b"1,2,", "3 values, expected 2, one for each column"),
        (b'1,"a,b",c', "3 values, expected 2, one for each column"),
        (b"1,\xff", "invalid UTF-8; expected a row of UTF-8 text"),
        (b"\xed\xa0\x80,2", "invalid UTF-8; expected a row of UTF-8 text"),
        (b"1,a\0b", "a NUL byte; expected a row of text without it"),
        (b"1," + b"x" * 1023, "a row of more than 1024 bytes, the most this reader takes (max_row_bytes)"),
    ],
)
def test_csv_bad_row_is_rejected_alone_and_says_why(tmp_path: Path, row: bytes, error: str) -> None:
    for name in ("a.csv", "a.csv.gz"):
        content = b"id,text\n0,before\n" + row + b"\n2,after\n"
        found = _read(tmp_path, gzip.compress(content) if name.endswith(".gz") else content, name=name, max_row_bytes=1024)
        assert found.texts == ["before", "after"]
        assert found.rejected == [(17, error)]
        assert found.excerpts == [row[:4096]]


def test_csv_bad_rows_everywhere_leave_the_good_ones(tmp_path: Path) -> None:
    rows = [b"%d,\xff" % number if number % 3 else b"%d,good" % number for number in range(30_000)]
    found = _read(tmp_path, b"\n".join([b"id,text", *rows]))
    assert (len(found.documents), len(found.rejected)) == (10_000, 20_000)
    assert max(found.batch_sizes) <= 8192
    assert found.ids == [str(number) for number in range(0, 30_000, 3)]


@pytest.mark.parametrize("block_bytes", [64, 4 << 20])
def test_csv_row_too_long_is_skipped_to_its_end_within_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(_rows, "BLOCK_BYTES", block_bytes)
    long = b'1,"' + b"x\n2,not a row\n" * 500 + b'"'
    found = _read(tmp_path, b"id,text\n0,a\n" + long + b"\r\n3,b\n", max_row_bytes=1024)
    assert found.texts == ["a", "b"]
    assert found.rejected == [(12, "a row of more than 1024 bytes, the most this reader takes (max_row_bytes)")]


@pytest.mark.parametrize("block_bytes", [64, 4 << 20])
@pytest.mark.parametrize(("end", "error"), [(b"", OPEN), (b'"', "a row of more than 1024 bytes"), (b'"\n', "a row of more")])
def test_csv_quote_that_takes_the_rest_of_a_file_is_damage_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, end: bytes, error: str
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(_rows, "BLOCK_BYTES", block_bytes)
    content = b'text\na\n"' + b"b\n" * 1000 + end
    found = _read(tmp_path, content, max_row_bytes=1024)
    assert found.texts == ["a"]
    [(position, found_error)] = found.rejected
    assert position == 7
    assert error in found_error
    assert len(_damage(tmp_path, content, max_row_bytes=1024)) == (error == OPEN)


def test_csv_huge_value_is_one_document(tmp_path: Path) -> None:
    value = 'one "quoted" line,\n' * 500_000
    content = 'id,text\n1,"' + value.replace('"', '""') + '"\n2,b\n'
    assert _read(tmp_path, content.encode()).texts == [value, "b"]


# ------------------------------------------------------------------------------------------------ damaged files


def _damage(folder: Path, content: bytes, name: str = "a.csv", **options: object) -> list[tuple[int, str]]:
    """The rejects that stand for damage of the file."""
    reader = Csv.model_validate(options)
    batches = reader.read(Split(file=input_file(folder / name, content)), FieldNames(), open_input)
    return [(record.position, record.error) for batch in batches for record in batch.rejected if record.is_file_damage]


@pytest.mark.parametrize(
    ("content", "position", "error"),
    [
        (b"url,body\n1,2\n", 0, "the header has no column 'text'; it names url, body"),
        (b"text,id,text\n1,2,3\n", 0, "the header names 'text' 2 times, expected once: text, id, text"),
        (b"text,id,id\n1,2,3\n", 0, "the header names 'id' 2 times, expected once: text, id, id"),
        (b"t\xe9xt,text\n1,2\n", 0, "the header: invalid UTF-8; expected a row of UTF-8 text"),
        ("text\na\n".encode("utf-16-le"), 0, "the header: a NUL byte; expected a row of text without it"),
        (b'"text\na\n', 0, OPEN),
        (b'text\na\n"b\nc\n', 7, OPEN),
        (b"text,id\na,1\nb", 12, "the file is cut off: it ends within its last row, which has 1 value, expected 2"),
        (b"text" + b"x" * 2000 + b"\na\n", 0, "the header: a row of more than 1024 bytes"),
        (gzip.compress(b"text\na\n", mtime=0), 0, "the file is a gzip archive, and its name is that of a plain file"),
    ],
)
def test_csv_damage_of_a_file_is_told_once(tmp_path: Path, content: bytes, position: int, error: str) -> None:
    [(found_position, found_error)] = _damage(tmp_path, content, max_row_bytes=1024)
    assert found_position == position
    assert error in found_error


def test_csv_duplicate_columns_that_nothing_reads_are_no_damage(tmp_path: Path) -> None:
    found = _read(tmp_path, b"x,,text,x,\n1,2,3,4,5\n")
    assert (found.texts, found.rejected) == (["3"], [])


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        (".gz", gzip.compress),
        (".zst", zstandard.compress),
        (".lz4", lz4.frame.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
    ],
)
def test_csv_archives_are_read_like_plain_files(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    content = 'id\ttext\n1\t"a\tb"\n2\té\n'.encode()
    plain = _read(tmp_path, content, name="a.tsv")
    assert plain.texts == ["a\tb", "é"]
    file = input_file(tmp_path / f"a.tsv{ending}", pack(content[:12]) + pack(content[12:]))
    assert read_file(Csv(), file).documents == plain.documents
    assert [Csv().read_document(file, place, FieldNames(), open_input) for place, _, _ in plain.documents] == plain.texts
    [(position, error)] = _damage(tmp_path, pack(content * 50)[:-3], name=f"a.tsv{ending}")
    assert "cut off" in error
    assert 0 <= position <= len(content) * 50


def test_csv_what_storage_raises_is_no_fault_of_the_file(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.csv", b"text\n" + b"a\n" * 100)
    with pytest.raises(OSError, match="the disk is gone"):
        read_splits(Csv(), [Split(file=file)], opened=broken_storage(fails_at=10))


# ------------------------------------------------------------------------------------------------ options, splits, look-ups


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delimiter": ",,"}, "expected one ASCII character"),
        ({"delimiter": "é"}, "expected one ASCII character"),
        ({"delimiter": "\n"}, "expected one ASCII character"),
        ({"delimiter": "none"}, "expected one ASCII character"),
        ({"quote": ""}, "expected one ASCII character"),
        ({"delimiter": '"'}, "the same character"),
        ({"column_names": []}, "at least 1 item"),
        ({"column_names": ["a", "a"]}, "expected each name once"),
        ({"max_row_bytes": 1}, "1024"),
    ],
)
def test_csv_wrong_options_are_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        Csv.model_validate(options)


def test_csv_files_without_quotes_are_cut_into_ranges_of_whole_rows(tmp_path: Path) -> None:
    content = b"id\ttext\n" + b"".join(b'%d\t"unclosed %d\r\n\n' % (number, number) for number in range(200))
    reader, file = Csv(quote="none"), input_file(tmp_path / "a.tsv", content)
    whole = read_file(reader, file)
    assert len(whole.documents) == 200
    for target_bytes in (1, 7, 100, 1000):
        assert len(splits := reader.cut(file, target_bytes)) > 1
        assert read_splits(reader, splits).documents == whole.documents
    assert len(Csv().cut(file, 100)) == 1
    assert reader.read_document(file, whole.documents[150][0], FieldNames(), open_input) == whole.texts[150]


def test_csv_damaged_header_is_told_by_one_split_alone(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.csv", b"a,b\n" + b"1,2\n" * 100)
    assert len(read_splits(Csv(quote="none"), Csv(quote="none").cut(file, 10)).rejected) == 1


def test_csv_fields_are_those_of_the_header(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.csv", b"id,body,url\n1,2,3\n")
    seen = Csv().fields_seen(Split(file=file), FieldNames(text="body", keep=("url", "date")), open_input)
    assert (seen.num_records, seen.found, seen.names) == (1, {"body", "url"}, ("id", "body", "url"))
    empty = input_file(tmp_path / "b.csv", b"id,body,url\n")
    assert Csv().fields_seen(Split(file=empty), FieldNames(text="body"), open_input).num_records == 0


def test_csv_read_document_finds_rows_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 16)
    monkeypatch.setattr(_rows, "BLOCK_BYTES", 16)
    content = b'id,text\n1,"a\n2,b"\nshort\n3,ccccccccccccccccccccccccccccc\n4,d'
    file = input_file(tmp_path / "a.csv", content)
    found = {place: text for place, text, _ in read_file(Csv(), file).documents}
    assert list(found.values()) == ["a\n2,b", "c" * 29, "d"]
    near = [place for place in range(len(content) + 3) if place not in (13, 18)]
    assert {place: Csv().read_document(file, place, FieldNames(), open_input) for place in near} == {
        place: found.get(place) for place in near
    }


_ESCAPED = b'text,n\n"a \\"quoted\\", b\n c",1\n"\\\\",2\n\\"x\\,y\\n,3\n"""d"" \\n",4\n'


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_csv_escapes_are_taken_off(tmp_path: Path, ending: str) -> None:
    content = gzip.compress(_ESCAPED) if ending else _ESCAPED
    reader, file = Csv(escape="\\"), input_file(tmp_path / f"a.csv{ending}", content)
    found = read_file(reader, file, FieldNames(keep=("n",)))
    assert found.rejected == []
    assert found.texts == ['a "quoted", b\n c', "\\", '"x,y\\n', '"d" \\n']
    assert found.extra == {"n": ["1", "2", "3", "4"]}
    assert [reader.read_document(file, place, FieldNames(), open_input) for place, _, _ in found.documents] == found.texts


def test_csv_escapes_without_quotes_hold_line_ends(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.tsv", b"text\tn\na\\\nb\\\tc\t1\n" * 1)
    reader = Csv(quote="none", escape="\\")
    assert read_file(reader, file).texts == ["a\nb\tc"]
    assert reader.cut(file, 4) == [Split(file=file)]


@pytest.mark.parametrize("content", [_ESCAPED, b'text,n\nok,1\n"\\"a\\" b",2\n', b'text,n\n"say \\"hi, you\\"",1\n'])
def test_csv_that_seems_to_escape_quotes_is_told_with_the_option(tmp_path: Path, content: bytes) -> None:
    [(_, error)] = _damage(tmp_path, content)
    assert "escaped by backslashes. Set `format: {csv: {escape: '\\'}}`, or `escape: none`" in error


def test_csv_backslashes_are_text_where_that_is_said_or_nothing_speaks_against_it(tmp_path: Path) -> None:
    content = b'text,n\n"C:\\",1\n"a\\""b",2\na\\"b,3\n'
    assert read_file(Csv(), input_file(tmp_path / "a.csv", content)).texts == ["C:\\", 'a\\"b', 'a\\"b']
    odd = input_file(tmp_path / "b.csv", b'text\n"a\\"b"\n')
    assert read_file(Csv(escape="none"), odd).texts == ['a\\b"']


def test_csv_escape_that_is_another_sign_is_refused() -> None:
    for sign in ('"', ","):
        with pytest.raises(ValueError, match="escape is the quote or the delimiter"):
            Csv(escape=sign)


def test_csv_header_with_an_asked_column_twice_is_left_to_reading(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.csv", b"text,id,text\n1,2,3\n")
    assert Csv().fields_seen(Split(file=file), FieldNames(), open_input).num_records == 0
