"""What is published of packed rows: what is drawn when, and what is wrong with a validation split."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.columns import key_halves, keys_from
from datapipe.errors import DatapipeError
from datapipe.rng import below_fraction, keyed_hash, seed_for, shuffle_hash
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.steps import fold
from datapipe.steps.splits import file_hash
from datapipe.storage.root import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

EVEN = ["sources.web.weight=1", "sources.books.weight=1"]
FEW_BOOKS = ["mixture.tokens=1M", "sources.books.max_epochs=2.5"]


@pytest.fixture(scope="module")
def published(tmp_path_factory, corpus) -> Path:
    """A mixture that has run once, with a tokenizer that is there, so that weights decide nothing but what is drawn. Whoever
    uses it publishes it anew."""
    folder = tmp_path_factory.mktemp("published")
    first = run(runs.write_mixture(folder, corpus, stages="", name="first.yaml"), output=folder / "first")
    tokenizer = f"path: {first.mixture.output}/tokenizer.json"
    tail = runs.TAIL.replace("train: {vocab_size: 600, sample_bytes: 1MiB}", tokenizer)
    mixture = runs.write_mixture(folder, corpus, stages="", tail=tail)
    run(mixture)
    return mixture


def run(mixture: Path, *overrides: str, **options) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess, **options)


def again(mixture: Path, *overrides: str) -> runs.Finished:
    """Another run of a mixture, which does nothing but publish."""
    done = run(mixture, *overrides)
    assert done.watcher.records == []
    assert read_snapshot(Root(done.mixture.output)) == done.snapshot
    return done


def _sizes(done: runs.Finished) -> dict[str, int]:
    return {name: source["epoch_tokens"] for name, source in done.report["mixture"]["sources"].items()}


@pytest.mark.slow
def test_drawing_options_re_run_nothing_and_are_in_the_snapshot(published):
    first = again(published).snapshot
    assert (first.exhausted, first.window_shards, first.total_tokens) == ("stop", 8, None)
    options = ["mixture.exhausted=redistribute", "mixture.window=0", "mixture.tokens=1M", "sources.books.max_epochs=2"]
    phases = "mixture.phases=[{until: 1, weights: {books: 1}, schedule: linear}]"
    other = again(published, *options, phases).snapshot
    assert (other.exhausted, other.window_shards, other.sources["books"].max_epochs) == ("redistribute", 0, 2)
    first_stair, *_, last_stair = other.phases
    assert (first_stair.until_tokens, first_stair.weights) == (15_625, {"web": 889, "books": 391})
    assert (last_stair.until_tokens, last_stair.weights) == (None, {"web": 7, "books": 1273})
    assert other.shards == first.shards
    assert again(published).snapshot == first


def test_documents_are_in_the_shards_of_the_range_of_their_hash(published):
    snapshot, root = again(published).snapshot, Root(str(published.parent / "out"))
    assert len({entry.hashes for entry in snapshot.shards}) > 4
    for entry in snapshot.shards:
        reader = ShardReader(root, entry, snapshot.form)
        keys = reader.read(np.arange(reader.num_rows)).keys
        reader.close()
        hashes = shuffle_hash(key_halves(keys_from(keys)), snapshot.seed)
        assert entry.hashes is not None
        start, stop = entry.hashes
        assert all(start <= hash_ < stop for hash_ in hashes.tolist())


def test_weights_that_rounding_changes_are_published_and_reported(published):
    done = again(published, "sources.web.weight=0.30000000000000004", "sources.books.weight=1e-30")
    assert done.snapshot.phases[0].weights == {"web": 2**40 - 1, "books": 1}
    assert "rounded_weights" in {warning.kind for warning in done.warnings}


def test_temperature_weighs_by_the_tokens_that_were_packed(published):
    done = again(published, *EVEN, "mixture.weighting=temperature", "mixture.temperature=2")
    sizes, weights = _sizes(done), done.snapshot.phases[0].weights
    assert sizes == {name: 64 * sum(entry.sequences for entry in done.snapshot.shards_of(name, "train")) for name in sizes}
    assert weights["web"] / weights["books"] == pytest.approx((sizes["web"] / sizes["books"]) ** 0.5)
    assert {name: source.weight for name, source in done.snapshot.sources.items()} == weights
    assert done.report["mixture"]["sources"]["web"]["share"] == pytest.approx(weights["web"] / sum(weights.values()))
    drawn = again(published, "mixture.tokens=100k", "sources.books.max_epochs=9").report["mixture"]["tokens"]
    assert 100_000 - 100 < drawn <= 100_000  # whole rows


def test_source_with_too_little_text_is_refused_or_reported_as_the_mixture_declares(published):
    before = again(published).snapshot
    with pytest.raises(DatapipeError, match="source 'books' has too little text"):
        run(published, "mixture.exhausted=refuse", *FEW_BOOKS)
    assert read_snapshot(Root(str(published.parent / "out"))) == before
    enough = ["mixture.exhausted=refuse", "sources.books.max_epochs=2.5", "mixture.tokens=10k"]
    assert again(published, *enough).snapshot.exhausted == "refuse"
    for exhausted, is_told in (("stop", True), ("redistribute", False)):
        told = again(published, *FEW_BOOKS, f"mixture.exhausted={exhausted}").told
        assert any("source 'books' has too little text" in line for line in told) == is_told


@pytest.mark.slow
def test_weights_of_a_trained_tokenizer_train_it_again(tmp_path, corpus):
    mixture = runs.write_mixture(tmp_path, corpus, stages="", tail=runs.TAIL.replace("1MiB", "50kB"))
    run(mixture)
    kinds = {step.rpartition("/")[2] for step in run(mixture, "sources.web.weight=3").watcher.steps}
    assert kinds == {"sample", "train", "tokenize", "pack"}


HELD_OUT_TAIL = "validation: %s\ntokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 32}\n"


def _run_of_texts(folder: Path, texts: dict[str, list[str]], share: str, stages: str = "[]", more: str = "") -> runs.Finished:
    for name, own in texts.items():
        corpora.write_jsonl(folder / f"{name}/0.jsonl", [{"text": text} for text in own])
    sources = "".join(f"  {name}: {{path: {folder}/{name}/*.jsonl}}\n" for name in texts)
    return runs.run_mixture(
        runs.write_mixture(folder, sources, f"stages: {stages}", HELD_OUT_TAIL % share + more), make_engine=runs.InProcess
    )


def _of_kind(finished: runs.Finished, kind: str) -> list[dict[str, Any]]:
    return [warning for warning in json.loads(json.dumps(finished.report["warnings"])) if warning["kind"] == kind]


def _texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [corpora.prose(rng, 12) for _ in range(count)]


def _held_out(folder: Path, name: str, share: float) -> tuple[list[str], list[str]]:
    """The texts of a source that are trained on, and those that are held out."""
    lines = (folder / f"{name}/0.jsonl").read_bytes().splitlines(keepends=True)
    positions = np.cumsum([0, *map(len, lines)])[:-1].astype(np.uint64)
    hashes = np.full(len(lines), file_hash(name, "0.jsonl"), np.uint64)
    chosen = below_fraction(keyed_hash((hashes, positions), seed_for(3, "validation")), share)
    parts: tuple[list[str], list[str]] = [], []
    for line, is_out in zip(lines, chosen):
        parts[bool(is_out)].append(json.loads(line)["text"])
    return parts


@pytest.mark.parametrize(
    ("most_texts", "most_files"), [(1 << 23, 256), (1 << 23, 2), (60, 2)], ids=["all", "folded", "a sample"]
)
def test_texts_that_training_has_too_are_reported_with_the_numbers(
    tmp_path: Path, most_texts: int, most_files: int, monkeypatch
) -> None:
    """Against sets of texts, and in a sample."""
    monkeypatch.setattr(fold, "MOST_TEXTS", most_texts)
    monkeypatch.setattr(fold, "MOST_FILES", most_files)
    shared = _texts(30)
    texts = {"a": [*_texts(60, 1), *shared, "", ""], "b": [*_texts(40, 2), *shared, *shared[:5], "", ""], "c": _texts(30, 3)}
    finished = _run_of_texts(tmp_path, texts, "30%", more="execution: {split_bytes: 4KiB}\n")
    told = {warning["source"]: warning for warning in _of_kind(finished, "held_out_copies")}
    assert set(told) == {"a", "b"}
    training = {name: set(_held_out(tmp_path, name, 0.3)[0]) - {""} for name in texts}
    for name, warning in told.items():
        compared = [text for text in _held_out(tmp_path, name, 0.3)[1] if text]
        copies = [text for text in compared if any(text in own for own in training.values())]
        if most_texts == 60:
            assert 0 < warning["copied"] <= warning["compared"] < len(compared)
            assert warning["is_sample"]
            continue
        sources = [other for other, own in training.items() if own & set(copies)]
        assert (warning["copied"], warning["training_sources"]) == (len(copies), sources)
        assert (warning["compared"], warning["is_sample"]) == (len(compared), False)
        document, position = warning["document"].rsplit(":", 1)
        assert document == f"{name}/0.jsonl"
        line = (tmp_path / document).read_bytes()[int(position) :].splitlines()[0]
        assert json.loads(line)["text"] in copies


@pytest.mark.parametrize(
    ("texts", "share", "sources", "facts"),
    [
        ({"a": 30, "b": 3}, "0.001%", ["a", "b"], ["none of 33 documents", "`validation: 30.4%`"]),
        ({"a": 30, "b": 3}, "0", None, []),
        ({"a": 200, "small": 1}, "5%", ["small"], ["`validation: 50%`"]),
    ],
)
def test_share_that_holds_out_nothing_of_a_source_is_reported_with_one_that_does(
    tmp_path, texts, share, sources, facts
) -> None:
    done = _run_of_texts(tmp_path, {name: _texts(count, n) for n, (name, count) in enumerate(texts.items())}, share)
    told = _of_kind(done, "nothing_held_out")
    assert [warning.get("sources") or [warning["source"]] for warning in told] == ([sources] if sources else [])
    assert all(fact in warning["text"] for warning in told for fact in facts)
    assert _of_kind(done, "held_out_copies") == []
