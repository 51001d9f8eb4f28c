"""From text to plain data: YAML with its lines, references, overrides, and numbers with fields."""

import sysconfig
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config import fields
from datapipe.config.interpolation import Origins, interpolated
from datapipe.config.load import apply_override
from datapipe.config.yaml import parse_yaml, read_yaml_mapping
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


def test_tabs_within_a_line_of_text_are_text():
    assert parse_yaml("%YAML 1.2\n---\na: b\tc \t# d\ne\t: [f \tg\t, h]\n", "m.yaml").data == {"a": "b\tc", "e": ["f \tg", "h"]}


def test_lines_of_keys_and_items_count_from_one():
    parsed = parse_yaml("# head\na: 1\nb:\n  c:\n    - x\n    - y: 2\n", "m.yaml")
    assert parsed.data == {"a": 1, "b": {"c": ["x", {"y": 2}]}}
    assert parsed.lines == {("a",): 2, ("b",): 3, ("b", "c"): 4, ("b", "c", 0): 5, ("b", "c", 1): 6, ("b", "c", 1, "y"): 6}


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


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "m.yaml:4: b.c", "first in line 3"),
        ("a: 1\n b: 2\n", "m.yaml:2", "at column 3"),
        ("a:\n\tb: 1\n", "m.yaml:2", "indent with spaces"),
        ("a: [1,\n", "m.yaml:2", "at column 1"),
        ("a: *x\n", "m.yaml:1", "undefined alias 'x'"),
        ("a: 1\n---\nb: 2\n", "m.yaml:2", "single document"),
        ("b: 1\na: \x01", "m.yaml:2", "#x0001"),
        ("\na: !!python/object:os.system x", "m.yaml:2", "found a tag"),
        ("a: !mine {b: 1}", "m.yaml:1", "found a tag"),
        ("a: !!int ''", "m.yaml:1", "found a tag"),
        ("a: !!seq {b: 1}", "m.yaml:1", "found a tag"),
        ("\na: -_", "m.yaml:2", "'-_', expected a number"),
        ("\na: 0x" + "f" * 5000, "m.yaml:2", "more than 300 digits"),
        ("\na: " + "9" * 4000, "m.yaml:2", "more than 300 digits"),
        ("%YAML 1.1\n---\na: no", "m.yaml:1", "expected YAML 1.2"),
        ('\na: "\\ud83d\\ude00"', "m.yaml:2", "U+D83D"),
        ('\n"\\ud800": 1', "m.yaml:2", "U+D800"),
        ('\na: "b\\0c"', "m.yaml:2", "U+0000"),
        ('\na: "\\UFFFFFFFF"', "m.yaml:2", "no Unicode character"),
        ('\na: "\\U00110000"', "m.yaml:2", "no Unicode character"),
        ("a: 1\n? [1, 2]\n: 3", "m.yaml:2", "expected text"),
        ("a: 1\n<<: 3", "m.yaml:2", "<<"),
        ("a: &x\n  - *x\n", "m.yaml:1", "a value that contains it"),
        ("\n" + "[" * 100_000, "m.yaml:2", "more than 64 levels"),
        ("".join(f"{' ' * level}a:\n" for level in range(99)), "m.yaml:65", "more than 64 levels"),
        (f"a: &a {'[' * 40}1{']' * 40}\nb: {'[' * 40}*a{']' * 40}", "m.yaml:1", "more than 64 levels"),
    ],
)
def test_bad_yaml_is_refused_with_its_line(text: str, place: str, told: str):
    assert refusal(text).startswith(f"{place}: ")
    assert told in refusal(text) and "\n" not in refusal(text)


@pytest.mark.medium
def test_aliases_that_multiply_are_refused_before_they_fill_memory():
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    assert "more than 100000 values" in refusal("\n".join(["a0: &a0 [x]", *levels]))


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


PLACES = Origins(file="m.yaml", locations={("sources", "web", "path"): "m.yaml:4", ("stages", 1): "m.yaml:9"})


@pytest.mark.parametrize(
    ("data", "filled"),
    [
        ({"path": ["${CORPUS}/${PART}.jsonl", "plain"], "n": 3}, {"path": ["/data/a.jsonl", "plain"], "n": 3}),
        ([{"k": "x${PART}"}, None], [{"k": "xa"}, None]),
        ("${ITSELF}", "${PART}"),  # what is filled in is not looked through again
        ({"${X}": 1}, {"${X}": 1}),
        ("$${PART} ${PART} $PART $$ {X}", "${PART} a $PART $$ {X}"),
        ("${python:stdlib}/*.py", f"{sysconfig.get_path('stdlib')}/*.py"),
        ("${python:site-packages}", sysconfig.get_path("purelib")),
    ],
)
def test_references_are_filled_in_everywhere(data: object, filled: object, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"CORPUS": "/data", "PART": "a", "ITSELF": "${PART}"}.items():
        monkeypatch.setenv(name, value)
    assert interpolated(data, PLACES) == filled


