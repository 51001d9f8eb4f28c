"""Documents as a classifier will see them: of a mixture up to it, of an output, of files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from datapipe.classifier.documents import DocumentInput, documents_of
from datapipe.errors import UserError
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

STAGES = """
stages:
  - filter.length: {min_chars: 5}
  - filter.length: {min_chars: 8, as: longer}
  - filter.classifier: {model: not-yet-trained.model, min_score: 0.5}
"""


def texts_of(work: Path, *paths: str, **options) -> dict[str, list[str]]:
    """The texts of each source."""
    found = documents_of(DocumentInput(paths=paths, workers=1, **options), work, Console(file=io.StringIO()))
    texts: dict[str, list[str]] = {}
    for batch in found():
        for name, text in zip(batch.column("id").to_pylist(), batch.column("text").to_pylist()):
            texts.setdefault(name.partition("/")[0], []).append(text)
    return texts


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    corpora.write_jsonl(tmp_path / "web.jsonl", [{"text": text} for text in ("tiny", "longer text", "a text", "longer text")])
    corpora.write_jsonl(tmp_path / "books.jsonl", [{"text": "another text"}, {"text": "longer text"}])
    sources = f"  web: {{path: {tmp_path}/web.jsonl}}\n  books: {{path: {tmp_path}/books.jsonl}}\n"
    return runs.write_mixture(tmp_path, sources, STAGES, "tokenizer: {train: {vocab_size: 300}}\nvalidation: 10%\n")


@pytest.mark.slow
def test_documents_of_a_mixture_are_those_that_reach_its_classifier(tmp_path, mixture):
    expected = {"web": ["longer text"] * 2, "books": ["another text", "longer text"]}
    assert texts_of(tmp_path / "work", str(mixture)) == expected
    assert texts_of(tmp_path / "work", str(tmp_path / "work")) == expected
    of_files = ["another text", "longer text", "tiny", "longer text", "a text", "longer text"]
    assert texts_of(tmp_path / "work", f"{tmp_path}/*.jsonl") == {"files": of_files}  # without stages
    earlier = texts_of(tmp_path / "earlier", str(mixture), until="longer", source="web")
    assert earlier == {"web": ["longer text", "a text", "longer text"]}
    assert texts_of(tmp_path / "limited", str(mixture), limit=2, source="web") == {"web": ["longer text"]}


@pytest.mark.slow
def test_other_sources_are_run_only_where_a_stage_compares_documents(tmp_path, mixture):
    (tmp_path / "books.jsonl").unlink()
    assert texts_of(tmp_path / "work", str(mixture), source="web") == {"web": ["longer text"] * 2}
    with pytest.raises(UserError, match=r"books\.jsonl"):
        texts_of(tmp_path / "work", str(mixture), source="web", settings=("stages=[dedup.exact]",))


@pytest.mark.parametrize(
    ("paths", "options", "expected"),
    [
        (("{mixture}",), {"source": "wbe"}, "'web'"),
        (("{mixture}",), {"until": "filter.lenght"}, "filter.length"),
        (("{mixture}", "a.jsonl"), {}, "2 inputs"),
        (("{folder}/none.yaml",), {}, "none.yaml"),
        (("{folder}",), {}, "{folder}"),
        (("{folder}/none-*.jsonl",), {}, "none-"),
    ],
)
def test_documents_that_are_not_there_are_told(tmp_path, mixture, paths, options, expected):
    named = [path.format(mixture=mixture, folder=tmp_path) for path in paths]
    with pytest.raises(UserError) as raised:
        texts_of(tmp_path / "work", *named, **options)
    assert expected.format(folder=tmp_path) in str(raised.value)
