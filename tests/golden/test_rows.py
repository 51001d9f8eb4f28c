"""The rows that dedup stages emit for fixed texts. Indexes of earlier runs hold such rows: where these values change, raise
the version in `row_identity` of the stage, so that rows of different meaning are never compared."""

import json
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from datapipe.config import catalogue
from datapipe.config.stage_use import StageUse
from datapipe.exchange.files import sorted_rows
from datapipe.stage.global_stage import Global
from datapipe.stage.tables import FINAL_SCHEMAS
from tests.support.global_stages import batch_of, opened

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and then it jumps over the lazy dog again.",
    "Ärger im Büro: 12 % mehr Überstunden!\nDie Chefin sagt nichts.\n\nDie Chefin sagt nichts. Am Ende des Tages.",
    "今天天气很好。我们去公园散步吧。今天天气很好。我们去公园散步吧。",
    "naïve café — e\u0301 \U0001f600 \u200b zero width",
    "a b c",
    "1984 2001 42",
    "",
    " \n\t ",
    " ".join(f"word{number % 17} is number {number}." for number in range(120)),
]
CASES: list[tuple[str, dict[str, Any], int, str]] = [
    ("dedup.exact", {}, 1, "5eb043e8293bb27a"),
    ("dedup.exact", {"normalize": "whitespace_case"}, 3, "6f336f7ab0fab1c9"),
    ("dedup.exact", {"by": "field", "field": "url", "normalize": "url"}, 1, "d63cf5d0f27416e4"),
    ("dedup.minhash", {}, 3, "8d5eb860455e0200"),
    ("dedup.minhash", {"ngram": 3}, 3, "b103cfd1b45c231e"),
    ("dedup.minhash", {"shingle": "char"}, 3, "c02b1961faf5fa4a"),
    ("dedup.minhash", {"verify": "none"}, 3, "e61d09280d992ea7"),
    ("dedup.minhash", {"threshold": 0.5}, 3, "d1144a33979c7ccf"),
    ("dedup.lines", {}, 3, "42dd528e0edff4af"),
    ("dedup.lines", {"unit": "paragraph"}, 3, "ddcf7c72174fc024"),
    ("dedup.lines", {"unit": "three_sentences"}, 3, "eb039928d9890649"),
    ("dedup.lines", {"normalize": "none"}, 1, "3aa5c328c16ac937"),
    ("dedup.lines", {"min_length": 9}, 3, "f11b1f0804afc40f"),
    ("dedup.substring", {}, 1, "b2f754eb428b9db6"),
    ("dedup.substring", {"unit": "byte"}, 1, "c9059b73d29d350f"),
    ("dedup.substring", {"length": 20}, 1, "cf162f998ff33d96"),
]
"""Stage, options, version of the rows, digest."""


def _stage(name: str, options: dict[str, Any]) -> Global:
    stage = catalogue.build_stage(StageUse(name=name, alias=name, options=options))
    assert isinstance(stage, Global)
    return opened(stage, name)


def _digest(stage: Global) -> str:
    """Of the rows of all tables that an index holds, sorted."""
    hasher = xxhash.xxh3_64()
    tables = stage.emit(
        batch_of(TEXTS, url=pa.array([f"https://www.site.org/page{n}/?utm_source=x" for n in range(len(TEXTS))]))
    )
    for name in sorted(set(tables) - set(FINAL_SCHEMAS)):
        rows = sorted_rows(pa.Table.from_batches([tables[name]]))
        hasher.update(json.dumps([name, rows.schema.names, rows.num_rows]).encode())
        for row in rows.to_pylist():
            hasher.update(repr(sorted(row.items())).encode())
    return hasher.hexdigest()


@pytest.mark.parametrize(("name", "options", "version", "digest"), CASES)
def test_rows_of_a_version_do_not_change(name: str, options: dict[str, Any], version: int, digest: str) -> None:
    stage = _stage(name, options)
    assert (stage.row_identity(1)["version"], _digest(stage)) == (version, digest)


def _seen(stage: Global) -> set[str]:
    """Options that decide the rows of a stage."""
    return set(type(stage).model_fields) - set(Global.model_fields) - {"keep", *stage.apply_options}


def test_every_dedup_stage_has_golden_rows() -> None:
    """And every option that decides them is given another value somewhere, which is another identity."""
    found = {name for name in catalogue.stage_names() if issubclass(catalogue.stage_class(name), Global)}
    found.remove("join.repository")  # no index has its rows
    assert {name for name, *_ in CASES} == found
    for name in found:
        given = [options for other, options, *_ in CASES if other == name]
        assert _seen(_stage(name, {})) - {"bands", "rows"} <= {option for options in given for option in options}
        identities = [json.dumps(_stage(name, options).row_identity(1)) for options in given]
        assert len(set(identities)) == len(identities)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dedup.exact", {"size_column": "n", "cluster_column": "c", "max_dropped": "1%", "against": "nowhere"}),
        ("dedup.minhash", {"min_similarity": 0.1, "components_bytes": 0, "size_column": "n"}),
        ("dedup.lines", {"max_removed_share": 0.1}),
        ("dedup.substring", {"max_removed_share": 0.1}),
    ],
)
def test_options_that_emit_does_not_use_change_no_row(name: str, options: dict[str, Any]) -> None:
    plain, other = _stage(name, {}), _stage(name, options)
    assert set(plain.apply_options) <= set(options) <= other.unseen_by_emit()
    assert _digest(plain) == _digest(other) and plain.row_identity(1) == other.row_identity(1)


def test_identities_have_the_seed_where_rows_depend_on_it() -> None:
    for name in ("dedup.exact", "dedup.lines", "dedup.substring"):
        assert _stage(name, {}).row_identity(1) == _stage(name, {}).row_identity(2)
    minhash = _stage("dedup.minhash", {})
    assert minhash.row_identity(1) != minhash.row_identity(2)
    given = _stage("dedup.minhash", {"bands": 14, "rows": 8, "keep": "longest", "min_similarity": 0.9, "components_bytes": 0})
    assert given.row_identity(1) == minhash.row_identity(1)  # the options that choose the survivor are not part of the identity
