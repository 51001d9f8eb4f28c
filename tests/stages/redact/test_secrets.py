"""Secrets in documents are replaced, and code without secrets is unchanged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from pydantic import ValidationError

from datapipe import columns
from datapipe.kernels.redact import secrets as kernels
from datapipe.stage import FilterResult, StageContext
from datapipe.stage.documents import DocumentBatch
from stages.redact.secrets import Secrets
from tests.support.synthetic_secrets import drawn_keys, drawn_secrets


def _batch(texts: list[str]) -> DocumentBatch:
    keys = columns.make_keys(1, np.arange(len(texts), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(texts))], pa.large_string())
    return DocumentBatch(pa.record_batch({"key": keys, "id": ids, "text": pa.array(texts, pa.large_string())}))


def _process(texts: list[str], seed: int = 1, **options: object) -> FilterResult:
    stage = Secrets.model_validate(options)
    stage.open(StageContext(name="redact.secrets", seed=seed))
    return stage.process(_batch(texts))


def _texts(texts: list[str], seed: int = 1, **options: object) -> list[str]:
    result = _process(texts, seed, **options)
    return result.columns["text"].to_pylist() if "text" in result.columns else texts


PASSWORD = "q8Zt5Lw2Rx9Vb3Kd"
DRAWN = drawn_secrets(3)
ONE_OF_EACH = [*(f"é x = '{secret}'\n" for _, secret in DRAWN), *(f"AccountKey={key}" for _, key in drawn_keys(3))]
GITHUB, GITLAB = (next(secret for kind, secret in DRAWN if kind == name) for name in ("github", "gitlab"))


def test_secrets_tag_replaces_and_counts_each_kind() -> None:
    result = _process([*ONE_OF_EACH, f"password = '{PASSWORD}'", "clean"])
    kinds = [kind for kind, _ in DRAWN + drawn_keys(3)] + ["assignment"]
    assert set(kinds) == set(Secrets.counts) == set(kernels.KINDS)
    for name in Secrets.counts:
        assert result.columns[name].to_pylist() == [*(int(kind == name) for kind in kinds), 0]
    tags = ["<PRIVATE_KEY>" if kind == "private_key" else "<SECRET>" for kind, _ in DRAWN]
    texts = [
        *(f"é x = '{tag}'\n" for tag in tags),
        "AccountKey=<SECRET>",
        "AccountKey=<SECRET>",
        "password = '<SECRET>'",
        "clean",
    ]
    assert result.columns["text"].to_pylist() == texts


def test_secrets_kinds_are_in_the_order_of_the_kernel() -> None:
    assert Secrets.counts == kernels.KINDS


@pytest.mark.parametrize("kind", kernels.KINDS)
def test_secrets_one_kind_alone_leaves_the_others(kind: str) -> None:
    result = _process([*ONE_OF_EACH, f"password = '{PASSWORD}'"], kinds=[kind])
    for name in Secrets.counts:
        assert (sum(result.columns[name].to_pylist()) > 0) == (name == kind)


def test_secrets_entropy_and_kinds_settle_what_an_assignment_is() -> None:
    text = f"password = '{PASSWORD}'"
    assert _texts([text]) == ["password = '<SECRET>'"]
    assert _texts([text], min_entropy=4.5) == _texts([text], kinds=["aws"]) == [text]


@pytest.mark.parametrize("replace", ["tag", "fake"])
def test_secrets_redacting_twice_changes_nothing(replace: str) -> None:
    once = _texts([*ONE_OF_EACH, f"password = '{PASSWORD}'", " ".join(ONE_OF_EACH)], replace=replace)
    assert "text" not in _process(once, replace=replace).columns


def test_secrets_fake_is_the_same_for_the_same_secret_and_delete_writes_nothing() -> None:
    texts = [f"a = '{GITHUB}'", f"b: {GITHUB}", f"{GITLAB}"]
    first, second, third = (text.split()[-1].strip("'") for text in _texts(texts, replace="fake"))
    assert first == second != third
    assert first.startswith("EXAMPLE-")
    assert _texts(texts, seed=2, replace="fake")[1] != f"b: {second}"
    assert _texts(texts[1:2], replace="fake") == [f"b: {second}"]
    assert _texts(texts, replace="delete") == ["a = ''", "b: ", ""]


def test_secrets_more_hits_than_allowed_drop_the_document() -> None:
    texts = [f"{GITHUB} {GITLAB}", GITHUB, "none"]
    result = _process(texts, max_hits=1)
    assert (result.keep.tolist(), result.rule.tolist(), result.value.tolist()) == ([False, True, True], [0, -1, -1], [2, 1, 0])
    assert _process(texts).keep.all()


def test_secrets_options_that_nothing_fits_are_refused() -> None:
    for options in ({"kinds": ["passwords"]}, {"kinds": []}, {"min_entropy": -1}, {"max_hits": -1}):
        with pytest.raises(ValidationError):
            Secrets.model_validate(options)


def _strings(record: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(record, dict | list):
        return [text for one in (record.values() if isinstance(record, dict) else record) for text in _strings(one)]
    return [record] if isinstance(record, str) else []


def _all_texts(path: Path) -> list[str]:
    with zstandard.open(path, "rb") if path.suffix == ".zst" else gzip.open(path) as stream:
        text = stream.read().decode("utf-8", errors="replace")
    if ".jsonl" in path.name:
        return [found for line in text.split("\n") if line for found in _strings(json.loads(line))]
    return _strings(json.loads(text)) if ".json" in path.name else [text]


@pytest.mark.real
def test_secrets_code_and_prose_without_any_hold_none(real_data: Path) -> None:
    """Functions, solutions, a manual and web pages: 48 MB."""
    files = [*sorted((real_data / "code").iterdir()), *sorted((real_data / "prose").glob("*.zst"))]
    texts = [text for path in files for text in _all_texts(path)]
    assert sum(map(len, texts)) > 45_000_000
    result = _process(texts)
    assert {name: sum(result.columns[name].to_pylist()) for name in Secrets.counts} == dict.fromkeys(Secrets.counts, 0)


@pytest.mark.parametrize("around", ["secret = 'https://h/{}'", "password='x.{}'", "token='{}'"])
def test_secrets_a_kind_that_is_not_wanted_hides_none_that_is(around: str) -> None:
    token = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    assert token not in _texts([around.format(token)], kinds=("github",))[0]
