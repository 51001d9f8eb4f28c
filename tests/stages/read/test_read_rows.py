"""Rows of CSV and TSV, and samples of WebDataset archives: what they hold, and what is damaged or hostile."""

import csv
import gzip
import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from datapipe.stage import FieldNames, InputFile, Split
from datapipe.stage.decoding import lines
from datapipe.stage.field_types import MIXED
from datapipe.storage.root import open_input
from stages.read import _rows
from stages.read.csv import Csv
from stages.read.webdataset import Webdataset
from tests.support.reader_formats import add_member, tar
from tests.support.reader_results import ReadResult, input_file, read_file, text_at


def _read(folder: Path, content: bytes, fields: FieldNames | None = None, name: str = "a.csv", **options: object) -> ReadResult:
    return read_file(Csv.model_validate(options), input_file(folder / name, content), fields)


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


@pytest.mark.slow
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
        assert text_at(Csv(), file, position) == text


def test_csv_positions_are_the_bytes_where_rows_begin(tmp_path: Path) -> None:
    found = _read(tmp_path, b'\xef\xbb\xbfid,text\r\n1,"a\r\nb"\r\n\r\n2,c\n,""\n')
    assert found.documents == [(12, "a\r\nb", "1"), (24, "c", "2"), (28, "", None)]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (b"1", "1 value, expected 2"),
        (b"1,2,3", "3 values, expected 2"),
        (b"1,2,", "3 values, expected 2"),
        (b'1,"a,b",c', "3 values, expected 2"),
        (b"1,\xff", "invalid UTF-8"),
        (b"\xed\xa0\x80,2", "invalid UTF-8"),
        (b"1,a\0b", "a NUL byte"),
        (b"1," + b"x" * 1023, "max_row_bytes"),
    ],
)
def test_csv_bad_row_is_rejected_alone_and_explains_why(tmp_path: Path, row: bytes, error: str) -> None:
    content = b"id,text\n0,before\n" + row + b"\n2,after\n"
    for name, stored in (("a.csv", content), ("a.csv.gz", gzip.compress(content))):
        found = _read(tmp_path, stored, name=name, max_row_bytes=1024)
        assert found.texts == ["before", "after"]
        assert (found.rejected_places, found.excerpts, found.is_damage) == ([17], [row[:4096]], [False])
        assert error in found.rejected[0][1]


@pytest.fixture(params=[64, 4 << 20])
def _block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lines, _rows):
        monkeypatch.setattr(module, "BLOCK_BYTES", request.param)


@pytest.mark.usefixtures("_block_bytes")
def test_csv_row_too_long_is_skipped_to_its_end_within_quotes(tmp_path: Path) -> None:
    long = b'1,"' + b"x\n2,not a row\n" * 500 + b'"'
    found = _read(tmp_path, b"id,text\n0,a\n" + long + b"\r\n3,b\n", max_row_bytes=1024)
    assert (found.texts, found.rejected_places, found.is_damage) == (["a", "b"], [12], [False])


@pytest.mark.usefixtures("_block_bytes")
@pytest.mark.parametrize(("end", "is_damage"), [(b"", True), (b'"', False), (b'"\n', False)])
def test_csv_quote_that_takes_the_rest_of_a_file_is_damage_however_long_it_is(
    tmp_path: Path, end: bytes, is_damage: bool
) -> None:
    found = _read(tmp_path, b'text\na\n"' + b"b\n" * 1000 + end, max_row_bytes=1024)
    assert (found.texts, found.rejected_places, found.is_damage) == (["a"], [7], [is_damage])


@pytest.mark.parametrize(
    ("content", "position", "error"),
    [
        (b"url,body\n1,2\n", 0, "no column 'text'; it names url, body"),
        (b"text,id,text\n1,2,3\n", 0, "'text' 2 times"),
        (b"text,id,id\n1,2,3\n", 0, "'id' 2 times"),
        (b"t\xe9xt,text\n1,2\n", 0, "the header: invalid UTF-8"),
        ("text\na\n".encode("utf-16-le"), 0, "the header: a NUL byte"),
        (b'"text\na\n', 0, "a quote is never closed"),
        (b'text\na\n"b\nc\n', 7, "a quote is never closed"),
        (b"text,id\na,1\nb", 12, "1 value, expected 2"),
        (b"text" + b"x" * 2000 + b"\na\n", 0, "the header: a row of more than 1024 bytes"),
    ],
)
def test_csv_damage_of_a_file_is_reported_once(tmp_path: Path, content: bytes, position: int, error: str) -> None:
    found = _read(tmp_path, content, max_row_bytes=1024)
    assert (found.rejected_places, found.is_damage) == ([position], [True])
    assert error in found.rejected[0][1]


