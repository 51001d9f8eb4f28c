"""`datapipe classifier train`: its documents, models and cards, the same bytes however often and on what."""

import gzip
import io
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from datapipe.engine.run import RunOptions
from datapipe.errors import UserError
from datapipe.models.documents import DocumentInput, documents_of
from datapipe.stage.models.classifier import open_classifier
from tests.support import corpora, runs
from tests.support.command_line import datapipe

pytestmark = pytest.mark.needs("sklearn")

STAGES = """
stages:
  - filter.length: {min_chars: 5}
  - filter.length: {min_chars: 8, as: longer}
  - filter.classifier: {model: not-yet-trained.model, min_score: 0.5}
"""


def texts_of(work: Path, *paths: str, **options) -> dict[str, list[str]]:
    """The texts of each source."""
    run_options = RunOptions(workers=1, limit=options.pop("limit", None))
    found = documents_of(DocumentInput(paths=paths, options=run_options, **options), work, Console(file=io.StringIO()))
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


@pytest.mark.medium
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
def test_documents_that_are_not_there_are_reported(tmp_path, mixture, paths, options, expected):
    named = [path.format(mixture=mixture, folder=tmp_path) for path in paths]
    with pytest.raises(UserError) as raised:
        texts_of(tmp_path / "work", *named, **options)
    assert expected.format(folder=tmp_path) in str(raised.value)


def _texts(number: int, seed: int = 1) -> list[tuple[str, bool]]:
    rng = random.Random(seed)
    good = [rng.random() < 0.5 for _ in range(number)]
    words = {True: ["theorem", "proof", "lemma", "therefore"], False: ["buy", "cheap", "click", "sale"]}
    return [(f"{corpora.prose(rng, 30)} {' '.join(rng.choices(words[is_good], k=2))}", is_good) for is_good in good]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> Path:
    """The same documents as JSONL, Parquet and CSV."""
    folder = tmp_path_factory.mktemp("labelled")
    rows = [
        {"text": text, "label": int(is_good), "site": f"site {number % 9}"}
        for number, (text, is_good) in enumerate(_texts(300))
    ]
    (folder / "data.jsonl.gz").write_bytes(gzip.compress(corpora.jsonl(rows)))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "data.parquet")
    lines = [f'"{row["text"]}",{row["label"]},{row["site"]}' for row in rows]
    (folder / "data.csv").write_text("\n".join(["text,label,site", *lines]) + "\n")
    return folder


def _train(*arguments: str, output: Path) -> dict:
    done = datapipe(["classifier", "train", *arguments, "--output", str(output)])
    assert done.returncode == 0, done.stderr
    return json.loads(output.with_name(f"{output.name}.card.json").read_text()) | {"printed": done.stdout}


@pytest.mark.slow
def test_train_gives_the_same_model_of_files_of_any_format(labelled, tmp_path):
    names = ("data.jsonl.gz", "data.parquet", "data.csv")
    cards = [_train(str(labelled / name), "--set", "bits=12", output=tmp_path / name) for name in names]
    assert len({(tmp_path / name).read_bytes() for name in names}) == 1
    assert len({card["data"]["digest"] for card in cards}) == 1
    card = cards[0]
    assert card["figures"]["auc"]["value"] > 0.95
    assert card["data"]["trained"] + card["data"]["held_out"] == 300
    assert {"theorem", "proof"} <= {word.strip() for ngram, _ in card["heaviest"]["1"] for word in ngram.split()}
    assert "heaviest for 1:" in card["printed"]
    assert open_classifier(tmp_path / "data.csv").labels == ("0", "1")
    assert "| AUC |" in (tmp_path / "data.csv.card.md").read_text()


@pytest.mark.slow
def test_train_of_both_kinds_by_groups_and_of_numbers(labelled, tmp_path):
    data = str(labelled / "data.parquet")
    fasttext = ["--kind", "fasttext", "--set", "dim=8", "--set", "buckets=1000", "--set", "epochs=20"]
    card = _train(data, *fasttext, "--group-by", "site", output=tmp_path / "model.bin")
    assert open_classifier(tmp_path / "model.bin").kind == "classes"
    assert card["figures"]["auc"]["value"] > 0.9
    card = _train(data, "--number", output=tmp_path / "number.model")
    assert open_classifier(tmp_path / "number.model").kind == "number"
    assert card["figures"]["spearman"]["value"] > 0.7
    assert [row["threshold"] for row in card["figures"]["at_least"]] == [1.0]


MIXTURE_STAGES = """
stages:
  - filter.length: {min_chars: 20}
  - dedup.exact
  - filter.classifier: {model: none-yet.model, min_score: 0.5}
"""


