"""Exact duplicates and duplicate lines: which are equal, and what is left; stages that cut, in whole runs, by brute force."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from datapipe.errors import UserError
from datapipe.exchange.tables import read_documents
from datapipe.metrics import TaskMetrics
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root
from stages.dedup.exact import Exact
from stages.dedup.lines import Lines
from tests.oracles import substring as substring_oracle
from tests.oracles import text_units as lines_oracle
from tests.support import corpora, runs
from tests.support.cut_texts import parts_kept, spans_cut
from tests.support.global_stages import batch_of, exchanged, opened, reduce_all, row_of


def _exact(**options: object) -> Exact:
    return opened(Exact.model_validate(options), "dedup.exact")


def _dropped(stage: Exact, texts: list[str], **more: pa.Array) -> dict[int, int]:
    """Number of each dropped document -> number of its survivor."""
    drops = reduce_all(stage, [batch_of(texts, **more)])["drops"]
    assert set(drops.column("value").to_pylist()) <= {1.0}
    return {row_of(row["key"]): row_of(row["survivor"]) for row in drops.to_pylist()}


TEXTS = ["a b", "A  b", "a b", "", "x", "", " a\u00a0B\n", "a b ", "x", "\u3000", "STRASSE", "é", "É"]
EMPTY = ["", " ", "\n\u00a0", "", "x", "x"]
DIGITS = ["12", "12", "p. 12", "p. 12", "3.50 $", "3.50 $", "...", "...", "٣", "٣"]
LENGTHS = ["a b", "a  b", " a b ", "A b ", "a  B"]
FOLDED = {"normalize": "whitespace_case"}
CAFE, OTHER_QUOTES = "Die Straße zum Café ist „nah“", 'Die Straße zum Café ist "nah"'
LIKE_CAFE = [
    "Die\u00a0Straße zum Café  ist „nah“",
    "DIE STRASSE ZUM CAFÉ IST „NAH“",
    "Die Strasse zum Cafe\u0301\u2003ist „nah“\u3000",
    "\ufeffDie Stra\u00adße zum \u200bCa\u200bfé\u2060 ist\u200d „nah\ufe0f“",
]

EXACT: list[tuple[dict[str, object], list[str], dict[int, int]]] = [
    ({}, TEXTS, {2: 0, 5: 3, 8: 4}),
    (FOLDED, TEXTS, {1: 0, 2: 0, 6: 0, 7: 0, 5: 3, 8: 4, 9: 3, 12: 11}),
    (FOLDED | {"keep": "longest"}, LENGTHS, {0: 2, 1: 2, 3: 2, 4: 2}),
    (FOLDED | {"keep": "shortest"}, LENGTHS, {1: 0, 2: 0, 3: 0, 4: 0}),
    (FOLDED | {"keep": "longest"}, LENGTHS[:2] + LENGTHS[4:], {0: 1, 2: 1}),  # of equally long ones the first
    ({}, EMPTY, {3: 0, 5: 4}),
    (FOLDED, EMPTY, {1: 0, 2: 0, 3: 0, 5: 4}),
    ({}, DIGITS, {1: 0, 3: 2, 5: 4, 7: 6, 9: 8}),
]
EXACT += [
    (FOLDED, [CAFE, *LIKE_CAFE, OTHER_QUOTES], {1: 0, 2: 0, 3: 0, 4: 0}),  # in the canonical caseless form of Unicode
]


@pytest.mark.parametrize(("options", "texts", "expected"), EXACT)
def test_exact_equal_texts_keep_one(options: dict[str, object], texts: list[str], expected: dict[int, int]) -> None:
    assert _dropped(_exact(**options), texts) == expected


def test_exact_rows_of_folded_texts_have_a_version_of_their_own() -> None:
    assert [_exact(**options).row_identity(1)["version"] for options in ({}, FOLDED)] == [1, 3]


URLS = ["https://www.example.com/a/", "http://EXAMPLE.com/a?utm_source=x", None, "example.com/a?b=1", "", "https://", None]
URLS += ["example.com/A", "www.example.com/a", "/"]
BY_URL: dict[str, Any] = {"by": "field", "field": "url", "normalize": "url"}
BY_N: dict[str, Any] = {"by": "field", "field": "n"}


@pytest.mark.parametrize(
    ("options", "column", "expected"),
    [
        (BY_URL, pa.array(URLS), {1: 0, 8: 0}),  # one page, and nothing without a URL
        (BY_URL, pa.array(URLS).dictionary_encode().cast(pa.large_string()), {1: 0, 8: 0}),
        (BY_URL, pa.nulls(3), {}),
        (BY_N | {"keep": "longest"}, pa.array([7, 7, None, 70]), {0: 1}),
        (BY_N, pa.array([0.5, 1.5, 0.5]), {2: 0}),
        ({"by": "field", "field": "id"}, pa.nulls(2), {}),
        ({"keep": {"highest": "n"}}, pa.array([0.25, 0.5, None, 0.5]), {0: 1, 2: 1, 3: 1}),
    ],
)
def test_exact_by_a_column(options: dict[str, Any], column: pa.Array, expected: dict[int, int]) -> None:
    texts = ["a", "aa", "a", "a"] if options.get("keep") == "longest" else ["a"] * len(column)
    assert _dropped(_exact(**options), texts, url=column, n=column) == expected


@pytest.mark.parametrize(("field", "named"), [("ur", "'ur'.*'url'"), ("url", "list.*types")])
def test_exact_by_a_field_that_is_not_there_or_no_text_is_refused(field: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        _exact(by="field", field=field).emit(batch_of(["a"], url=pa.array([[1.0]])))


@pytest.mark.parametrize("options", [{"by": "field"}, {"field": "url"}, {"by": "text", "field": "url"}])
def test_exact_options_that_contradict_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="field"):
        Exact.model_validate(options)


def test_exact_keep_random_is_even_over_documents_and_fixed_by_seed() -> None:
    texts = [str(number // 4) for number in range(800)]
    dropped = _dropped(_exact(keep="random"), texts)
    assert dropped == _dropped(_exact(keep="random"), texts)
    counts = np.bincount([place % 4 for place in set(range(800)) - set(dropped)], minlength=4)
    assert counts.sum() == 200
    assert counts.min() > 25


def test_hashes_of_a_text_are_pinned() -> None:
    """Changing these hashes makes every earlier run's rows worthless: a breaking change."""
    batch = batch_of(["Call me Ishmael."])
    (row,) = _exact().emit(batch)["texts"].to_pylist()
    assert (row["hash"], row["digest"]) == (8330280356703803081, 4889607254472707005)
    (row,) = _lines().emit(batch)["units"].to_pylist()
    assert (row["hash"], row["digest"], row["start"], row["size"]) == (14442756389976022463, 5278431907498196812, 0, 16)