def test_csv_duplicate_columns_that_nothing_reads_are_no_damage(tmp_path: Path) -> None:
    found = _read(tmp_path, b"x,,text,x,\n1,2,3,4,5\n")
    assert (found.texts, found.rejected) == (["3"], [])


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": ",,"},
        {"delimiter": "é"},
        {"delimiter": "\n"},
        {"quote": ""},
        {"delimiter": '"'},
        {"escape": '"'},
        {"escape": ","},
        {"escape": "\t"},
        {"quote": "\t"},
        {"column_names": []},
        {"column_names": ["a", "a"]},
        {"max_row_bytes": 1},
    ],
)
def test_csv_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Csv.model_validate(options)


def test_csv_fields_are_those_of_the_header(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.csv", b"id,body,url\n1,2,3\n")
    seen = Csv().fields_seen(Split(file=file), FieldNames(text="body", keep=("url", "date")), open_input)
    assert (seen.num_records, seen.found, seen.names) == (1, {"body", "url"}, ("id", "body", "url"))
    for name, content in (("b.csv", b"id,body,url\n"), ("c.csv", b"body,id,body\n1,2,3\n")):
        file = input_file(tmp_path / name, content)
        assert Csv().fields_seen(Split(file=file), FieldNames(text="body"), open_input).num_records == 0


_ESCAPED = b'text,n\n"a \\"quoted\\", b\n c",1\n"\\\\",2\n\\"x\\,y\\n,3\n"""d"" \\n",4\n'


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_csv_escapes_are_taken_off(tmp_path: Path, ending: str) -> None:
    content = gzip.compress(_ESCAPED) if ending else _ESCAPED
    reader, file = Csv(escape="\\"), input_file(tmp_path / f"a.csv{ending}", content)
    found = read_file(reader, file, FieldNames(keep=("n",)))
    assert found.rejected == []
    assert found.texts == ['a "quoted", b\n c', "\\", '"x,y\\n', '"d" \\n']
    assert found.extra == {"n": ["1", "2", "3", "4"]}
    assert [text_at(reader, file, place) for place, _, _ in found.documents] == found.texts


def test_csv_escapes_without_quotes_hold_line_ends(tmp_path: Path) -> None:
    file = input_file(tmp_path / "a.tsv", b"text\tn\na\\\nb\\\tc\t1\n")
    reader = Csv(quote="none", escape="\\")
    assert read_file(reader, file).texts == ["a\nb\tc"]
    assert reader.cut(file, 4) == [Split(file=file)]


@pytest.mark.parametrize("content", [_ESCAPED, b'text,n\nok,1\n"\\"a\\" b",2\n', b'text,n\n"say \\"hi, you\\"",1\n'])
def test_csv_that_seems_to_escape_quotes_is_reported_with_the_option(tmp_path: Path, content: bytes) -> None:
    found = _read(tmp_path, content)
    assert found.is_damage == [True]
    assert "escape: none" in found.rejected[0][1]


def test_csv_backslashes_are_text_where_that_is_declared_or_nothing_speaks_against_it(tmp_path: Path) -> None:
    content = b'text,n\n"C:\\",1\n"a\\""b",2\na\\"b,3\n'
    assert read_file(Csv(), input_file(tmp_path / "a.csv", content)).texts == ["C:\\", 'a\\"b', 'a\\"b']
    odd = input_file(tmp_path / "b.csv", b'text\n"a\\"b"\n')
    assert read_file(Csv(escape="none"), odd).texts == ['a\\b"']


BLOCK = 512


def _file(folder: Path, content: bytes, ending: str = ".tar") -> InputFile:
    return input_file(folder / f"a{ending}", content, reader=Webdataset())


def _samples(count: int) -> list[tuple[str, str | bytes]]:
    return [
        member
        for number in range(count)
        for member in [
            (f"s/{number:04}.jpg", bytes(number * 7)),
            (f"s/{number:04}.json", json.dumps({"url": f"u{number}", "n": number})),
            (f"s/{number:04}.txt", f"text {number} é中"),
        ]
    ]


def test_webdataset_samples_are_documents_by_base_name(tmp_path: Path) -> None:
    content = tar([("a.b/x.seg.txt", "no"), *_samples(3), ("only.jpg", b"\xff"), ("README", "no dot"), (".hidden", "")])
    found = read_file(Webdataset(), _file(tmp_path, content), FieldNames(keep=("url", "n", "none")))
    assert [(text, name) for _, text, name in found.documents] == [(f"text {n} é中", f"s/{n:04}") for n in range(3)]
    assert found.extra == {"url": ["u0", "u1", "u2"], "n": ["0", "1", "2"], "none": [None] * 3}
    assert found.rejected == []
    assert found.passed_over == {"sample_without_text": 2, "no_base_name": 2}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        offsets = {one.name: one.offset for one in archive}
    assert [place for place, _, _ in found.documents] == [offsets[f"s/{number:04}.txt"] for number in range(3)]


def test_webdataset_text_of_json_members_and_of_other_endings(tmp_path: Path) -> None:
    record = {"text": "t", "id": 7, "meta": {"url": "u", "tags": [1.50, None]}, "ok": True}
    members = [
        ("1.json", json.dumps(record).replace("1.5", "1.50")),
        ("2.json", '{"no": 1}'),
        ("3.Content.TXT", "three"),
        ("4.json", "[]"),
    ]
    file = _file(tmp_path, tar(members))
    found = read_file(Webdataset(), file, FieldNames(keep=("meta.url", "meta.tags", "ok")))
    assert [(text, name) for _, text, name in found.documents] == [("t", "7")]
    assert found.extra == {"meta.url": ["u"], "meta.tags": ["[1.50,null]"], "ok": ["true"]}
    assert ["missing" in found.rejected[0][1], "no JSON object" in found.rejected[1][1]] == [True, True]
    assert found.passed_over == {"sample_without_text": 1}
    assert read_file(Webdataset(text=("content.txt",)), file).ids == ["3"]
    labelled = _file(tmp_path, tar([("1.cls", "cat"), ("1.txt", "a")]))
    assert read_file(Webdataset(), labelled, FieldNames(keep=("cls",))).extra == {"cls": ["cat"]}


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_webdataset_names_of_any_length_and_script(tmp_path: Path, format: int) -> None:
    names = ["d" * 90 + "/" + "n" * 160, "é" * 200, "日本/" + "k" * 99, "./" + "p" * 98, "q" * 96]
    found = read_file(Webdataset(), _file(tmp_path, tar([(f"{name}.txt", name) for name in names], format)))
    assert [(text, identity) for _, text, identity in found.documents] == [(name, name) for name in names]
    assert found.rejected == []
    file = input_file(tmp_path / "a.tar")
    again = [text_at(Webdataset(), file, place) for place, _, _ in found.documents]
    assert again == names


def test_webdataset_links_folders_and_devices_are_counted(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, kind in enumerate((tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(f"{number}.txt")
            info.type, info.linkname = kind, "4.txt"
            archive.addfile(info)
        add_member(archive, "4.txt", "four")
    found = read_file(Webdataset(), _file(tmp_path, out.getvalue()))
    assert (found.texts, found.rejected) == (["four"], [])
    assert found.passed_over == {"folder": 1, "link": 2, "special": 1}


def test_webdataset_sample_with_two_members_of_an_ending_is_rejected(tmp_path: Path) -> None:
    found = read_file(Webdataset(), _file(tmp_path, tar([("1.txt", "a"), ("1.txt", "b"), ("2.txt", "c"), ("1.txt", "later")])))
    assert [(text, name) for _, text, name in found.documents] == [("c", "2"), ("later", "1")]
    assert (found.rejected_places, found.is_damage) == ([0], [False])


def test_webdataset_text_that_is_none_is_rejected_alone(tmp_path: Path) -> None:
    wrong = {
        "1.txt": (b"\xff", "UTF-8"),
        "2.json": ('{"text": "\\ud800"}', "`lone_surrogates"),
        "3.json": ('{"text": 3}', "no string"),
        "4.json": ("{", "not valid JSON"),
        "5.json": ("[" * 100_000, "not valid JSON"),
    }
    members = [*((name, content) for name, (content, _) in wrong.items()), ("6.txt", "six")]
    found = read_file(Webdataset(), _file(tmp_path, tar(members)))
    assert found.texts == ["six"]
    assert [word in error for (_, word), (_, error) in zip(wrong.values(), found.rejected, strict=True)] == [True] * 5


def test_webdataset_archives_one_behind_the_other_are_all_read(tmp_path: Path) -> None:
    one, two = tar([("1.txt", "a")]), tar([("2.txt", "b")])
    found = read_file(Webdataset(), _file(tmp_path, one + two))
    assert found.documents == [(0, "a", "1"), (len(one), "b", "2")]
    assert found.rejected == []


def test_webdataset_damaged_header_ends_the_reading_and_is_reported(tmp_path: Path) -> None:
    content = bytearray(tar([("1.txt", "a"), ("2.txt", "b"), ("3.txt", "c")]))
    content[2 * BLOCK] ^= 1
    found = read_file(Webdataset(), _file(tmp_path, bytes(content)))
    assert found.documents == [(0, "a", "1")]
    assert (found.rejected_places, found.is_damage) == ([2 * BLOCK], [True])


def test_webdataset_headers_that_ask_for_too_much_are_reported(tmp_path: Path) -> None:
    name, member = tarfile.TarInfo("././@LongLink"), tarfile.TarInfo("1.txt")
    name.type, name.size, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40, 1 << 60
    found = read_file(Webdataset(), _file(tmp_path, name.tobuf(tarfile.GNU_FORMAT) + tar([("1.txt", "a")])))
    assert (found.texts, found.is_damage) == ([], [True])
    found = read_file(Webdataset(), _file(tmp_path, member.tobuf(tarfile.GNU_FORMAT) + bytes(3000)))
    assert (found.documents, sorted(found.is_damage)) == ([], [False, True])


def test_webdataset_members_that_do_not_follow_each_other_are_damage_of_the_file(tmp_path: Path) -> None:
    """As in `tar cf a.tar *.txt *.json`. Without the JSON a document lacks its fields, and the JSON alone is no document."""
    members = [(f"{number}.{ending}", f'{{"text": "{number}"}}') for ending in ("txt", "json") for number in range(3)]
    found = read_file(Webdataset(), _file(tmp_path, tar(members)))
    assert found.texts == [f'{{"text": "{number}"}}' for number in range(3)]
    assert (found.passed_over, found.is_damage) == ({"members_elsewhere": 3}, [True])
    assert "`tar --sort=name`" in found.rejected[0][1]


def test_webdataset_names_with_dots_are_read_by_the_last_one_where_that_is_declared(tmp_path: Path) -> None:
    members = [("v1.0/22.05.txt", "a"), ("v1.0/22.05.json", '{"url": "u"}'), ("v1.0/22.06.txt", "b"), ("v1.0/.h.txt", "c")]
    file = _file(tmp_path, tar(members))
    by_first = read_file(Webdataset(), file)
    assert (by_first.texts, by_first.passed_over) == ([], {"sample_without_text": 1, "no_base_name": 1})
    by_last = read_file(Webdataset(base_names="last_dot"), file, FieldNames(keep=("url",)))
    assert (by_last.texts, by_last.ids) == (["a", "b", "c"], ["v1.0/22.05", "v1.0/22.06", "v1.0/.h"])
    assert by_last.extra == {"url": ["u", None, None]}


def test_webdataset_member_of_utf16_is_read(tmp_path: Path) -> None:
    members = [("1.txt", "ü中".encode("utf-16")), ("2.json", '{"text": "b"}'.encode("utf-16-be")), ("3.txt", b"\xff\xfea")]
    members[1] = ("2.json", b"\xfe\xff" + members[1][1])
    found = read_file(Webdataset(), _file(tmp_path, tar(members)))
    assert found.texts == ["ü中", "b"]
    assert ["is UTF-16, and is damaged or cut off" in error for _, error in found.rejected] == [True]


def test_webdataset_kept_fields_keep_the_types_of_json(tmp_path: Path) -> None:
    records = [{"n": 1, "ok": True, "m": {"k": [1.5]}, "x": 7}, {"n": 2, "ok": None, "m": None, "x": "007"}]
    members = [(f"{row}.{ending}", text) for row, one in enumerate(records) for ending, text in _members(one)]
    file, names = _file(tmp_path, tar(members)), ("n", "ok", "m", "x", "cls")
    first = FieldNames(keep=names, types=dict.fromkeys(names, pa.null()))
    (batch,) = Webdataset().read(Split(file=file), first, open_input)
    m = pa.struct([("k", pa.list_(pa.float64()))])
    assert batch.wider == {"n": pa.int64(), "ok": pa.bool_(), "m": m, "x": MIXED, "cls": pa.large_string()}
    (batch,) = Webdataset().read(Split(file=file), FieldNames(keep=names, types=batch.wider), open_input)
    assert [batch.extra[name].to_pylist() for name in names] == [
        [1, 2],
        [True, None],
        [{"k": [1.5]}, None],
        ["7", "007"],
        ["3", "3"],
    ]


def _members(record: dict[str, object]) -> list[tuple[str, str]]:
    return [("txt", "a"), ("json", json.dumps(record)), ("cls", "3")]
