"""WebDataset: samples of tar archives, names of every kind, and archives that are damaged."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from datapipe.stage import FieldNames, InputFile, Split
from datapipe.stage.field_types import MIXED
from datapipe.storage import open_input
from stages.read.webdataset import Webdataset
from tests.support.reader_formats import add_member, tar
from tests.support.reader_results import input_file, read_file

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
    again = [Webdataset().read_document(file, place, FieldNames(), open_input) for place, _, _ in found.documents]
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


def test_webdataset_damaged_header_is_told_and_reading_goes_on(tmp_path: Path) -> None:
    content = bytearray(tar([("1.txt", "a"), ("2.txt", "b"), ("3.txt", "c")]))
    content[2 * BLOCK] ^= 1
    found = read_file(Webdataset(), _file(tmp_path, bytes(content)))
    assert found.documents == [(0, "a", "1"), (4 * BLOCK, "c", "3")]
    assert (found.rejected_places, found.is_damage) == ([2 * BLOCK], [True])


def test_webdataset_headers_that_ask_for_too_much_are_told(tmp_path: Path) -> None:
    name, member = tarfile.TarInfo("././@LongLink"), tarfile.TarInfo("1.txt")
    name.type, name.size, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40, 1 << 60
    found = read_file(Webdataset(), _file(tmp_path, name.tobuf(tarfile.GNU_FORMAT) + tar([("1.txt", "a")])))
    assert (found.texts, found.is_damage) == (["a"], [True])
    found = read_file(Webdataset(), _file(tmp_path, member.tobuf(tarfile.GNU_FORMAT) + bytes(3000)))
    assert (found.documents, sorted(found.is_damage)) == ([], [False, True])


def test_webdataset_members_that_do_not_follow_each_other_are_damage_of_the_file(tmp_path: Path) -> None:
    """As in `tar cf a.tar *.txt *.json`. Without the JSON a document lacks its fields, and the JSON alone is no document."""
    members = [(f"{number}.{ending}", f'{{"text": "{number}"}}') for ending in ("txt", "json") for number in range(3)]
    found = read_file(Webdataset(), _file(tmp_path, tar(members)))
    assert found.texts == [f'{{"text": "{number}"}}' for number in range(3)]
    assert (found.passed_over, found.is_damage) == ({"members_elsewhere": 3}, [True])
    assert "`tar --sort=name`" in found.rejected[0][1]


def test_webdataset_names_with_dots_are_read_by_the_last_one_where_that_is_said(tmp_path: Path) -> None:
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


def test_webdataset_half_a_surrogate_pair_is_replaced_where_the_source_says_so(tmp_path: Path) -> None:
    file = _file(tmp_path, tar([("1.json", '{"text": "a \\ud800 b"}')]))
    assert read_file(Webdataset(), file, FieldNames(replaces_surrogates=True)).texts == ["a \ufffd b"]


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