def test_exact_half_a_hash_in_common_is_not_equal() -> None:
    stage = _exact()
    rows = stage.emit(batch_of(["a", "b", "a", "b", "c"]))["texts"]
    same_hash = rows.set_column(0, rows.schema.field("hash"), pa.array(np.full(5, 7, np.uint64)))
    drops = exchanged(stage, {"texts": [same_hash]})["drops"].to_pylist()
    assert {row_of(row["key"]): row_of(row["survivor"]) for row in drops} == {2: 0, 3: 1}


def test_exact_sizes_count_what_was_dropped_where_a_column_is_asked_for() -> None:
    sizes = reduce_all(_exact(size_column="copies"), [batch_of(TEXTS)])["sizes"].to_pylist()
    assert sorted((row_of(row["key"]), row["size"]) for row in sizes) == [(0, 1), (3, 1), (4, 1)]
    assert reduce_all(_exact(), [batch_of(TEXTS)])["sizes"].num_rows == 0


# ------------------------------------------------------------------------------------------------ lines


def _lines(**options: object) -> Lines:
    return opened(Lines.model_validate(options))


def _left(texts: list[str], **options: object) -> list[str]:
    batch = batch_of(texts)
    return ["".join(parts) for parts in parts_kept(spans_cut(_lines(**options), [batch]), batch)]