@pytest.fixture
def rated_mixture(tmp_path: Path) -> Path:
    """Books and web pages; some are too short or twice. Files of two sizes."""
    texts = _texts(240, seed=2)
    for name, is_good in (("books", True), ("web", False)):
        rows = [{"text": text, "rating": 4 if is_good else 1} for text, good in texts if good == is_good]
        for part in range(3):
            chosen = [*rows[part::3], {"text": "tiny", "rating": 0}, *rows[:2]]
            corpora.write_jsonl(tmp_path / f"{name}-{part}.jsonl", chosen)
    sources = "".join(f"  {name}: {{path: {tmp_path}/{name}-*.jsonl, keep: [rating]}}\n" for name in ("books", "web"))
    return runs.write_mixture(tmp_path, sources, MIXTURE_STAGES, "tokenizer: none\nexecution: {split_bytes: 4KiB}\n")


@pytest.mark.slow
def test_train_of_a_mixture_gives_the_same_bytes_with_any_number_of_workers(rated_mixture, tmp_path):
    for workers in ("1", "2"):
        sources = [str(rated_mixture), "--positive", "books", "--set", "bits=12", "--workers", workers]
        card = _train(*sources, output=tmp_path / f"{workers}.model")
        assert card["figures"]["auc"]["value"] > 0.95
        assert card["data"]["read"] == 240
    assert (tmp_path / "1.model").read_bytes() == (tmp_path / "2.model").read_bytes()
    cards = [json.loads((tmp_path / f"{workers}.model.card.json").read_text()) for workers in "12"]
    assert cards[0] | {"model": ""} == cards[1] | {"model": ""}
    of_column = [str(rated_mixture), "--label", "rating", "--number", "--replace"]
    assert _train(*of_column, output=tmp_path / "1.model")["figures"]["spearman"]["value"] > 0.7


@pytest.mark.slow
@pytest.mark.ray
def test_train_on_ray_gives_the_bytes_of_local_workers(rated_mixture, tmp_path):
    for engine in ("local", "ray"):
        _train(str(rated_mixture), "--positive", "books", "--engine", engine, "--workers", "2", output=tmp_path / engine)
    assert (tmp_path / "local").read_bytes() == (tmp_path / "ray").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--kind", "linaer"], "'linear'"),
        (["--set", "bit=3"], "'bits'"),
        (["--set", "bits=3"], "10"),
        (["--set", "bits"], "NAME=VALUE"),
        (["--kind", "fasttext", "--number"], "linear"),
        (["--negative", "0"], "mixture"),
        (["--positive", "7"], "label"),
        (["--text", "body"], "--text"),
        (["--held-out", "150%"], "--held-out 150%"),
        (["--output", "no/folder/model"], "folder"),
        (["OF A MIXTURE"], "books, web"),
        (["OF A MIXTURE", "--positive", "book"], "'books'"),
        (["OF A MIXTURE", "--positive", "web", "--negative", "web"], "--negative"),
        (["OF A MIXTURE", "--positive", "web", "--number"], "--number"),
    ],
)
def test_train_mistakes_are_reported_before_the_run(labelled, mixture, tmp_path, arguments, fact):
    of_mixture = arguments[0] == "OF A MIXTURE"
    data, options = (mixture, arguments[1:]) if of_mixture else (labelled / "data.parquet", arguments)
    before = sorted(tmp_path.iterdir())
    output = [] if "--output" in arguments else ["--output", str(tmp_path / "model")]
    done = datapipe(["classifier", "train", str(data), *options, *output])
    assert (done.returncode, sorted(tmp_path.iterdir())) == (2, before)
    assert fact in " ".join(done.stderr.split())


@pytest.mark.medium
def test_train_without_held_out_documents_and_of_labels_that_are_numbers(tmp_path):
    rows = [{"text": f"{word} {number}", "label": label} for number in range(9) for label, word in enumerate(("a", "b", "c"))]
    corpora.write_jsonl(tmp_path / "data.jsonl", rows)
    card = _train(str(tmp_path / "data.jsonl"), "--held-out", "0%", output=tmp_path / "model")
    assert (card["labels"], card["figures"]["documents"], card["data"]["trained"]) == (["0", "1", "2"], 0, 27)
    assert "no document is held out" in card["printed"]
    assert "--number predicts a number" in card["printed"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "model", "model.card.json", "model.card.md"]


def test_train_overwrites_no_file(labelled, tmp_path):
    (tmp_path / "model").write_text("mine")
    done = datapipe(["classifier", "train", str(labelled / "data.csv"), "--output", str(tmp_path / "model")])
    assert done.returncode == 2
    assert "--replace" in done.stderr
    assert (tmp_path / "model").read_text() == "mine"
