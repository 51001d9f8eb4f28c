from pathlib import Path

import pytest

from datapipe.config.yaml import dotted, parse_yaml, read_yaml_mapping
from datapipe.errors import UserError


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "m.yaml")
    return str(caught.value)


def file_refusal(path: Path, content: bytes | None = None) -> str:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_yaml_mapping(path)
    return str(caught.value).replace(str(path), "m.yaml")


def test_scalars_follow_yaml_1_2():
    text = "[no, yes, 1e9, 2.5, 0o17, 017, 12:30, 2024-01-01, ~, true, =, 1_0]"
    assert parse_yaml(text, "m.yaml").data == ["no", "yes", 1e9, 2.5, 15, 17, "12:30", "2024-01-01", None, True, "=", 10]


def test_lines_of_keys_and_items_count_from_one():
    parsed = parse_yaml("# head\na: 1\nb:\n  c:\n    - x\n    - y: 2\n", "m.yaml")
    assert parsed.data == {"a": 1, "b": {"c": ["x", {"y": 2}]}}
    assert parsed.lines == {("a",): 2, ("b",): 3, ("b", "c"): 4, ("b", "c", 0): 5, ("b", "c", 1): 6, ("b", "c", 1, "y"): 6}


def test_keys_are_text_as_written():
    assert parse_yaml("{2024: a, no: b, 1.50: c, null: d}", "m.yaml").data == {"2024": "a", "no": "b", "1.50": "c", "null": "d"}


def test_aliases_are_copied_and_keep_the_line_of_the_anchor():
    parsed = parse_yaml("a: &x\n  k: [1]\nb: *x\n", "m.yaml")
    assert parsed.data == {"a": {"k": [1]}, "b": {"k": [1]}}
    parsed.data["b"]["k"].append(2)
    assert parsed.data["a"] == {"k": [1]}
    assert parsed.lines["b", "k"] == 2


def test_merge_key_gives_what_is_not_written():
    text = "base: &x\n  w: 1\n  o: {deep: 1}\nother: &y {w: 5, z: 6}\nweb:\n  <<: [*x, *y]\n  o: 3\n"
    parsed = parse_yaml(text, "m.yaml")
    assert parsed.data["web"] == {"w": 1, "o": 3, "z": 6}
    assert parsed.lines["web", "w"] == 2
    assert parsed.lines["web", "o"] == 7
    assert ("web", "o", "deep") not in parsed.lines


def test_anchor_name_used_again_names_the_later_value():
    assert parse_yaml("a: &x 1\nb: &x 2\nc: *x\n", "m.yaml").data == {"a": 1, "b": 2, "c": 2}


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "m.yaml:4: b.c", "first in line 3"),
        ("a: 1\n b: 2\n", "m.yaml:2", "at column 3"),
        ("a:\n\tb: 1\n", "m.yaml:2", "indent with spaces"),
        ("a: [1,\n", "m.yaml:2", "at column 1"),
        ("a: *x\n", "m.yaml:1", "undefined alias 'x'"),
        ("a: 1\n---\nb: 2\n", "m.yaml:2", "single document"),
        ("a: \x01", "m.yaml", "#x0001"),
        ("\na: !!python/object:os.system x", "m.yaml:2", "os.system is not supported"),
        ("a: !mine {b: 1}", "m.yaml:1", "!mine is not supported"),
        ("a: !!int x", "m.yaml:1", "'x' is not a valid value"),
        ("a: 1\n? [1, 2]\n: 3", "m.yaml:2", "expected text"),
        ("a: 1\n<<: 3", "m.yaml:2", "<<"),
        ("a: &x\n  - *x\n", "m.yaml:1", "a value that contains it"),
        ("[" * 1200, "m.yaml", "nested too deeply"),
    ],
)
def test_bad_yaml_is_refused_with_its_line(text: str, place: str, told: str):
    assert refusal(text).startswith(f"{place}: ")
    assert told in refusal(text) and "\n" not in refusal(text)


def test_aliases_that_multiply_are_refused_before_they_fill_memory():
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    assert "more than 100000 values" in refusal("\n".join(["a0: &a0 [x]", *levels]))


def test_file_that_cannot_be_read_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    assert "`datapipe init m.yaml`" in file_refusal(tmp_path / "none.yaml")
    assert "folder" in file_refusal(tmp_path)
    assert "Not a directory" in file_refusal(tmp_path / "file" / "x.yaml")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "m.yaml:1: the file is empty."),
        (b"# only\n", "m.yaml:1: the file is empty."),
        (b"\n- a\n- b\n", "m.yaml:2: found a list, expected a mapping"),
        (b"name", "m.yaml:1: found a single value, expected a mapping"),
        (b"a: 1\nb: caf\xe9\n", "m.yaml:2: found the byte 0xe9,"),
    ],
)
def test_file_that_is_no_mapping_is_refused_with_its_line(tmp_path: Path, content: bytes, told: str):
    assert file_refusal(tmp_path / "m.yaml", content).startswith(told)


def test_byte_order_mark_is_no_part_of_the_text(tmp_path: Path):
    path = tmp_path / "m.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml_mapping(path).data == {"name": "x"}


def test_dotted_writes_indexes_in_brackets():
    assert dotted(("stages", 2, "filter.length")) == "stages[2].filter.length"
    assert dotted(()) == ""