STREET = "Die Straße zum Café 1984"
MENUS = ["Menu\n\nOne.\n", "Home\nmenu!\n\nTwo.\n", "MENU\nThree, 1 of 9\n\nthree 2 of 8"]
FOUR = ["One. Two! Three? Four.", "Zero. Two! Three? Four. Five.", "Two! Three? Else. Four."]
SIGNS = ["---\na\n---\n", "---\nb\n***\n"]
CHINESE = ["中文。再一句。又一句。", "前言。中文。再一句。又一句。"]
THREE = {"unit": "three_sentences"}

LINES: list[tuple[dict[str, object], list[str], list[str]]] = [
    # case, normal form, spaces and digits are not compared
    ({}, [STREET, "DIE STRASSE ZUM CAFÉ, 1999!"], [STREET, ""]),
    ({}, [STREET, "Die Strasse\u00a0zum\u2003Cafe\u0301 – 2001", "die ſtraße zum café 1234"], [STREET, "", ""]),
    ({}, ["ΣΊΣΥΦΟΣ", "Σίσυφος", "σισυφος"], ["ΣΊΣΥΦΟΣ", "", "σισυφος"]),
    ({}, ["x² = 1", "x\u00b2 = 4", "x\u00b2 = ४", "x² = ４"], ["x² = 1", "", "", ""]),
    ({}, ["x² = 1", "x2 = 1", "x³ = 1", "x① = 1", "x₂ = 1"], ["x² = 1", "x2 = 1", "x³ = 1", "x① = 1", "x₂ = 1"]),
    # a folded character counts once
    ({"min_length": 3}, ["ßé", "ßé"], ["ßé", "ßé"]),
    ({"min_length": 2}, ["ßé", "ßé"], ["ßé", ""]),
    # the first by key is kept, and blank lines are cut with their line
    ({}, MENUS, ["Menu\n\nOne.\n", "Home\nTwo.\n", "Three, 1 of 9\n\n"]),
    ({"normalize": "none"}, MENUS, MENUS),
    ({"keep": "none"}, MENUS, ["One.\n", "Home\nTwo.\n", ""]),
    ({"min_length": 5}, MENUS, ["Menu\n\nOne.\n", "Home\nmenu!\n\nTwo.\n", "MENU\nThree, 1 of 9\n\n"]),
    (THREE, FOUR, [FOUR[0], "Zero. Five.", FOUR[2]]),
    ({}, SIGNS, SIGNS),
    ({}, ["", "", " \n "], ["", "", " \n "]),
    (THREE, CHINESE, [CHINESE[0], "前言。"]),
]
LINES.append(({}, ["ạ\u0301 각", "á\u0323 \u1100\u1161\u11a8"], ["ạ\u0301 각", ""]))
for invisible in "\u00ad\u200b\u200c\u200d\u2060\ufeff\ufe0f\u034f":
    changed = f"{invisible}ca{invisible}fe{invisible}\u0301 {invisible} noir{invisible}"
    LINES.append(({}, ["café noir", changed], ["café noir", ""]))
    LINES.append(({"normalize": "none"}, ["café noir", changed], ["café noir", changed]))


@pytest.mark.parametrize(("options", "texts", "expected"), LINES)
def test_lines_read_before_are_cut(options: dict[str, object], texts: list[str], expected: list[str]) -> None:
    assert _left(texts, **options) == expected


def test_lines_removed_share_limit_is_the_option() -> None:
    assert _lines(max_removed_share=0.25).removed_share_limit() == 0.25


@pytest.mark.real
def test_lines_cs336_fixture_is_as_expected(real_data) -> None:
    """Their rule removes every copy of a line that occurs more than once."""

    def read(name: str) -> list[str]:
        with zstandard.open(real_data / f"dedup/cs336_documents_{name}.jsonl.zst", "rt", encoding="utf-8") as lines:
            return [json.loads(line)["text"] for line in lines]

    assert _left(read("with_line_duplicates"), normalize="none", keep="none") == read("line_deduplicated")


