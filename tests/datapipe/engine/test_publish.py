"""What is drawn when, from the mixture file to the manifest: whole runs that only publish again."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from datapipe.columns import key_halves, keys_from
from datapipe.config import load_mixture
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError
from datapipe.report.funnel import print_funnel
from datapipe.report.plan_view import plan_view
from datapipe.rng import shuffle_hash
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.storage import Root
from tests.support import runs

pytestmark = pytest.mark.medium

EVEN = ["sources.web.weight=1", "sources.books.weight=1"]
UNIMAX = [*EVEN, "mixture.weighting=unimax", "mixture.max_epochs=3"]
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


def test_drawing_options_re_run_nothing_and_are_in_the_snapshot(published):
    first = again(published).snapshot
    assert (first.exhausted, first.window_shards, first.total_tokens) == ("stop", 8, None)
    options = ["mixture.exhausted=redistribute", "mixture.window=0", "mixture.tokens=1M", "sources.books.max_epochs=2"]
    phases = "mixture.phases=[{until: 1, weights: {books: 1}, schedule: linear, stairs: 2}]"
    other = again(published, *options, phases).snapshot
    assert (other.exhausted, other.window_shards, other.sources["books"].max_epochs) == ("redistribute", 0, 2)
    stairs = [(phase.until_tokens, phase.weights) for phase in other.phases]
    assert stairs == [(500_000, {"web": 21, "books": 19}), (None, {"web": 7, "books": 33})]
    assert other.shards == first.shards
    assert again(published).snapshot == first


@pytest.mark.parametrize(
    ("books", "weights", "is_told"), [("1e-30", {"web": 2**40 - 1, "books": 1}, True), ("0.12345678901234567", None, False)]
)
def test_weights_of_any_digits_are_published_and_what_rounding_changes_is_told(published, books, weights, is_told):
    done = again(published, "sources.web.weight=0.30000000000000004", f"sources.books.weight={books}")
    assert weights in (None, done.snapshot.phases[0].weights)
    assert ("rounded_weights" in {warning.kind for warning in done.warnings}) == is_told


def test_documents_are_in_the_shards_of_the_range_of_their_hash(published):
    snapshot, root = again(published).snapshot, Root(str(published.parent / "out"))
    assert len({entry.hashes for entry in snapshot.shards}) > 4
    for entry in snapshot.shards:
        reader = ShardReader(root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)
        keys = reader.read(np.arange(reader.num_rows)).keys
        reader.close()
        hashes = shuffle_hash(key_halves(keys_from(keys)), snapshot.seed)
        assert entry.hashes is not None
        start, stop = entry.hashes
        assert all(start <= hash_ < stop for hash_ in hashes.tolist())


def test_temperature_weighs_by_the_tokens_that_were_packed(published):
    done = again(published, *EVEN, "mixture.weighting=temperature", "mixture.temperature=2")
    sizes, weights = _sizes(done), done.snapshot.phases[0].weights
    rows = {name: sum(entry.sequences for entry in done.snapshot.shards_of(name, "train")) for name in sizes}
    assert sizes == {name: 64 * count for name, count in rows.items()}
    assert weights["web"] / weights["books"] == pytest.approx((sizes["web"] / sizes["books"]) ** 0.5)
    assert {name: source.weight for name, source in done.snapshot.sources.items()} == weights
    assert done.report["mixture"]["sources"]["web"]["share"] == pytest.approx(weights["web"] / sum(weights.values()))


def test_source_with_too_little_text_is_refused_or_told_as_the_mixture_says(published):
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
def test_weights_of_a_trained_tokenizer_train_it_anew(tmp_path, corpus):
    mixture = runs.write_mixture(tmp_path, corpus, stages="", tail=runs.TAIL.replace("1MiB", "50kB"))
    run(mixture)
    kinds = {step.rpartition("/")[2] for step in run(mixture, "sources.web.weight=3").watcher.steps}
    assert kinds == {"sample", "train", "tokenize", "pack"}


def test_plan_and_funnel_show_what_is_drawn(published, tmp_path):
    for output, basis in ((tmp_path / "new", "4 to a token"), (None, "unimax of the tokens")):
        mixture = load_mixture(published, [*UNIMAX, "mixture.tokens=100k"], None if output is None else str(output))
        shown = io.StringIO()
        Console(width=160, file=shown).print(plan_view(mixture, *planned(mixture)))
        assert basis in shown.getvalue() and "50.00%" in shown.getvalue()
    done = again(published, "mixture.tokens=100k", "sources.books.max_epochs=9")
    drawn, shown = done.report["mixture"]["tokens"], io.StringIO()
    print_funnel(done.report, Console(width=160, file=shown))
    assert 100_000 - 100 < drawn <= 100_000  # whole rows
    assert all(f"{number:,}" in shown.getvalue() for number in (drawn, _sizes(done)["web"]))