@given(st.text(alphabet="${}aX:"))
def test_escaped_text_is_read_back_as_it_was(text: str):
    assert interpolated(text.replace("${", "$${"), PLACES) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("${DATAPIPE_NOT_SET}/x", "DATAPIPE_NOT_SET is not set"),
        ("${python:stdlob}", "Did you mean 'python:stdlib'?"),
        ("${a b}", "one of: ${python:site-packages}, ${python:stdlib}"),
        ("${CORPUS/x", "without '}'"),
    ],
)
def test_bad_reference_is_refused_with_its_line(text: str, told: str):
    with pytest.raises(UserError) as caught:
        interpolated({"sources": {"web": {"path": text}}}, PLACES)
    assert str(caught.value).startswith("m.yaml:4: sources.web.path: ")
    assert told in str(caught.value)
    with pytest.raises(UserError, match=r"^m.yaml:9: stages\[1\].filter.length.words\[0\]: "):
        interpolated({"stages": ["a", {"filter.length": {"words": [text]}}]}, PLACES)


ORIGINS = Origins(file="m.yaml")


def base() -> dict[str, Any]:
    return {
        "seed": 17,
        "sources": {"web": {"path": "a", "weight": 1}, "web.v1": {"path": "b"}},
        "stages": ["dedup.exact", {"filter.length": {"min_words": 3, "as": "short"}}, {"filter.language": None}],
        "mixture": {"phases": [{"until": 0.5}]},
        "shards": None,
    }


SHORT = {"filter.length": {"min_words": 5, "as": "short"}}


@pytest.mark.parametrize(
    ("override", "section", "changed"),
    [
        ("seed=18", "seed", 18),
        ("seed='18'", "seed", "18"),
        ("mixture.tokens=1e9", "mixture", {"phases": [{"until": 0.5}], "tokens": 1e9}),
        ("mixture.phases.0.until=80%", "mixture", {"phases": [{"until": "80%"}]}),
        ("pack.sequence_length=512", "pack", {"sequence_length": 512}),  # an absent section
        ("shards.format=parquet", "shards", {"format": "parquet"}),  # an empty one
        ("sources.web.path=[a=1, b]", "sources.web", {"path": ["a=1", "b"], "weight": 1}),
        ("sources.web.v1.weight=0.2", "sources.web.v1", {"path": "b", "weight": 0.2}),  # the longest name that fits
        ("sources.code={path: c}", "sources.code", {"path": "c"}),
        ("stages.1.min_words=5", "stages.1", SHORT),
        ("stages[1].min_words=5", "stages.1", SHORT),
        ("stages.short.min_words=5", "stages.1", SHORT),
        ("stages.dedup.exact.scope=source", "stages.0", {"dedup.exact": {"scope": "source"}}),
        ("stages.filter.language.keep=[en]", "stages.2", {"filter.language": {"keep": ["en"]}}),
        ("stages=[a.b]", "stages", ["a.b"]),
        ("stages.0=a.b", "stages.0", "a.b"),
    ],
)
def test_value_is_yaml_at_a_path(override: str, section: str, changed: object):
    data = base()
    found = apply_override(data, ORIGINS, override)[0]
    assert data == base()  # what is given is left as it was
    name, _, part = section.partition(".")
    assert (found[name] if not part else found[name][int(part) if name == "stages" else part]) == changed
    assert {key: value for key, value in found.items() if key != name} == {k: v for k, v in base().items() if k != name}


def test_replaced_values_report_they_come_from_the_command_line():
    _, origins = apply_override(base(), Origins(file="m.yaml", locations={("seed",): "m.yaml:1"}), "pack.method=concat")
    assert origins.where(("pack", "method")) == "--set: pack.method"
    assert origins.where(("seed",)) == "m.yaml:1: seed"