SOURCES = ("books", "web")
"""In the order of the mixture; by the keys of their documents the last one is the first."""


def _pages() -> list[str]:
    """Pages of lines of words that repeat lines and longer passages of other pages. The text around such a passage is a page of
    its own, which the page would repeat if cut text were joined."""
    rng = random.Random(11)
    words = [f"w{number}" for number in range(400)]
    pages: list[list[str]] = []
    for _ in range(120):
        lines = [" ".join(rng.choices(words, k=rng.randint(3, 12))) + "." for _ in range(rng.randint(1, 12))]
        if pages and rng.random() < 0.6:
            other = rng.choice(pages)
            at = rng.randint(0, len(other))
            lines[rng.randint(0, len(lines)) :] = other[at : at + rng.randint(1, 8)]
        pages.append(lines)
    for number in range(4):
        passage, before, behind = (" ".join(f"{name}{number}x{n}" for n in range(25)) + "." for name in "pab")
        pages += [[passage], [before, passage, behind], [before[-70:], behind[:70]]]
    return ["\n".join(lines) for lines in pages]


def _removed(texts: list[str], stage: str) -> list[set[int]]:
    """Bytes to cut, by comparing all with all."""
    if stage == "dedup.substring":
        return substring_oracle.repeated([text.encode() for text in texts], False, 20, "first")
    seen: set[tuple[int, int]] = set()
    removed: list[set[int]] = [set() for _ in texts]
    for document, text in enumerate(texts):
        for start, stop, hashed in lines_oracle.units(text, "line", "ccnet", 1):
            removed[document].update(range(start, stop) if hashed in seen else ())
            seen.add(hashed)
    return removed


def _documents(finished: runs.Finished, segment: str) -> list[str]:
    """The texts after a part of the cleaning, in the order of the sources."""
    steps = [step for name in SOURCES for step in finished.plan.of_kind("map", name) if step.id.endswith(segment)]
    outputs = [output for step in steps for output in step.outputs("documents")]
    batches = read_documents(Root(finished.mixture.output), outputs, TaskMetrics())
    return [text for batch in batches for text in batch.texts.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", ", length: 20"])
def test_cuts_documents_of_a_run_are_those_of_brute_force_and_a_second_pass_cuts_none(options: str, tmp_path: Path) -> None:
    texts, name = _pages(), "dedup.substring" if options else "dedup.lines"
    for source, part in zip(SOURCES, (texts[:60], texts[60:])):
        corpora.write_jsonl(tmp_path / source / "a.jsonl", [{"text": text} for text in part])
    assert file_hash("books", "a.jsonl") > file_hash("web", "a.jsonl")
    given = f"keep: source_order{options}"
    mixture = runs.write_mixture(
        tmp_path,
        "\n".join(f"  {source}: {{path: {tmp_path}/{source}/*.jsonl}}" for source in SOURCES),
        f"stages:\n  - {name}: {{{given}, max_removed_share: 0.4}}\n  - {name}: {{{given}, as: again}}\n",
        "tokenizer: none\nexecution: {split_bytes: 16KiB, bucket_bytes: 64KiB}\n",
    )
    finished = runs.run_mixture(mixture, make_engine=runs.InProcess)
    expected = []
    for text, removed in zip(texts, _removed(texts, name)):
        if len(removed) <= 0.4 * len(text.encode()):
            expected.append(bytes(byte for at, byte in enumerate(text.encode()) if at not in removed).decode())
    assert 30 < len(expected) < len(texts)
    assert _documents(finished, f"apply-{name}") == expected
    assert _documents(finished, "apply-again") == expected
    document_counts = [record.metrics.document_counts for record in finished.watcher.records]
    assert any(one.dropped[f"{name}:too_much_removed"] for one in document_counts)
    assert not any(counted.startswith("again:") and count for one in document_counts for counted, count in one.counts.items())
    if options:
        assert any(_removed(expected, name)), "without cut points the second pass would cut something"