@pytest.mark.parametrize(
    ("override", "place", "told"),
    [
        ("seed", "--set", "'seed', expected KEY=VALUE"),
        ("=3", "--set", "'=3', expected KEY=VALUE"),
        ("a..b=3", "--set", "'a..b'"),
        ("seed.x=1", "--set: seed.x", "17, which has no keys"),
        ("sources.wbe.weight=2", "--set: sources.wbe", "'web'? Expected one of: web, web.v1."),
        ("stages.9.x=1", "--set: stages.9.x", "an index from 0 to 2, or one of: dedup.exact, short, filter.language."),
        ("stages.filter.lenguage.x=1", "--set: stages.filter.lenguage.x", "Did you mean 'filter.language'?"),
        ("mixture.phases.1.until=1", "--set: mixture.phases.1.until", "an index from 0 to 0."),
        ("seed=[1", "--set seed:1", "invalid YAML"),
    ],
)
def test_bad_override_is_refused(override: str, place: str, told: str):
    with pytest.raises(UserError) as caught:
        apply_override(base(), ORIGINS, override)
    assert str(caught.value).startswith(f"{place}: ")
    assert told in str(caught.value)


SIZES = {"256MiB": 256 << 20, "1 gb": 10**9, "64KiB": 65536, "10kB": 10_000, "2TiB": 2 << 40, "1.5GiB": 3 << 29}
SIZES |= {"0.3GiB": 322_122_547, "512B": 512, "512": 512, 1_000: 1_000, 1e6: 1_000_000}
COUNTS = {"100B": 10**11, "2.5M": 2_500_000, "7k": 7_000, "1.2T": 12 * 10**11, "1e9": 10**9, "1_000": 1_000, 123: 123}
DURATIONS = {"90": 90, "90s": 90, "30min": 1800, "1m": 60, "6h": 21_600, "2d": 172_800, "1.5h": 5400}
SHARES = {"0.1%": "1/1000", 0.001: "1/1000", "80%": "4/5", "12.5 %": "1/8", 1: "1", 0: "0", "0.3": "3/10"}
WEIGHTS = {0.7: "7/10", "70%": "7/10", "1/3": "1/3", 2: "2", 0: "0", 1e-7: "1/10000000", "150%": "3/2"}
RIGHT = [
    *((fields.parse_size, *pair) for pair in SIZES.items()),
    *((fields.parse_count, *pair) for pair in COUNTS.items()),
    *((fields.parse_duration, *pair) for pair in DURATIONS.items()),
    *((fields.parse_share, written, Fraction(share)) for written, share in SHARES.items()),
    *((fields.parse_weight, written, Fraction(weight)) for written, weight in WEIGHTS.items()),
]
NOTHING: list[object] = ["", True, None, [1], float("nan"), float("inf")]
WRONG = {
    fields.parse_size: ["MiB", "256M", "256 megabytes", "-1MB", "0", 0, 0.5, "1e999B"],
    fields.parse_count: ["1.5", "0.0001K", 1.5, "100 billion", "1GB", 0, -5, "1e400", "9e999999999"],
    fields.parse_duration: ["0", "1w", "-1h", "0.5s", "1.5"],
    fields.parse_share: [80, "101%", -0.1, "%", "a%"],
    fields.parse_weight: ["abc", -1, "1/0", "1//2", 10**301],
}


@pytest.mark.parametrize(("parse", "written", "expected"), RIGHT)
def test_spelling_is_read_exactly(parse: Callable[[object], object], written: object, expected: object):
    assert parse(written) == expected


@pytest.mark.parametrize(
    ("parse", "written"), [(parse, written) for parse, listed in WRONG.items() for written in (*listed, *NOTHING)]
)
def test_anything_else_is_refused(parse: Callable[[object], object], written: object):
    with pytest.raises(ValueError, match=r"^expected "):
        parse(written)


@pytest.mark.parametrize(
    ("written", "weight"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        ("1/12345678910", "1/12345678910"),
        (1e10, "1e10"),
        (5e-324, "5e-324"),
        (np.float64(0.7), "7/10"),
        (np.float32(0.7), "7/10"),
        (np.int64(3), "3"),
    ],
)
def test_weight_of_any_digits_and_of_numpy_is_the_number_that_is_written(written: object, weight: str):
    assert fields.parse_weight(written) == Fraction(weight)
    assert fields.parse_weight(fields.plain_number(Fraction(weight))) == Fraction(weight)


@given(st.fractions(min_value=0, max_value=10**6, max_denominator=10**9))
def test_plain_number_reads_back_as_the_same_weight(weight: Fraction):
    assert fields.parse_weight(fields.plain_number(weight)) == weight


def test_plain_number_is_the_shortest_form():
    assert [fields.plain_number(Fraction(text)) for text in ("2", "7/10", "1/3")] == [2, 0.7, "1/3"]
